"""One trial, from its parameters to its record: configure, seed, build, train, score, release.

The only room that joins trial and trainer; it speaks to a small protocol, which our Trainer satisfies.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ..errors import ObjectiveError, SpaceError, StudyError, UnknownArgumentError
from ..files import remove_folder, whole_folder
from .listener import SearchListener
from .reporting import Deadline, ReportingCallback
from .retention import is_worth_keeping, remove_surplus
from .selection import select_report
from .study import Study
from .trial import Trial, TrialRecord, TrialState

MISTAKES_IN_THE_STUDY = (SpaceError, ObjectiveError, StudyError)
_READ_BY_USER_CODE = ("model.", "lora.", "data.")


class Searchable(Protocol):
    """What can be searched: a recipe from which each trial makes its own trainer."""

    args: Any
    eval_dataset: Any

    def for_trial(self, trial: Trial, output_dir: str) -> Searchable:
        """Return a new trainer with the trial's parameters, which writes to `output_dir`."""

    def add_callback(self, callback: Any) -> None:
        """Add a callback to it."""

    def train(self) -> Any:
        """Train a new model to the end, or until a callback stops it."""

    def evaluate(self) -> dict[str, float]:
        """Evaluate the model that was trained."""

    def capture_weights(self) -> Any:
        """Return a copy of the model's present weights."""

    def save_weights(self, folder: Any, state_dict: Any = None) -> None:
        """Write the weights, or those captured earlier, with what is needed to load them."""

    def release(self) -> None:
        """Drop the model and everything else the training made."""


class TrialRunner:
    """Runs the trials that a backend asks for, and keeps the study's records and folder in order.

    A backend calls `run`, tells its storage, then calls `settle`.

    Attributes:
        records: the ended trials of the study, earlier sessions included.
    """

    def __init__(
        self, trainer: Searchable, study: Study, records: Sequence[TrialRecord], listener: SearchListener
    ) -> None:
        self._trainer, self._study, self._listener = trainer, study, listener
        self._end = None if study.timeout is None else time.monotonic() + study.timeout
        self.records = list(records)
        self._tidy(self.records)

    @property
    def is_out_of_time(self) -> bool:
        """True if the study's timeout is over."""
        return self._end is not None and time.monotonic() >= self._end

    def run(self, trial: Trial) -> TrialRecord:
        """Train one trial and return its record, written to disk; what goes wrong inside the trial is in the record.

        Raises:
            TrialEndedSearch: the study itself is mistaken, or the user ended the search; it carries the record.
        """
        begin = time.monotonic()
        execution = _Execution(self._trainer, trial, self._study, self.records, self._listener, self._end)
        trace: str | None = None
        cause: BaseException | None = None
        try:
            state, reason = execution.run()
        except (*MISTAKES_IN_THE_STUDY, KeyboardInterrupt) as error:
            is_user = isinstance(error, KeyboardInterrupt)
            state, reason = TrialState.INTERRUPTED, "interrupted by the user" if is_user else str(error)
            cause = _without_frames(error)
        except Exception as error:
            state, reason = TrialState.FAILED, f"{type(error).__name__}: {error}"
            trace = traceback.format_exc()
            _without_frames(error)
        record = execution.record(state, reason, trace, time.monotonic() - begin)
        execution.release()
        self._study.write_record(record)
        if cause is not None:
            raise TrialEndedSearch(record, cause)
        return record

    def settle(self, record: TrialRecord) -> None:
        """Take an ended trial into account: records, best, checkpoints on disk, listeners."""
        self._tidy([*self.records, record])
        self._listener.on_trial_end(record)

    def recover(self, record: TrialRecord) -> None:
        """Take into account a trial whose process died: its record is written if it had not come so far."""
        others = [each for each in self.records if each.number != record.number]
        if len(others) == len(self.records):
            self._study.write_record(record)
        self._tidy([*others, record])

    def _tidy(self, records: list[TrialRecord]) -> None:
        """Write the best, delete the checkpoints of the others, and remember the records as they are now."""
        self._study.write_best(records)
        remove_surplus(records, self._study.folder, self._study.objective, self._study.keep_checkpoints)
        self.records = [
            replace(each, checkpoint=None) if each.checkpoint is not None and not each.checkpoint.is_dir() else each
            for each in records
        ]


class TrialEndedSearch(Exception):
    """A trial found that the search must end; `cause` is the error to raise once the storage knows of the trial."""

    def __init__(self, record: TrialRecord, cause: BaseException) -> None:
        super().__init__(record.reason)
        self.record, self.cause = record, cause


def _without_frames(error: BaseException) -> BaseException:
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


class _Execution:
    """The parts of one trial while it runs."""

    def __init__(
        self,
        trainer: Searchable,
        trial: Trial,
        study: Study,
        earlier: Sequence[TrialRecord],
        listener: SearchListener,
        study_end: float | None,
    ) -> None:
        self._trainer, self._trial, self._study = trainer, trial, study
        self._earlier, self._listener = earlier, listener
        self._deadline = Deadline(study, study_end)
        self._recipe: Searchable | None = None
        self._reporting: ReportingCallback | None = None
        self._checkpoint: Path | None = None
        self._suggested_by_space: set[str] = set()

    def run(self) -> tuple[TrialState, str | None]:
        """Configure, train, score; return how the trial ended and why."""
        recipe = self._configure()
        self._listener.on_trial_begin(self._trial)
        try:
            recipe.train()
        except UnknownArgumentError as error:
            raise SpaceError(str(error)) from None
        reporting = self._reporting
        assert reporting is not None
        if reporting.pruned:
            seen = reporting.reports[-1].resource
            return TrialState.PRUNED, f"pruned after {seen:g} {'samples' if self._by_steps(recipe) else 'epochs'}"
        if not reporting.reports:
            if reporting.stop is not None and reporting.stop.ends_study:
                return TrialState.INTERRUPTED, f"{reporting.stop.reason}, before its first evaluation"
            recipe.evaluate()
        selected = select_report(reporting.reports, self._study.scope, self._study.objective)
        if selected is None:
            values = ", ".join(str(report.value) for report in reporting.reports[-3:])
            return TrialState.FAILED, f"the objective was never finite (last reports: {values})"
        self._save_scoped_weights(recipe, selected.value, selected.report.step)
        if reporting.stop is not None:
            return TrialState.STOPPED, reporting.stop.reason
        return TrialState.COMPLETE, None

    def record(self, state: TrialState, reason: str | None, trace: str | None, seconds: float) -> TrialRecord:
        """Return the record of the trial as it stands."""
        reports = tuple(self._reporting.reports) if self._reporting is not None else ()
        selected = select_report(reports, self._study.scope, self._study.objective)
        return TrialRecord(
            number=self._trial.number,
            name=self._trial.name,
            state=state,
            params={**self._trial.params.values_by_name, **self._trial.arguments},
            arguments=dict(self._trial.arguments),
            hyperparameters=self._hyperparameters(),
            seed=None if self._recipe is None else self._recipe.args.seed,
            value=None if selected is None else selected.value,
            reports=reports,
            checkpoint=self._checkpoint if state.has_result else None,
            reason=reason,
            traceback=trace,
            seconds=seconds,
        )

    def _hyperparameters(self) -> dict[str, Any]:
        """Return what the trial trained with: its arguments, and what `model_init` suggested for itself."""
        suggested = self._trial.params.values_by_name.items()
        by_model_init = {name: value for name, value in suggested if name not in self._suggested_by_space}
        return {**self._trial.arguments, **by_model_init}

    def release(self) -> None:
        """Drop the run and everything it holds."""
        if self._recipe is not None:
            self._recipe.release()
        self._recipe = self._reporting = None

    def _configure(self) -> Searchable:
        trial, study = self._trial, self._study
        trial.arguments = study.suggest(trial)
        self._suggested_by_space = set(trial.params.values_by_name)
        trial.name = study.run_name(trial, {record.name for record in self._earlier})
        folder = study.folder / trial.name
        remove_folder(folder)
        study.write_record(self.record(TrialState.RUNNING, None, None, 0.0))
        try:
            recipe = self._recipe = self._trainer.for_trial(trial, output_dir=str(folder))
        except UnknownArgumentError as error:
            raise SpaceError(str(error)) from None
        sets = recipe.eval_dataset
        self._reporting = ReportingCallback(
            study,
            trial,
            self._earlier,
            eval_sets=len(sets) if isinstance(sets, dict) else 1,
            deadline=self._deadline,
            capture_weights=recipe.capture_weights,
            listener=_ChecksReadParameters(self._listener, trial, self._suggested_by_space, recipe.args),
        )
        recipe.add_callback(self._reporting)
        return recipe

    def _save_scoped_weights(self, recipe: Searchable, value: float, step: int) -> None:
        """Make sure the weights that stand for the trial are on disk, if they are among the best of the study."""
        folder = self._study.folder / self._trial.name / f"checkpoint-{step}"
        keep, reporting = self._study.keep_checkpoints, self._reporting
        assert reporting is not None
        if not is_worth_keeping(value, self._earlier, self._study.objective, keep):
            return
        if not folder.is_dir():
            if reporting.weights_step != step:
                return
            with whole_folder(folder) as partial:
                recipe.save_weights(partial, reporting.weights)
        self._checkpoint = folder

    @staticmethod
    def _by_steps(recipe: Searchable) -> bool:
        return bool(recipe.args.eval_strategy == "steps")


class _ChecksReadParameters(SearchListener):
    """Passes events on; at the first one, checks that user code has read and suggested what it may."""

    def __init__(self, listener: SearchListener, trial: Trial, suggested_by_space: set[str], args: Any) -> None:
        self._listener, self._trial = listener, trial
        self._suggested_by_space, self._args = suggested_by_space, args
        self._is_checked = False

    def on_report(self, trial: Trial, report: Any) -> None:
        """Pass on."""
        self._check()
        self._listener.on_report(trial, report)

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Pass on."""
        self._check()
        self._listener.on_progress(trial, step, max_steps)

    def _check(self) -> None:
        if self._is_checked:
            return
        self._is_checked = True
        params = self._trial.params
        for name in params.values_by_name:
            if name not in self._suggested_by_space and hasattr(self._args, name):
                raise SpaceError(
                    f"model_init suggested {name!r}, a training argument, when the arguments were already set; suggest "
                    "it in hp_space."
                )
        unread = [
            name for name in params.values_by_name if name.startswith(_READ_BY_USER_CODE) and name not in params.read
        ]
        if unread:
            raise SpaceError(
                f"Nobody reads the parameter {unread[0]!r}: model_init(trial) must look it up, as in "
                f"trial.params[{unread[0]!r}]."
            )
