"""The callback that reports a trial's evaluations, keeps its scoped weights and stops it when told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..callbacks import TrainerCallback
from .listener import SearchListener
from .retention import is_worth_keeping
from .selection import select_report
from .study import Study
from .trial import Report, Trial, TrialRecord


@dataclass(frozen=True)
class Stop:
    """Why a budget stops a trial, and whether it ends the study too."""

    reason: str
    ends_study: bool


class Deadline:
    """The moments after which a trial stops: the end of the study's time, and of its own."""

    def __init__(self, study: Study, study_end: float | None) -> None:
        self._study_end = study_end
        self._trial_end = None if study.trial_timeout is None else time.monotonic() + study.trial_timeout
        self._study_stop = Stop(f"the study's timeout of {study.timeout} s is over", ends_study=True)
        self._trial_stop = Stop(f"the trial's timeout of {study.trial_timeout} s is over", ends_study=False)

    def passed(self) -> Stop | None:
        """Return why to stop, or None while there is time left."""
        now = time.monotonic()
        if self._study_end is not None and now >= self._study_end:
            return self._study_stop
        return self._trial_stop if self._trial_end is not None and now >= self._trial_end else None


class ReportingCallback(TrainerCallback):
    """Reports every evaluation to the trial; asks whether to prune; checks the deadline at every step.

    With several evaluation sets, one report is made when all of them are evaluated. The last evaluation of a trial
    that has reached its end is reported but not pruned: nothing would be saved.

    Attributes:
        reports: the reports so far.
        weights: a copy of the weights of the report that stands for the trial so far, if they are worth keeping.
        weights_step: the update those weights are from.
        pruned: whether the study stopped the trial.
        stop: the budget that stopped the trial, or None.
    """

    def __init__(
        self,
        study: Study,
        trial: Trial,
        earlier: Sequence[TrialRecord],
        eval_sets: int,
        deadline: Deadline,
        capture_weights: Callable[[], Any],
        listener: SearchListener,
    ) -> None:
        self._study, self._trial, self._earlier = study, trial, earlier
        self._eval_sets, self._deadline = eval_sets, deadline
        self._capture, self._listener = capture_weights, listener
        self._pending: dict[str, float] = {}
        self._evaluated_sets = 0
        self.reports: list[Report] = []
        self.weights: Any = None
        self.weights_step: int | None = None
        self.pruned = False
        self.stop: Stop | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Stop the trial if its time is over."""
        self._listener.on_progress(self._trial, state.global_step, state.max_steps)
        self.stop = self.stop or self._deadline.passed()
        if self.stop is not None:
            control.should_training_stop = True
        return control

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> Any:
        """Report the evaluation, once all evaluation sets are done."""
        self._pending.update(metrics or {})
        self._evaluated_sets += 1
        if self._evaluated_sets < self._eval_sets:
            return control
        collected, self._pending, self._evaluated_sets = self._pending, {}, 0
        report = self._report(args, state, collected)
        is_last = state.global_step >= state.max_steps or self.stop is not None
        if not is_last and self._reported_resource(report) is not None and self._trial.should_prune():
            self.pruned = True
            control.should_training_stop = True
            control.should_save = False
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Spare a trial that was stopped another evaluation, if it has been evaluated."""
        if self.reports and (self.stop is not None or self.pruned):
            control.should_evaluate = control.should_save = False
        return control

    def _report(self, args: Any, state: Any, metrics: dict[str, float]) -> Report:
        value = self._study.objective.value(metrics)
        report = Report(
            value=value,
            resource=data_seen(args, state),
            step=state.global_step,
            epoch=float(state.epoch or 0.0),
            metrics={key: each for key, each in metrics.items() if isinstance(each, (int, float))},
        )
        self.reports.append(report)
        resource = self._reported_resource(report)
        if resource is not None:
            self._trial.report(value, resource)
        self._keep_weights(report)
        self._listener.on_report(self._trial, report)
        return report

    def _keep_weights(self, report: Report) -> None:
        selected = select_report(self.reports, self._study.scope, self._study.objective)
        if selected is None or selected.report is not report:
            return
        keep = self._study.keep_checkpoints
        if is_worth_keeping(selected.value, self._earlier, self._study.objective, keep):
            self.weights, self.weights_step = self._capture(), report.step

    @staticmethod
    def _reported_resource(report: Report) -> int | None:
        """Return the resource as the whole number that engines compare at; None where trials cannot be compared."""
        is_comparable = math.isfinite(report.value) and float(report.resource).is_integer()
        return int(report.resource) if is_comparable else None


def data_seen(args: Any, state: Any) -> float:
    """Return the data a run has seen: epochs if it evaluates by epoch, else samples.

    So two trials are compared after the same amount of data, whatever their batch sizes.
    """
    if args.eval_strategy == "steps":
        return float(state.global_step * args.train_batch_size * args.gradient_accumulation_steps * args.world_size)
    return round(float(state.epoch or 0.0), 6)
