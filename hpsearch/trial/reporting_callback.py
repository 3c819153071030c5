"""The callback that reports a trial's evaluations and stops it: by the pruner, a budget, or a signal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import MissingMetricError
from ..search.metrics.added_metrics import Metrics, recorded, with_num_parameters
from ..search.metrics.constraints import Constraint
from ..search.metrics.objective import Objective
from ..search.peer_summary import PeerTrials
from ..search.process_group import Ranks
from ..search.store import last_checkpoint
from ..search.store.stored_record import so_far_from_json
from ..search.study import Study
from ..search.time_and_epoch_limits import Stop, TrialBudget
from ..search.trial import Trial, Verdict
from ..search.trial_record import Report, TrialRecord, TrialState
from ..system.json_types import JsonObject
from ..training.callbacks import ExportableState, TrainerCallback
from .agreed_interruption import AgreedInterruption
from .messages import Reported
from .reporter import Reporter
from .scoped_weights import ScopedWeights

if TYPE_CHECKING:
    import torch
    from transformers import TrainerControl, TrainerState, TrainingArguments


class ReportingCallback(TrainerCallback, ExportableState):
    """Reports every evaluation to the trial; asks whether to prune; checks the budget after every update.

    With several evaluation sets, one report is made when all of them are evaluated. The last evaluation of a trial
    that has reached its end is reported but not pruned: nothing would be saved. The reports are part of every
    checkpoint, so a trial that resumes from one has those that were made before it, and no others.

    Args:
        study, trial: what is searched, and the trial.
        others: the other trials of the study.
        eval_sets: how many evaluation sets there are.
        budget: of the trial.
        weights: keeps those of the selected report.
        ranks: the processes of the trial; the main one decides.
        reporter: takes progress and reports, and answers these.
        check: raises an error if the trial was made in a way that cannot be; called before anything is reported.
        record: returns the record of the trial as it is.
        operations_so_far: returns the floating-point operations of its training run up to now; 0 if not known.
        fallbacks: what was changed each time the trial ran out of memory; checkpoints carry it, as they do the reports.

    Attributes:
        reports: the reports so far.
        schedule: with which arguments the trial was trained, from which update on.
        epochs: passes over the data so far.
        fraction: of its training run that the trial has trained so far.
        pruned: whether the study stopped the trial.
        paused: whether the study lets it wait, with a checkpoint.
        is_ending: whether the last report was made at the end of the trial, be it by a budget or a callback.
        stop: the budget, or the signal, that stopped the trial, or None.
    """

    def __init__(
        self,
        study: Study,
        trial: Trial,
        others: PeerTrials,
        eval_sets: int,
        budget: TrialBudget,
        weights: ScopedWeights,
        ranks: Ranks,
        reporter: Reporter,
        check: Callable[[], None],
        record: Callable[[], TrialRecord],
        operations_so_far: Callable[[], float],
        fallbacks: Sequence[JsonObject] = (),
    ) -> None:
        self._fallbacks, self._record, self._operations_so_far = list(fallbacks), record, operations_so_far
        self._study, self._trial, self._eval_sets = study, trial, eval_sets
        self._budget, self._weights = budget, weights
        self._ranks, self._reporter, self._check = ranks, reporter, check
        self._is_checked = self._has_made_step = False
        self._new_values: list[tuple[float, int]] = []  # for the pruner, sent with the next report
        self._others_were_evaluated = others.were_evaluated
        self._pending: dict[str, float] = {}
        self._evaluated_sets = 0
        self._is_over = False
        self._paused_at = 0
        self._interruption = AgreedInterruption(budget.interruption, ranks)
        self.reports: list[Report] = []
        self.schedule: list[JsonObject] = []
        self.epochs = self.fraction = 0.0
        self.pruned = self.paused = self.is_ending = False
        self.stop: Stop | None = None

    @property
    def study(self) -> Study:
        """The settings of the study."""
        return self._study

    def state(self) -> JsonObject:
        """Return the state of the trial for checkpoints."""
        reports = [asdict(report) for report in self.reports]
        kept = {
            "reports": reports,
            "schedule": self.schedule,
            "fallbacks": self._fallbacks,
            "seconds": self._budget.seconds,
            "is_over": self._is_over,
            "paused_at": len(self.reports) if self.paused else 0,
        }
        return {"args": {}, "attributes": {"so_far": kept}}

    @property
    def so_far(self) -> JsonObject:
        """The state of the trial in a checkpoint; setting it restores the state."""
        return dict(self.state()["attributes"]["so_far"])

    @so_far.setter
    def so_far(self, kept: Mapping[str, object]) -> None:
        kept = so_far_from_json(kept)
        self.reports = list(kept["reports"])
        self.schedule = list(kept["schedule"])
        last = self.reports[-1] if self.reports else None
        # until training begins, which knows better
        self.epochs, self.fraction = (last.epoch, min(1.0, last.fraction)) if last else (0.0, 0.0)
        self._budget.continue_after(float(kept["seconds"]))
        self._is_over = bool(kept["is_over"])
        self._paused_at = int(kept.get("paused_at", 0))

    def continue_after(self, seconds: float) -> None:
        """Count the time that the trial has taken before it begins here."""
        self._budget.continue_after(seconds)

    @property
    def was_evaluated(self) -> bool:
        """True if there is a report of a model that was trained; `eval_on_start` makes one before."""
        return any(report.step > 0 for report in self.reports)

    @property
    def is_at_its_end(self) -> bool:
        """True if the trial does not continue after its checkpoint.

        A callback had stopped it there (early stopping); or the search paused it, and its process died before the
        study knew.
        """
        return self._is_over or self._was_told_to_pause

    @property
    def _was_told_to_pause(self) -> bool:
        earlier = self._trial.earlier
        known = 0 if earlier is None or earlier.state is TrialState.INTERRUPTED else len(earlier.reports)
        return bool(self.reports) and self._paused_at == len(self.reports) > known

    def notice(self, text: str) -> None:
        """Say something about the search."""
        if self._ranks.is_main:
            self._reporter.notice(text)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Restore the state of the trial from an earlier session: its progress, and its reports, for the pruner."""
        self._budget.begin_training()
        self.epochs, self.fraction = float(state.epoch or 0.0), min(1.0, self._fraction(state))
        self._continue_schedule(state.global_step)
        self.paused = self._was_told_to_pause
        control.should_training_stop = control.should_training_stop or self.is_at_its_end
        if self._ranks.is_main:
            for report in self.reports:
                self._add_value(report)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Note that the trial has something to lose by Ctrl-C from here on."""
        self._interruption.await_it()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        """Stop the trial if a budget is exhausted, or a signal ends the search."""
        self._ranks.check_connected()
        self._check_once()
        self._reporter.progress(state.global_step, state.max_steps)
        if not self._has_made_step:
            self._has_made_step = True
            self._note_schedule()
        self.epochs, self.fraction = float(state.epoch), min(1.0, self._fraction(state))
        if self._budget.is_limited and self.stop is None and not _is_at_end(state):
            self.stop = self._passed_budget(state.epoch)
        if self.stop is not None:
            control.should_training_stop = True
            if self.stop.ends_study and not self.was_evaluated:
                control.should_save = True  # the next session resumes here
        is_end_of_epoch = float(state.epoch).is_integer()
        if not (is_end_of_epoch or control.should_evaluate):  # else after the end of the epoch, or the evaluation
            self._leave_if_interrupted(state, control)
        return control

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Show that the trial is alive, during a long evaluation or accumulation too."""
        self._reporter.progress(state.global_step, state.max_steps)

    on_substep_end = on_prediction_step

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> object:
        """Report the evaluation, once all evaluation sets are done; other prefixes are not the trial's."""
        if not any(name.startswith("eval_") for name in metrics or {}):
            return control
        self._pending.update(metrics or {})
        self._evaluated_sets += 1
        if self._evaluated_sets < self._eval_sets:
            return control
        collected, self._pending, self._evaluated_sets = self._pending, {}, 0
        report = self._ranks.decide(lambda: self._make_report(args, state, collected, kwargs.get("model")))
        self.reports.append(report)
        self._weights.note(self.reports)
        self._is_over = control.should_training_stop and self.stop is None  # by a callback, such as early stopping
        self.is_ending = _is_at_end(state) or self.stop is not None or self._is_over
        self._obey(self._ranks.decide(lambda: self._send(report, self.is_ending)), control)
        if not self.is_ending:
            self._leave_if_interrupted(state, control)
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> object:
        """Skip the last evaluation of a stopped trial: it has been evaluated, or resumes in the next session.

        A whole epoch that was not evaluated is the exception.
        """
        is_whole = float(state.epoch).is_integer()
        is_stopped = self.stop is not None or self.pruned or self.paused
        was_evaluated = self.was_evaluated and (not is_whole or self.reports[-1].step == state.global_step)
        goes_on = self.stop is not None and self.stop.ends_study and not is_whole
        if (was_evaluated and is_stopped) or goes_on:
            control.should_evaluate = control.should_save = False
        if is_whole and not control.should_evaluate:
            self._leave_if_interrupted(state, control)
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Write the selected weights beside the checkpoint, and delete those that are no longer needed."""
        self._weights.write_beside_checkpoint(self.reports, state.global_step, state.best_model_checkpoint)
        if self._ranks.is_main:
            self._reporter.checkpoint(state.global_step)

    def _leave_if_interrupted(self, state: TrainerState, control: TrainerControl) -> None:
        """End the trial here, with a checkpoint, if a signal requires it and the trial does not end anyway."""
        is_ending = control.should_training_stop or _is_at_end(state)
        if not is_ending and self._interruption.has_come():
            self._leave(self._interruption.reason, control)

    def _leave(self, reason: str, control: TrainerControl) -> None:
        """End the trial here, with a checkpoint from which it resumes later."""
        self.stop = Stop(reason, ends_study=True, is_interruption=True)
        control.should_training_stop = control.should_save = True

    def _continue_schedule(self, step: int) -> None:
        """Record the arguments that the trial is trained with from here on, unless they are the same as before."""
        part = {"trial": self._trial.number, "step": step, "arguments": plain(self._trial.arguments)}
        if self.schedule and self.schedule[-1]["step"] == step:
            self.schedule[-1] = part
        elif not self.schedule or {**self.schedule[-1], "step": step} != part:
            self.schedule.append(part)

    def _passed_budget(self, epochs: float) -> Stop | None:
        stop = self._budget.passed(epochs) if self._ranks.is_main else None
        return self._ranks.decide(lambda: stop) if self._ranks.agree(lambda: stop is not None) else None

    def _make_report(
        self, args: TrainingArguments, state: TrainerState, own: dict[str, float], model: torch.nn.Module | None
    ) -> Report:
        metrics = Metrics(own)
        if model is not None:
            metrics = with_num_parameters(own, sum(each.numel() for each in model.parameters()))
        if self._study.pruning_objective is not None:
            self._value(self._study.pruning_objective, metrics, "pruning_metric")  # it must be there
        return Report(
            values=tuple(self._value(each, metrics) for each in self._study.objectives),
            resource=data_seen(args, state),
            step=state.global_step,
            epoch=float(state.epoch or 0.0),
            metrics=recorded(metrics),
            violations={each.name: self._violation(each, metrics) for each in self._study.constraints},
            horizon=self._horizon(args, state),
            operations=self._operations_so_far(),
        )

    def _horizon(self, args: TrainingArguments, state: TrainerState) -> float:
        """Return the resource at the end of the trial's training; 0 before its first update, and if it is not known."""
        fraction = self._fraction(state)
        return float(round(data_seen(args, state) / fraction, 6)) if fraction else 0.0

    def _fraction(self, state: TrainerState) -> float:
        """Return the fraction of its training run that the trial has trained; `trial_max_epochs` shortens it."""
        if state.global_step == 0:
            return 0.0
        trained = state.global_step / state.max_steps if state.max_steps else 0.0
        limit = self._study.trial_max_epochs
        return float(trained if limit is None else max(trained, float(state.epoch) / limit))

    def _value(self, objective: Objective, metrics: dict[str, float], what: str = "objective") -> float:
        """Return an objective of these metrics; NaN if its metric is missing from this evaluation."""
        try:
            return objective.value(metrics, what)
        except MissingMetricError:
            if self.reports or self._others_were_evaluated:
                return math.nan
            raise

    def _violation(self, constraint: Constraint, metrics: dict[str, float]) -> float:
        try:
            return float(constraint.violation(metrics))
        except MissingMetricError:
            if self.reports or self._others_were_evaluated:
                return math.inf
            raise

    def _send(self, report: Report, is_last: bool) -> Verdict:
        """Report an evaluation; return the study's verdict."""
        self._check_once()
        is_comparable = self._add_value(report)
        values, self._new_values = tuple(self._new_values), []
        return self._reporter.report(Reported(report, values, is_comparable, is_last, self._record()))

    def _check_once(self) -> None:
        if not self._is_checked:
            self._is_checked = True
            self._check()

    def _note_schedule(self) -> None:
        """Record that the trial has resumed with other arguments than its checkpoint was trained with."""
        if self._ranks.is_main and len(self.schedule) > 1:
            earlier, so_far = self._trial.earlier, self._record()
            if earlier is None or so_far.schedule != earlier.schedule:
                self._reporter.note(so_far)

    def _obey(self, verdict: Verdict, control: TrainerControl) -> None:
        if verdict.prune:
            self.pruned = True
            control.should_training_stop = True
            control.should_save = False
        elif verdict.pause:
            self.paused = True
            control.should_training_stop = control.should_save = True
        elif verdict.stop is not None:
            self.stop = self.stop or Stop(verdict.stop, ends_study=False)
            control.should_training_stop = True
        elif verdict.leave is not None:
            self._leave(verdict.leave, control)
        elif verdict.save:
            control.should_save = True
        if verdict.seconds_left is not None:
            self._budget.set_seconds_left(verdict.seconds_left)

    def _add_value(self, report: Report) -> bool:
        """Add the value of a report to those that the pruner gets next; False if there is none to compare."""
        value, resource = self._pruning_value(report), report.comparable_resource
        if value is None or resource is None or not math.isfinite(value):
            return False
        self._new_values.append((value, resource))
        return True

    def _pruning_value(self, report: Report) -> float | None:
        if len(self._study.objectives) == 1:
            return report.value
        pruning = self._study.pruning_objective
        return None if pruning is None else self._value(pruning, report.metrics)


class SoFar(NamedTuple):
    """The part of a trial's record that a checkpoint holds.

    Attributes:
        reports: its reports; none if the checkpoint is not one of a trial.
        arguments: the parameters that it was trained with; None if the checkpoint is not one of a trial.
        fallbacks: the changes that were made because memory ran out.
    """

    reports: Sequence[Report] = ()
    arguments: JsonObject | None = None
    fallbacks: Sequence[JsonObject] = ()


def so_far_in(state: Mapping[str, object]) -> SoFar:
    """Return the part of a trial's record in the saved trainer state of a checkpoint.

    Raises:
        Unreadable: no search has written it.
    """
    read = last_checkpoint.so_far_in(state)
    if read is None:
        return SoFar()
    schedule = read["schedule"]
    return SoFar(read["reports"], dict(schedule[-1]["arguments"]) if schedule else None, read.get("fallbacks", ()))


def plain(arguments: Mapping[str, object]) -> JsonObject:
    """Return arguments as they come back from a JSON file; one that JSON does not know is given as text."""
    return dict(json.loads(json.dumps(dict(arguments), default=str)))


def _is_at_end(state: TrainerState) -> bool:
    """Return whether a run has done its last step; never if it is not known which that is."""
    return bool(0 < state.max_steps <= state.global_step)


def data_seen(args: TrainingArguments, state: TrainerState) -> float:
    """Return the data a run has seen: epochs if it evaluates by epoch, else samples.

    So two trials are compared after the same amount of data, whatever their batch sizes.
    """
    if args.eval_strategy == "steps":
        return float(state.global_step * args.train_batch_size * args.gradient_accumulation_steps * args.world_size)
    return round(float(state.epoch or 0.0), 6)
