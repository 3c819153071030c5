"""One trial while it runs: configure, seed, build, train, score, release.

The only room that joins trial and trainer; see `searchable` for what it asks of both.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    CannotResumeError,
    CheckpointError,
    SpaceError,
    StudyError,
    UnknownArgumentError,
    WeightsMismatchError,
)
from ..search.metrics.selection import select_report
from ..search.peer_summary import PeerTrials
from ..search.process_group import OneProcess, Ranks
from ..search.space.read_parameters import check_read
from ..search.store.checked_json import Unreadable
from ..search.study import Study
from ..search.time_and_epoch_limits import TrialBudget
from ..search.trial import Trial, Verdict
from ..search.trial_record import Report, TrialRecord, TrialState
from ..system.ctrl_c import ctrl_c_as_interruption
from ..system.files import remove_folder
from ..system.json_types import JsonObject
from ..system.spelling import nearest_name
from ..training.batch_size import is_out_of_memory
from .preflight import PreflightPlan, preflight
from .reporter import Reporter
from .reporting_callback import ReportingCallback, plain, so_far_in
from .scoped_weights import ScopedWeights
from .searchable import Searchable, Trainable


class Execution:
    """One trial while it runs.

    Args:
        recipe: the trainer that trials are made from.
        study: the settings.
        trial: its parameters are set.
        others: the other trials of the study.
        budget: of the trial.
        ranks: the processes of the trial.
        reporter: takes what the trial says while it runs.
        plan: of a preflight, which comes first if the trial has no checkpoint; None: there is none.
    """

    def __init__(
        self,
        recipe: Searchable,
        study: Study,
        trial: Trial,
        others: PeerTrials,
        budget: TrialBudget,
        ranks: Ranks,
        reporter: Reporter,
        plan: PreflightPlan | None = None,
    ) -> None:
        self._base, self._study, self._trial, self._others = recipe, study, trial, others
        trial.folds = study.folds
        self._budget, self._ranks, self._reporter, self._plan = budget, ranks, reporter, plan
        self._fallbacks = list(trial.earlier.fallbacks) if trial.earlier is not None else []
        self._has_fallen_back = False  # in this process; a checkpoint of before does not undo that
        self._recipe: Trainable | None = None
        self._reporting: ReportingCallback | None = None
        self._resumed_from: Path | None = None
        self._checkpoint: Path | None = None

    @property
    def is_requested(self) -> bool:
        """Whether the user has requested the trial, or it repeats another one."""
        return self._trial.origin is not None

    @property
    def folder(self) -> Path:
        """The folder of the trial's run."""
        return self._study.folder / self._trial.name

    @property
    def loads_in_processes(self) -> bool:
        """Whether processes of a DataLoader load the data; the trial's parameters are set."""
        name = "dataloader_num_workers"
        return bool(self._trial.arguments.get(name, getattr(self._base.args, name)))

    def run(self) -> tuple[TrialState, str | None]:
        """Train and score; return how the trial ended and why.

        A trial that was begun before resumes from its last checkpoint. With `oom_fallback`, one that runs out of memory
        continues in smaller micro-batches.
        """
        if self._plan is not None and self._ranks.decide(lambda: not any(self.folder.glob("checkpoint-*"))):
            with ctrl_c_as_interruption():
                said = preflight(self._base, self._study, self._trial, self._plan, self._ranks)
            if self._ranks.is_main:
                self._reporter.notice(said)
        while True:
            try:
                with ctrl_c_as_interruption():  # here, as a checkpoint that it makes unreadable is not a damaged one
                    return self._ranks.together(self._attempt)
            except WeightsMismatchError as error:
                if self._resumed_from is None:
                    raise
                raise CannotResumeError(
                    f"Trial {self._trial.number} cannot resume from its checkpoint: {error} The code builds another "
                    "model than the one that the trial began with. Restore that code, or pass another study_name."
                ) from error
            except CheckpointError:
                if not self._drop_checkpoint():
                    raise
            except Exception as error:
                if not self._fall_back(error):
                    raise
                without_frames(error)
            self.release()

    def record(self, state: TrialState, reason: str | None = None, trace: str | None = None) -> TrialRecord:
        """Return the record of the trial as it is now."""
        trial, reporting = self._trial, self._reporting
        reports = () if reporting is None else tuple(reporting.reports)
        selected = select_report(reports, self._study.scope, self._study.objectives)
        return TrialRecord(
            number=trial.number,
            name=trial.name,
            state=state,
            params={**trial.params.values_by_name, **trial.arguments},
            arguments=dict(trial.arguments),
            hyperparameters=self._hyperparameters(None if selected is None else selected.report.step),
            seed=None if self._recipe is None else self._recipe.args.seed,
            values=() if selected is None else selected.values,
            violations={} if selected is None else selected.report.violations,
            reports=reports,
            checkpoint=self._checkpoint if state.has_result else None,
            reason=reason,
            traceback=trace,
            seconds=self._budget.seconds,
            epochs=0.0 if reporting is None else reporting.epochs,
            fraction=0.0 if reporting is None else reporting.fraction,
            fallbacks=tuple(self._fallbacks),
            schedule=self._schedule,
            user_attrs=dict(trial.user_attrs),
            origin=trial.origin,
            processes=self._study.processes,
        )

    def record_of_waiting(self, so_far: TrialRecord, verdict: Verdict) -> TrialRecord:
        """Return the record of a trial that is stopped while it waits, with no process at work on it but the main one.

        Its weights are where its last checkpoint has left them.
        """
        if verdict.prune:
            return replace(so_far, state=TrialState.PRUNED, reason=f"pruned {self._after(so_far.reports)}")
        weights = ScopedWeights(self._study, None, self.folder, so_far.number, self._others, OneProcess())
        checkpoint = weights.finish(so_far.reports)
        return replace(so_far, state=TrialState.STOPPED, reason=verdict.stop, checkpoint=checkpoint)

    def check_changes(self, before: Mapping[str, object], after: Mapping[str, object]) -> None:
        """Check that the trial can resume from a checkpoint that was trained with other arguments.

        Raises:
            StudyError: it cannot.
        """
        others = sorted(before.keys() ^ after.keys())
        if others:
            raise StudyError(
                f"Trial {self._trial.number} cannot resume with {sorted(after)} from a trial with {sorted(before)}: "
                f"a perturbation (custom_explore_fn) may change only values, but {others[0]!r} is in one of them."
                f"{nearest_name(others[0], before)}"
            )
        for name in (name for name, value in after.items() if value != before[name]):
            try:
                self._base.check_changeable(name)
            except ArgumentError as error:
                about = f"Trial {self._trial.number} cannot resume with {name}={after[name]!r}"
                raise StudyError(f"{about}: {error}") from error

    def end_trackers(self, record: TrialRecord) -> None:
        """Notify the experiment trackers of the end of the trial."""
        if self._recipe is not None:
            self._recipe.end_trackers(record.state.value, record.reason)

    def release(self) -> None:
        """Drop the run and everything it holds."""
        recipe, self._recipe, self._reporting = self._recipe, None, None
        if recipe is not None:
            recipe.release()

    def _attempt(self) -> tuple[TrialState, str | None]:
        recipe, reporting, weights = self._configure()
        resumption = self._ranks.decide(lambda: self._checkpoint_to_resume(weights))
        self._resumed_from, is_other, fallbacks = resumption
        if (is_other and not self._has_fallen_back) or len(fallbacks) > len(self._fallbacks):
            self._fallbacks = fallbacks
            self.release()
            recipe, reporting, weights = self._configure()
        reapplied = {"reapply_arguments": True} if is_other else {}
        try:
            recipe.train(resume_from_checkpoint=self._resumed_from, **reapplied)
        except (UnknownArgumentError, ArgumentTypeError) as error:
            raise SpaceError(str(error)) from None
        finally:
            self._budget.interruption.is_awaited = False
        if self._base.writes_its_checkpoints and not self._ranks.is_main:
            return TrialState.COMPLETE, None  # the main process alone has the reports, and ends the trial
        if reporting.pruned:
            return TrialState.PRUNED, f"pruned {self._after(reporting.reports)}"
        if reporting.paused:
            return TrialState.PAUSED, f"paused {self._after(reporting.reports)}"
        if reporting.stop is not None and reporting.stop.is_interruption:
            return TrialState.INTERRUPTED, reporting.stop.reason
        if not reporting.was_evaluated:
            if reporting.stop is not None and reporting.stop.ends_study:
                return TrialState.INTERRUPTED, f"{reporting.stop.reason}, before its first evaluation"
            recipe.evaluate()
        if select_report(reporting.reports, self._study.scope, self._study.objectives) is None:
            values = ", ".join(
                str(report.values if len(report.values) > 1 else report.value) for report in reporting.reports[-3:]
            )
            return TrialState.FAILED, f"the objective was never finite (last reports: {values})"
        self._checkpoint = weights.finish(reporting.reports)
        if reporting.stop is not None:
            return TrialState.STOPPED, reporting.stop.reason
        return TrialState.COMPLETE, None

    def _after(self, reports: Sequence[Report]) -> str:
        unit = "sample" if self._base.args.eval_strategy == "steps" else self._study.unit
        count = reports[-1].resource
        return f"after {count:g} {unit}{'' if count == 1 else 's'}"

    def _configure(self) -> tuple[Trainable, ReportingCallback, ScopedWeights]:
        try:
            recipe = self._base.for_trial(self._trial, output_dir=str(self.folder))
        except (UnknownArgumentError, ArgumentTypeError) as error:
            raise SpaceError(str(error)) from None
        if self._fallbacks:
            recipe = recipe.with_arguments(**self._fallbacks[-1]["arguments"])
        self._recipe = recipe
        sets = recipe.eval_dataset
        is_on_its_own = self._base.writes_its_checkpoints
        saved_by = None if is_on_its_own else recipe
        ranks = OneProcess() if is_on_its_own else self._ranks  # the user's code decides where its processes meet
        weights = self._weights = ScopedWeights(
            self._study, saved_by, self.folder, self._trial.number, self._others, ranks
        )
        self._reporting = ReportingCallback(
            self._study,
            self._trial,
            self._others,
            eval_sets=len(sets) if isinstance(sets, dict) else 1,
            budget=self._budget,
            weights=weights,
            ranks=ranks,
            reporter=self._reporter,
            check=lambda: check_read(self._trial, self._base),
            record=lambda: self.record(TrialState.RUNNING),
            operations_so_far=recipe.operations_so_far,
            fallbacks=self._fallbacks,
        )
        recipe.add_callback(self._reporting)
        return recipe, self._reporting, weights

    def _checkpoint_to_resume(self, weights: ScopedWeights) -> _Resumption:
        """Return the newest checkpoint from which the trial can resume with the weights selected so far."""
        for checkpoint in self._base.resumable_checkpoints(self.folder):
            try:
                so_far = so_far_in(self._base.read_state(checkpoint))
            except Unreadable as error:
                self._reporter.notice(f"DAMAGED: {str(checkpoint)!r} is not used ({error}); delete it")
                continue
            if weights.would_be_there(so_far.reports):
                is_other = so_far.arguments is not None and so_far.arguments != plain(self._trial.arguments)
                return _Resumption(checkpoint, is_other, list(so_far.fallbacks))
        return _Resumption(None, False, [])

    def _drop_checkpoint(self) -> bool:
        """Delete the checkpoint that could not be resumed; False if the trial was not resumed from one."""
        if self._resumed_from is None:
            return False
        if self._ranks.is_main:
            remove_folder(self._resumed_from)
        return True

    def _fall_back(self, error: Exception) -> bool:
        """Prepare the same trial with less memory, if that is asked for and the error is about memory."""
        recipe = self._recipe
        if not self._study.oom_fallback or recipe is None or not is_out_of_memory(error):
            return False
        smaller = self._base.smaller_batches(recipe.args)
        if smaller is None:
            return False
        self._has_fallen_back = True
        self._fallbacks.append({"arguments": smaller, "reason": described(error)})
        if self._ranks.is_main:
            self._reporter.note(self.record(TrialState.RUNNING))
        return True

    @property
    def _schedule(self) -> tuple[JsonObject, ...]:
        """The parts of a trial whose parameters changed while it trained; empty for all others."""
        schedule = [] if self._reporting is None else self._reporting.schedule
        return tuple(schedule) if len(schedule) > 1 else ()

    def _hyperparameters(self, step: int | None) -> dict[str, object]:
        """Return the last arguments of the weights after step `step`, and what `model_init` suggested."""
        arguments = self._trial.arguments
        for part in self._schedule:
            if step is not None and part["step"] < step:
                arguments = part["arguments"]
        suggested = self._trial.params.values_by_name.items()
        by_model_init = {name: value for name, value in suggested if name not in self._trial.suggested_by_space}
        return {**arguments, **by_model_init}


def described(error: BaseException) -> str:
    """Return an error in one line: its kind, what it says, and its notes, such as the process it came from."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"


def without_frames(error: BaseException) -> BaseException:
    """Clear the frames that an error (and those it came from) keeps alive, and with them the model; return it."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if each.__traceback__ is not None:
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = None
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    return error


class _Resumption(NamedTuple):
    """The point at which a trial resumes.

    Attributes:
        checkpoint: from which; None: it begins.
        is_other: whether that was trained with other parameters than those the trial has now.
        fallbacks: what had been changed for want of memory when it was written.
    """

    checkpoint: Path | None
    is_other: bool
    fallbacks: list[JsonObject]
