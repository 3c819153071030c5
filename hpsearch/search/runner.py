"""Runs the trials that a backend asks for, and keeps the study's records and folder in order."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ..errors import CannotResumeError, SpaceError
from ..files import remove_partial
from ..interruption import Interruption
from ..scratch import remove_scratch_of_the_dead
from ..sockets import keeping_sockets
from .acting_arguments import reaching_out
from .assignment import Assignment
from .budgets import SearchBudget, TrialBudget
from .ending import Ended, TrialEndedSearch, run_to_end
from .execution import Execution, Searchable
from .folder import StudyFolder, remove_leftovers
from .listener import SearchListener
from .memory_of_0_8_0 import copy_to_disk
from .model_size import ModelSize
from .others import OtherTrials
from .own_files import hide_checkpoints_outside
from .preflight import PreflightPlan, plan_preflight
from .ranks import Ranks
from .repeats import Tried, choose, is_everything_tried
from .reporter import DirectReporter, Reporter
from .retention import remove_surplus
from .sessions import Session
from .space import SearchSpace
from .study import Study
from .trial import FixedTrial, Span, Trial, TrialRecord, TrialState, Verdict, configuration

_SECONDS_BETWEEN_LOOKS = 0.5
logger = logging.getLogger(__name__)


class TrialRunner:
    """Runs the trials that a backend asks for, and keeps the study's records and folder in order.

    Under `locked()` a backend chooses a trial that no process trains and marks it with `session`. It then calls
    `begin`, has it trained, here by `train` or elsewhere, and calls `finish`; under `locked()` again, it tells its
    storage and calls `settle`.

    Attributes:
        listener: hears of the search.
        session: the name of this search at work in the study's folder; tells other processes whose a trial is.
        records: the trials of the study that have ended or will resume, those of other processes included.
        failures: how the last trials of this session failed, one after the other.
        interruption: notes a signal that ends the search.
        under_way: by number, the records so far of the trials that this search trains, here or in other processes.
    """

    def __init__(
        self,
        trainer: Searchable,
        study: Study,
        folder: StudyFolder,
        listener: SearchListener,
        ranks: Ranks,
        clock: Callable[[], float] = time.monotonic,
        interruption: Interruption | None = None,
        reporter: type[DirectReporter] = DirectReporter,
    ) -> None:
        self._trainer, self._study, self._folder = trainer, study, folder
        self.listener, self._ranks, self._reporter = listener, ranks, reporter
        self._session = Session(study.folder)
        self.interruption = interruption or Interruption()
        self._budget = SearchBudget(study, clock=clock, interruption=self.interruption)
        self.session = self._session.name
        self.records: list[TrialRecord] = []
        self.failures: list[TrialRecord] = []
        self.under_way: dict[int, TrialRecord] = {}
        self._running_elsewhere: list[TrialRecord] = []
        self._last_preflight: int | None = None  # the trial that has had one
        self._ended_by: str | None = None
        self._model_size = ModelSize((), is_fixed=False)
        self._begun: dict[int, tuple[float, TrialRecord | None]] = {}  # when, and what was known
        self._epochs_of: list[TrialRecord] | None = None  # the records that the epochs are of
        self._epochs: dict[int, float] = {}
        self._all_epochs = 0.0

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Sign in to the study's folder while the block runs, so that other processes know whose trials these are."""
        remove_scratch_of_the_dead()
        with self._folder.locked():
            self._session.begin()
            try:
                lost = copy_to_disk(self._study.folder) if self._session.is_alone() else []
            except BaseException:
                self._session.end()
                raise
        try:
            for run in lost:
                self.announce(f"{run} has lost its checkpoint, which 0.8.0 kept in memory: it starts again if resumed")
            yield
        finally:
            with self._folder.locked():
                if self._session.end():
                    remove_partial(self._study.folder)  # what killed sessions have left there

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from deciding anything about the study while the block runs."""
        return self._folder.locked()

    def open(self, records: list[TrialRecord]) -> None:
        """Take over the trials on disk; under `locked()`."""
        self._model_size = ModelSize(records, self._trainer.has_fixed_model)
        self._tidy(records, among=None)

    def refresh(self) -> None:
        """Read what other processes have done since; under `locked()`."""
        if self._session.others_were_here():
            records = self._folder.read_records()
            self.records = self._present(records)
            self._running_elsewhere = [each for each in records if each.state is TrialState.RUNNING]

    def earlier_record(self, number: int) -> TrialRecord | None:
        """Return what an earlier session left of a trial; None if it had not come so far; under `locked()`."""
        return next((each for each in self._folder.read_records() if each.number == number), None)

    def is_last(self) -> bool:
        """Tell whether no search has a trial of the study under way any more, nor will have; under `locked()`.

        Asked when no further trial may begin in this one.
        """
        if self.under_way:
            return False
        self._session.leave()
        return self._session.is_last()

    def is_alone(self) -> bool:
        """Tell whether no other search is at work in the study's folder; under `locked()`."""
        return self._session.is_alone()

    def is_alive(self, session: str | None) -> bool:
        """Tell whether the process that is at a trial is still there."""
        return self._session.is_alive(session)

    def reason_to_stop(self) -> str | None:
        """Return why no further trial may begin in this session, or None: a budget, or too many failures."""
        limit = self._study.max_failures
        if limit is not None and len(self.failures) >= limit:
            return f"{limit} trials failed one after the other"
        return self._ended_by or self.used_up()

    def end_early(self, reason: str) -> None:
        """Let no further trial begin in this session; those that run go to their end."""
        self._ended_by = reason

    def used_up(self) -> str | None:
        """Return which budget of the study is exhausted; None while something is left for the running trials."""
        if self._study.max_epochs is not None and self._epochs_of is not self.records:
            self._epochs_of, self._epochs = self.records, {each.number: each.epochs for each in self.records}
            self._all_epochs = sum(self._epochs.values())
        known = sum(self._epochs.get(number, 0.0) for number in self.under_way)
        stop = self._budget.passed(self._all_epochs - known + _epochs(self.under_way))
        return None if stop is None else stop.reason

    @property
    def seconds_left(self) -> float | None:
        """What is left of the search's time; None if there is no limit."""
        return self._budget.seconds

    def known_trials(self) -> list[TrialRecord]:
        """Return all trials of the study that are known, by number, those under way as far as they have told.

        Those that other searches are at are as they were when these began with them.
        """
        elsewhere = {each.number: each for each in self._running_elsewhere}
        known = {**elsewhere, **{each.number: each for each in self.records}, **self.under_way}
        return sorted(known.values(), key=attrgetter("number"))

    def tried(self) -> Tried:
        """Return which configurations have been tried; under `locked()`."""
        folder = self._folder
        return Tried.of(self.known_trials(), self._study, folder.same_sessions, folder.ended_before)

    def known_trial(self, params: Mapping[str, Any]) -> TrialRecord | None:
        """Return the trial that has these proposed parameters, if its result is known or will be; under `locked()`.

        What the space adds to them, such as constants, is compared too.
        """
        proposed = FixedTrial(params)
        try:
            arguments = self._study.suggest(proposed)
        except SpaceError:  # it asks for more than is proposed, or the trial will show it
            return None
        if self._study.goes_by_number:
            return None
        return self.tried().known.get(configuration({**proposed.params.values_by_name, **arguments}))

    def is_everything_tried(self, number: int, begun: Collection[int]) -> bool:
        """Tell whether no configuration is left for trial `number`; `begun` are those that processes are at."""
        reserved = len(set(begun) - {each.number for each in self.known_trials()})
        found = is_everything_tried(self._study.suggest, number, self.tried(), reserved)
        return found and not self._study.goes_by_number  # what a function returns is known when it has been called

    def announce(self, notice: str) -> None:
        """Say something about the search while it runs, such as why it ends early."""
        self.listener.on_notice(notice)

    def wait(self) -> None:
        """Wait a moment for trials of other searches, and let the other processes of this one know."""
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._ranks.decide(lambda: None)

    def run(self, trial: Trial) -> TrialRecord:
        """Train one trial and return its record, written to disk; what goes wrong inside the trial is in the record.

        Raises:
            TrialEndedSearch: the study itself is mistaken, or the user ended the search; it carries the record.
        """
        told = self.begin(trial)
        return told if isinstance(told, TrialRecord) else self.finish(self.train(trial, told))

    def train(self, trial: Trial, told: Assignment, reporter: Reporter | None = None) -> Ended:
        """Train a trial that has begun in this process, and return how it ended; the processes that follow train too.

        Args:
            trial: of the study.
            told: what `begin` has returned.
            reporter: takes what the trial says; None: the trial itself does, and the listener.
        """
        execution = self.execution(trial, told.others, told.preflight, reporter)

        def train() -> tuple[TrialState, str | None]:
            self._ranks.decide(lambda: told)
            trial.ranks = self._ranks
            with keeping_sockets(execution.loads_in_processes):
                return execution.run()

        return run_to_end(execution, train)

    def begin(self, trial: Trial) -> Assignment | TrialRecord:
        """Prepare a trial, and return what the process that trains it must know; `finish` when it has ended.

        If the trial ended before it could be trained, return its record, as `run` does.

        Raises:
            TrialEndedSearch: as in `run`.
        """
        others = self._others(trial)
        execution = self.execution(trial, others)

        def prepare() -> tuple[TrialState, str | None]:
            self._begin(trial, execution)
            return TrialState.RUNNING, None

        ended = run_to_end(execution, prepare)
        if ended.record.state is TrialState.RUNNING:
            return Assignment.of(trial, others, self.seconds_left, self._plan(trial))
        return self.finish(ended)

    def finish(self, ended: Ended) -> TrialRecord:
        """Write the record of an ended trial, and return it as it was written.

        Raises:
            TrialEndedSearch: the search ends with it.
        """
        begun, known = self._begun.pop(ended.record.number, (None, None))
        record = replace(ended.record.going_on_from(known), session=self._folder.session)
        if begun is not None:
            earlier = () if known is None else known.spans
            record = replace(record, spans=(*earlier, Span(begun, time.time(), ended.where)))
        if self.interruption.signal and record.state is TrialState.FAILED:
            # The signal may have ended processes of the trial, such as those that load its data.
            record = replace(
                record, state=TrialState.INTERRUPTED, reason=f"{self.interruption.reason}: {record.reason}"
            )
        self._folder.write_record(record)
        if ended.cause is not None:
            raise TrialEndedSearch(record, ended.cause)
        return record

    def execution(
        self,
        trial: Trial,
        others: OtherTrials,
        plan: PreflightPlan | None = None,
        reporter: Reporter | None = None,
    ) -> Execution:
        """Return a trial as it would run in this process, beside these other ones."""
        return Execution(
            self._trainer,
            self._study,
            trial,
            others,
            TrialBudget(self._study, self._budget, others),
            self._ranks,
            reporter or self._reporter(trial, self.listener, self._note_and_remember),
            plan=plan,
        )

    def note(self, record: TrialRecord) -> TrialRecord:
        """Write how far a trial is, where that could not be told from its checkpoints; return what was written."""
        _, known = self._begun[record.number]
        record = record.going_on_from(known)
        self._folder.write_record(record)
        return record

    def _note_and_remember(self, record: TrialRecord) -> None:
        """Write how far a trial of this process is; should it begin again, that is what is known of it."""
        begun, _ = self._begun[record.number]
        self._begun[record.number] = begun, self.note(record)

    def stop_waiting(self, trial: Trial, record: TrialRecord, reason: str) -> TrialRecord:
        """Let a trial that waits at a rung stand with the result it has, and return its record, written to disk."""
        hide_checkpoints_outside(self._study.folder / record.name)
        execution = self.execution(trial, self._others(trial))
        return self.finish(Ended(execution.record_of_waiting(record, Verdict(stop=reason))))

    def settle(self, record: TrialRecord, has_run: bool = True) -> None:
        """Take an ended trial into account: records, best, checkpoints on disk, listeners; under `locked()`.

        One that has not run since it was settled before is not counted among those that fail or do not.
        """
        limit = self._study.max_failures
        if has_run and (limit is None or len(self.failures) < limit):  # those that have ended the search stay
            self.failures = [*self.failures, record] if record.state is TrialState.FAILED else []
        self._take(record)
        self.listener.on_records(self.records)
        self.listener.on_trial_end(record)
        change = self._model_size.change(record)
        if change is not None:
            logger.warning("%s.", change)
            self.announce(change)

    def recover(self, record: TrialRecord) -> None:
        """Take into account a trial that ended just before its process died; under `locked()`."""
        self._take(record)

    def _plan(self, trial: Trial) -> PreflightPlan | None:
        """Return the plan of a trial's preflight; None if it has none.

        The first trial has one while the study has no report; if that trial fails, the next one has one too.
        """
        failed = {each.number: each.reason or "" for each in self.failures}
        if not self._study.preflight or not (self._last_preflight is None or self._last_preflight in failed):
            return None
        earlier = () if trial.earlier is None else trial.earlier.reports
        if earlier or any(each.reports for each in self.known_trials()):
            return None
        self._last_preflight = trial.number
        return plan_preflight(self._study, trial.number, max(failed.items(), default=None))

    def _begin(self, trial: Trial, execution: Execution) -> None:
        """Ask for the trial's parameters, and give it a folder with its first record in it."""
        self._begun[trial.number] = time.time(), trial.earlier
        suggested = self._study.suggest(trial)
        if not isinstance(self._study.space, SearchSpace):  # in a function, what other trials have is in a branch
            trial.params.of_all_branches |= {name for each in self.known_trials() for name in each.params}
        if trial.earlier is None:
            with self._folder.locked():
                trial.arguments = self._not_known(trial, suggested)
                trial.keep()
                trial.suggested_by_space = set(trial.params.values_by_name)
                wanted = self._study.run_name(trial, is_complete=False)
                if wanted is not None:
                    trial.name = self._folder.begin_run(execution.record(TrialState.RUNNING), wanted)
            if wanted is None:
                self._begin_named_by_user_code(trial, execution)
        else:
            _check_reach(trial.earlier, suggested)
            trial.arguments, trial.suggested_by_space = suggested, set(trial.params.values_by_name)
            if trial.earlier.schedule:
                trial.arguments = dict(trial.earlier.arguments)
                trial.params.values_by_name.update(trial.earlier.params)
                trial.suggested_by_space |= trial.arguments.keys()
            else:  # arguments that are searched no longer stay as they were; user code may have dropped what it reads
                is_read = self._trainer.is_read_by_user_code
                kept = {name: each for name, each in trial.earlier.arguments.items() if not is_read(name)}
                trial.arguments = {**kept, **trial.arguments}
                trial.params.values_by_name.update({**kept, **trial.params.values_by_name})
                trial.suggested_by_space |= kept.keys()
            remove_leftovers(self._study.folder / trial.name)
            hide_checkpoints_outside(self._study.folder / trial.name)
            self._folder.write_record(replace(trial.earlier, state=TrialState.RUNNING, reason=None))
        self.listener.on_trial_begin(trial)

    def _begin_named_by_user_code(self, trial: Trial, execution: Execution) -> None:
        """Begin a trial whose name needs what the user's code suggests; an error of that code is the trial's."""
        name: str | None = None
        try:
            self._trainer.let_user_code_suggest(trial)
            name = self._study.run_name(trial)
        finally:
            with self._folder.locked():
                record = execution.record(TrialState.RUNNING)
                trial.name = self._folder.begin_run(record, name or f"run-{trial.number}")

    def _not_known(self, trial: Trial, suggested: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a new trial; of another configuration, if the result of this one is known."""
        if self._study.goes_by_number or isinstance(trial, FixedTrial):  # a replay's parameters are given
            return suggested
        self.refresh()
        stream = f"{self._study.seed}/{trial.number}"
        return dict(choose(trial, self._study.suggest, suggested, self.tried(), stream))

    def _others(self, trial: Trial) -> OtherTrials:
        under_way = {number: each for number, each in self.under_way.items() if number != trial.number}
        excluded = {trial.number, *under_way}
        ended = [each for each in self.records if each.number not in excluded]
        return OtherTrials.of(ended, self._study, _epochs(under_way))

    def _take(self, record: TrialRecord) -> None:
        self.refresh()
        others = [each for each in self.records if each.number != record.number]
        remove_leftovers(self._study.folder / record.name)
        keeping = [each for each in others if each.checkpoint is not None]
        self._tidy([*others, record], among=[record, *keeping])

    def _tidy(self, records: list[TrialRecord], among: list[TrialRecord] | None) -> None:
        """Write the best, delete the checkpoints of the others, and remember the records as they are now."""
        study = self._study
        self._folder.write_best(records)
        remove_surplus(records, study.folder, study.objectives, study.keep_checkpoints, among)
        self.records = self._present(records)

    @staticmethod
    def _present(records: list[TrialRecord]) -> list[TrialRecord]:
        """Return the records of trials that are not running, by number, without checkpoints that were deleted."""
        ended = (each for each in sorted(records, key=attrgetter("number")) if each.state is not TrialState.RUNNING)
        return [
            replace(each, checkpoint=None) if each.checkpoint is not None and not each.checkpoint.is_dir() else each
            for each in ended
        ]


def _check_reach(record: TrialRecord, suggested: Mapping[str, Any]) -> None:
    """Check that no argument of a half-done trial acts elsewhere, unless the space of this search asks for it.

    Raises:
        CannotResumeError: one does.
    """
    reaching = reaching_out(replace(record, params={}), suggested)  # what is no argument configures nothing
    if reaching is not None:
        raise CannotResumeError(
            f"Trial {record.number} does not resume with {reaching}: it comes from the study's folder, not from the "
            "search space, and reaches beyond the folder. If it is yours, put the parameter back into the space; if "
            f"the folder is from someone else, move {record.name!r} out of it."
        )


def _epochs(records: Mapping[int, TrialRecord]) -> float:
    return sum(each.epochs for each in records.values())
