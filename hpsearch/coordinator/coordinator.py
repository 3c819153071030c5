"""A search in progress: which trials run, what they report, how they end, which are retried."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from ..errors import StorageError
from ..ledger.engine_trial import OptunaTrial
from ..ledger.ledger import Ledger
from ..ledger.optuna_study import OptunaStudy
from ..ledger.proposer import Proposer
from ..search.decisions.decide import STOPPED_BY_HAND
from ..search.requests.in_effect import InEffect
from ..search.space.parameters import Parameter
from ..search.store.study_folder import remove_leftovers
from ..search.trial import Trial, Verdict
from ..search.trial_record import TrialRecord, TrialState
from ..system.interruption import Interruption
from ..trial.assignment import Assignment
from ..trial.ending import Ended, TrialEndedSearch
from ..trial.messages import Message, Noted, Notice, Progress, Question, Reported
from ..trial.remote_trial import sendable
from .applied_decisions import AppliedDecisions
from .lost_worker import Loss
from .search_session import SearchSession

logger = logging.getLogger(__name__)
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass
class RunningTrial:
    """A trial that a process trains, or will as soon as there is one.

    Attributes:
        trial: as the storage knows it.
        assignment: what its process is given.
        so_far: its record, as far as its process has reported.
        where: it was trained, as its process has said when it left it.
        has_lost_process: whether a process that has trained it since it was chosen has died.
    """

    trial: OptunaTrial
    assignment: Assignment
    so_far: TrialRecord
    where: str = ""
    has_lost_process: bool = False

    def ended(self, state: TrialState, reason: str, cause: BaseException | None = None) -> Ended:
        """Return the outcome of a trial that was ended from outside."""
        return Ended(replace(self.so_far, state=state, reason=reason), cause, self.where)


class Coordinator:
    """Gives trials to an executor, and receives their reports; passive, for one thread.

    It alone knows which trials run. `hpsearch.executors` shows how an executor drives it.

    Args:
        session: whose trials these are.
        ledger: the trials in the storage.
        decisions: which trial is next, which are pruned, when the search ends.
        proposer: chooses parameters in place of the sampler; None: the sampler does.
        retries: the number of times that a trial is resumed after its process has died.

    Attributes:
        running: the trials that have begun and not ended, by number.
        is_over: no further trial will begin, and none is running; `next` finds it out.
        has_no_more: no trial could begin when one was last asked for.
        error: what ends the search; None while nothing does.
    """

    def __init__(
        self,
        session: SearchSession,
        ledger: Ledger,
        decisions: AppliedDecisions,
        proposer: Proposer | None = None,
        retries: int = 3,
    ) -> None:
        self._session, self._ledger, self._decisions = session, ledger, decisions
        self._limits = session.limits
        self._proposer, self._retries = proposer, retries
        self._without_process: list[int] = []  # they have begun, and the next free process takes them
        self._losses: Counter[int] = Counter()  # by number: a trial that pauses and resumes does not get new retries
        self._is_closing = False
        self._look_again = -math.inf
        self._in_preflight: int | None = None  # the trial whose preflight blocks the other trials
        self.running: dict[int, RunningTrial] = {}
        self.is_over = self.has_no_more = False
        self.error: BaseException | None = None

    @classmethod
    def of(
        cls, session: SearchSession, stored: OptunaStudy, retries: int, proposer: Proposer | None = None
    ) -> Coordinator:
        """Return the coordinator of a study that has been prepared."""
        decisions = AppliedDecisions(
            session, stored.ledger, stored.at_rungs, stored.is_converged, stored.budget, stored.limit
        )
        return cls(session, stored.ledger, decisions, proposer, retries)

    @property
    def interruption(self) -> Interruption:
        """Notes a signal that ends the search."""
        return self._session.interruption

    @property
    def is_ending(self) -> bool:
        """Whether an error or a signal ends the search."""
        return self.error is not None or bool(self.interruption.signal)

    @property
    def is_paused(self) -> bool:
        """Whether the user has paused the search."""
        return self._session.requests.now().is_paused

    @property
    def seconds_left(self) -> float | None:
        """The remaining time of the search; None if there is no limit."""
        return self._limits.seconds_left

    def end_with(self, error: BaseException) -> None:
        """End the search with an error, unless another one has ended it before."""
        self.error = self.error or error

    def take_ctrl_c(self) -> None:
        """Take Ctrl-C in a search whose trials run in other processes: the first time, they finish their steps.

        Not those of a function that does not resume: they have nothing to save.
        """
        if self._session.resumes_trials:
            self.interruption.press()
        else:
            self.end_with(KeyboardInterrupt())

    def announce(self, notice: str) -> None:
        """Show a notice about the search while it runs."""
        self._session.announce(notice)

    # Which trial is next

    def next(self) -> Assignment | None:
        """Return the trial that a free process trains next; None if there is none now, or the search ends.

        After None, ask again when a trial has reported or ended, and at least every half second: trials of other
        sessions change what is next. `is_over` tells that there are no more.

        Raises:
            TrialEndedSearch: the study was found to be mistaken in it.
        """
        if self.is_ending:
            return None
        may_resume = self._is_closing or not self.is_paused
        number = self._without_process.pop(0) if self._without_process and may_resume else self._choose()
        return None if number is None else replace(self.running[number].assignment, seconds=self.seconds_left)

    def give_back(self, number: int) -> None:
        """Take back a trial that no process has started; it comes next."""
        self._without_process.insert(0, number)

    def _choose(self) -> int | None:
        """Return the number of a trial that starts or resumes; None if none does now."""
        if self._is_closing:
            if not self.running and not self.is_over:
                self._look_at_the_last()
                self.is_over = True
            return None
        if time.monotonic() < self._look_again or self._in_preflight is not None:
            return None
        while True:
            with self._ledger.talking(), self._session.records.locked():
                chosen = self._decisions.next(self._proposer)
            self.has_no_more = not isinstance(chosen, OptunaTrial)
            if isinstance(chosen, OptunaTrial):
                begun = self._begin(chosen)
                if begun is not None:
                    return self._run(begun)
                if self.interruption.signal:
                    return None
                continue
            if chosen is None:
                self._is_closing = True
                self.is_over = not self.running
                if self._decisions.ending is not None:
                    self.announce(self._decisions.ending)
            self._look_again = time.monotonic() + _SECONDS_BETWEEN_LOOKS
            return None

    def _look_at_the_last(self) -> None:
        """Decide once more if a limit has ended the search, as the last trials may just have paused."""
        if self._limits.exhausted() is not None:
            with self._ledger.talking(), self._session.records.locked():
                self._decisions.next()

    def _begin(self, trial: OptunaTrial) -> RunningTrial | None:
        """Prepare a trial; None if it has ended before it could be trained."""
        try:
            begun = self._session.on_disk.begin(trial)
        except TrialEndedSearch as ended:
            self._settle(trial, ended.record, is_stored=not isinstance(ended.cause, StorageError))
            raise
        if isinstance(begun, TrialRecord):
            self._settle(trial, begun)
            if self._proposer is not None:
                self._proposer.end(begun, {})
            return None
        processes = self._session.study.processes
        if begun.earlier is not None:
            resumed = replace(begun.earlier, state=TrialState.RUNNING, reason=None, processes=processes)
            return RunningTrial(trial, begun, resumed)
        params = {**trial.params.values_by_name, **begun.arguments}
        record = TrialRecord(
            begun.number,
            begun.name,
            TrialState.RUNNING,
            params,
            dict(begun.arguments),
            origin=begun.origin,
            processes=processes,
        )
        return RunningTrial(trial, begun, record)

    def _run(self, begun: RunningTrial) -> int:
        """Note that a trial runs; return its number."""
        number = begun.assignment.number
        self.running[number] = begun
        self._session.records.running[number] = begun.so_far
        self._in_preflight = None if begun.assignment.preflight is None else number
        return number

    def trial(self, number: int) -> Trial:
        """Return a trial itself, for an executor that trains it in this process."""
        return self.running[number].trial

    # What a running trial reports

    def receive(self, number: int, message: Message) -> Any:
        """Receive a message of a trial in another process; return the answer.

        An error of a `Question` is returned, for the trial to raise.
        """
        match message:
            case Progress(step, max_steps):
                return self.progress(number, step, max_steps)
            case Question(name, parameter):
                try:
                    return self.suggest(number, name, parameter)
                except StorageError:
                    raise
                except Exception as error:
                    return sendable(error)
            case Notice(text):
                return self.notice(number, text)
            case Noted(so_far):
                return self.note(number, so_far)
            case Reported():
                return self.report(number, message)
        assert_never(message)

    def progress(self, number: int, step: int, max_steps: int) -> None:
        """Show how far a trial is."""
        if step > 0:
            self._has_begun(number)
        self._session.listener.on_progress(self.running[number].trial, step, max_steps)

    def suggest(self, number: int, name: str, parameter: Parameter) -> object:
        """Return the value of a parameter that a trial asks for while it is built."""
        with self._ledger.talking():
            return self.running[number].trial.suggest(name, parameter)

    def notice(self, number: int, text: str) -> None:
        """Show a notice from a trial."""
        self._has_begun(number)
        self.announce(text)

    def checkpoint(self, number: int, step: int) -> None:
        """Show that a trial has written a checkpoint."""
        self._session.listener.on_checkpoint(self.running[number].trial, step)

    def note(self, number: int, so_far: TrialRecord) -> None:
        """Write the state of a trial that its checkpoints do not hold; it is on disk when this returns."""
        self._has_begun(number)
        so_far = so_far.going_on_from(self.running[number].so_far)  # it may not know its earlier reports yet
        self._remember(number, so_far)
        self._session.on_disk.note(so_far)

    def report(self, number: int, reported: Reported) -> Verdict:
        """Receive an evaluation of a trial in another process, and return what the trial does next."""
        self.record_report(number, reported)
        reason = self.reason_to_stop(number, reported)
        return self.next_action(number, reported) if reason is None else Verdict(stop=reason)

    @property
    def _is_time_changed(self) -> bool:
        return "timeout" in self._session.requests.now().settings

    def next_action(self, number: int, reported: Reported) -> Verdict:
        """Return what a trial does that has reported: as the user requests, or else as the rungs or the pruner say.

        In a search that is paused, a trial that would continue leaves; it is judged before, as it is not judged at this
        report when it has resumed. All processes of the trial learn of another time limit with the same report: those
        that have a limit agree after each step.
        """
        requested = self._session.follow_requests()
        said = self._next_action(number, reported, requested)
        return replace(said, seconds_left=self.seconds_left) if self._is_time_changed else said

    def _next_action(self, number: int, reported: Reported, requested: InEffect) -> Verdict:
        may_leave = not reported.is_last and reported.report.step > 0
        if may_leave and number in requested.stopped:
            return Verdict(stop=STOPPED_BY_HAND)
        said = self.verdict(number, reported)
        is_ending = said.prune or said.pause or said.stop is not None
        if may_leave and requested.is_paused and not is_ending:
            return Verdict(leave="the search is paused by hand")
        return said

    def record_report(self, number: int, reported: Reported) -> None:
        """Record and show an evaluation."""
        self._has_begun(number)
        running, so_far = self.running[number], reported.so_far
        if so_far.schedule != running.so_far.schedule:
            self._session.on_disk.note(so_far)
        self._remember(number, so_far)
        with self._ledger.talking():
            for value, resource in reported.new_values:
                running.trial.report(value, resource)
        self._session.listener.on_report(running.trial, reported.report)

    def verdict(self, number: int, reported: Reported) -> Verdict:
        """Return the verdict of the rungs, or else of the pruner, on a trial that has reported."""
        with self._ledger.talking():
            return self._decisions.verdict(self.running[number].trial, reported)

    def exhausted(self) -> str | None:
        """Return which limit of the study the running trials have exhausted together; None: none."""
        return self._limits.exhausted()

    def reason_to_stop(self, number: int, reported: Reported) -> str | None:
        """Return why a trial stops that has reported: a limit of the study, or the user; None if it continues."""
        requested = self._session.follow_requests()
        if reported.is_last or reported.report.step == 0:  # without a step, it would have no result
            return None
        return STOPPED_BY_HAND if number in requested.stopped else self.exhausted()

    def _has_begun(self, number: int) -> None:
        """Note that a trial has passed its preflight, if it had one."""
        if number == self._in_preflight:
            self._in_preflight = None

    def _remember(self, number: int, so_far: TrialRecord) -> None:
        running = self.running[number]
        running.so_far = self._session.records.running[number] = so_far
        running.trial.user_attrs = {**running.trial.user_attrs, **so_far.user_attrs}  # which listeners see

    # How a trial ends

    def ended(self, ended: Ended) -> TrialRecord:
        """Record a trial that has ended.

        Raises:
            TrialEndedSearch: the search ends with it.
            ValueError: its record says that it is running.
        """
        if ended.record.state is TrialState.RUNNING:
            raise ValueError(f"Trial {ended.record.number} has not ended: its record says that it is running.")
        running = self._leave(ended.record.number)
        try:
            record = self._session.on_disk.finish(replace(ended, record=ended.record.going_on_from(running.so_far)))
        except TrialEndedSearch as found:
            self._settle(running.trial, found.record, is_stored=not isinstance(found.cause, StorageError))
            raise
        self._settle(running.trial, record)
        return record

    def left(self, ended: Ended) -> None:
        """Record how a process has left its trial as the search ends; a trial that has not ended is left to `close`.

        An error that ends the search is kept as `error`, if there is none yet.
        """
        if ended.record.state.is_counted or ended.record.state is TrialState.PAUSED:
            try:
                self.ended(ended)
            except Exception as error:
                self.end_with(error)
        else:
            running = self.running[ended.record.number]
            running.so_far, running.where = ended.record.going_on_from(running.so_far), ended.where

    def stop_paused(self, number: int, verdict: Verdict) -> TrialRecord:
        """Record a trial that is stopped or pruned while no process trains it."""
        running = self.running[number]
        execution = self._session.local.execution(running.trial, running.assignment.others)
        return self.ended(Ended(execution.record_of_waiting(running.so_far, verdict)))

    def lost(self, number: int, loss: Loss) -> Ended | None:
        """Take a trial whose process has died; None if another process resumes it.

        Return how it ended if its retries are exhausted; the executor passes that on to `ended`. While the search ends,
        the trial is left to `close`.
        """
        if self.is_ending:
            return None
        running = self.running[number]
        self._losses[number] += loss.is_new
        if not loss.is_retried(self._losses[number], self._retries):
            return running.ended(TrialState.FAILED, f"its worker died: {loss.reason}")
        running.has_lost_process = True
        if loss.is_new:
            running.trial.begin_again()
            self.announce(f"trial {number} has lost its worker ({loss.reason}): it resumes in another one")
        if not loss.resumes_itself:
            remove_leftovers(self._session.study.folder / running.assignment.name)
            self._without_process.append(number)
        return None

    def leave_for_later(self, number: int, reason: str) -> None:
        """Let a trial that has left its process, not by its own fault, resume when the executor asks for it.

        Args:
            number: of the trial.
            reason: what has happened and what follows, in words that come after the number.
        """
        self._has_begun(number)
        running = self.running[number]
        running.trial.begin_again()
        running.assignment = replace(running.assignment, preflight=None)
        remove_leftovers(self._session.study.folder / running.assignment.name)
        self.announce(f"trial {number} {reason}")

    def resume(self, number: int) -> Assignment | None:
        """Return the assignment of a trial that was left for later; None if it cannot resume now."""
        if self.is_ending or (self.is_paused and not self._is_closing):
            return None
        return replace(self.running[number].assignment, seconds=self.seconds_left)

    def adopt(self, number: int, donor: Assignment, arguments: Mapping[str, object]) -> Assignment:
        """Let a trial resume from a checkpoint of another one, with other arguments: population-based training.

        Raises:
            StudyError: it cannot resume with these arguments.
        """
        running = self.running[number]
        known = self.running[donor.number].so_far.params if donor.number in self.running else {}
        known = {**donor.params, **known}
        execution = self._session.local.execution(running.trial, running.assignment.others)
        execution.check_changes(donor.arguments, arguments)
        running.assignment = replace(
            running.assignment,
            arguments=dict(arguments),
            params={**known, **arguments},
            suggested_by_space=donor.suggested_by_space | arguments.keys(),
        )
        running.trial.params.values_by_name.update(arguments)
        changed = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value != known.get(name))
        self.announce(f"trial {number} resumes from trial {donor.number}{f', with {changed}' if changed else ''}")
        return running.assignment

    def close(self) -> None:
        """Record the trials that have not ended as interrupted: they can be resumed.

        The executor calls it last, whatever has ended the search, and raises `error` itself.
        """
        cause = getattr(self.error, "cause", self.error)
        reason = self.interruption.reason if isinstance(cause, KeyboardInterrupt) else "the search ended"
        is_stored = not isinstance(cause, StorageError)
        errors: list[Exception] = []
        for number in list(self.running):
            running = self._leave(number)
            try:
                record = self._session.on_disk.finish(running.ended(TrialState.INTERRUPTED, reason))
                self._settle(running.trial, record, is_stored)
            except Exception as error:  # for example from a listener: the other trials must still be recorded
                errors.append(error)
        if errors and self.error is None:
            raise errors[0]
        for each in errors:
            logger.warning("While the search was ending: %r", each)

    def _leave(self, number: int) -> RunningTrial:
        """Take a trial from those that run."""
        self._has_begun(number)
        self._session.records.running.pop(number, None)
        return self.running.pop(number)

    def _settle(self, trial: OptunaTrial, record: TrialRecord, is_stored: bool = True) -> None:
        """Record the end of a trial in the ledger, unless the storage is unreachable, and in the limits."""
        self._look_again = -math.inf
        with self._session.records.locked():
            if is_stored:
                with self._ledger.talking():
                    self._ledger.end(trial, record)
            self._session.settle(record)
