"""Dispatches trials to whatever trains them, this process or others, and records what they report."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...errors import StorageError
from ...interruption import Interruption
from ...search.assignment import Assignment
from ...search.distant_trial import sendable
from ...search.ending import Ended, TrialEndedSearch
from ...search.lost_worker import Loss
from ...search.messages import Message, Noted, Notice, Progress, Question, Reported
from ...search.runner import TrialRunner
from ...search.trial import TrialRecord, TrialState, Verdict
from .proposer import Proposer
from .quiet import quiet_optuna
from .trial import OptunaTrial

if TYPE_CHECKING:
    from .backend import OptunaBackend

logger = logging.getLogger(__name__)
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass
class LiveTrial:
    """A trial that a process is at, or will be as soon as there is one.

    Attributes:
        trial: as the storage knows it.
        told: what its process was told.
        so_far: its record, as far as its process has told.
        where: it was trained, as its process has told when it left it.
        has_lost_process: whether a process that has trained it since it was chosen has died.
    """

    trial: OptunaTrial
    told: Assignment
    so_far: TrialRecord
    where: str = ""
    has_lost_process: bool = False

    def ended(self, state: TrialState, reason: str, cause: BaseException | None = None) -> Ended:
        """Return how the trial ended, by something else than itself."""
        return Ended(replace(self.so_far, state=state, reason=reason), cause, self.where)


class Dispatch:
    """Chooses a trial for each process that is free, and records what it reports.

    Args:
        runner: records the trials.
        engine: keeps them in its storage, and chooses parameters.
        proposer: chooses parameters in place of the engine; None: the engine does.
        retries: the number of times that a trial is resumed after its process has died.

    Attributes:
        live: the trials that have begun and not ended, by number.
        is_over: no further trial will begin, and none is under way.
        has_no_more: no trial could begin when one was last asked for.
        error: what ends the search; None while nothing does.
    """

    def __init__(
        self, runner: TrialRunner, engine: OptunaBackend, proposer: Proposer | None = None, retries: int = 3
    ) -> None:
        self._runner, self._engine, self._proposer, self._retries = runner, engine, proposer, retries
        self._without_process: list[LiveTrial] = []  # they have begun, and the next free process takes them
        self._losses: Counter[int] = Counter()  # by number: a trial that pauses and resumes does not get new retries
        self._is_closing = False
        self._look_again = -math.inf
        self._in_preflight: int | None = None  # the trial for whose preflight the others wait
        self.live: dict[int, LiveTrial] = {}
        self.is_over = self.has_no_more = False
        self.error: BaseException | None = None

    @property
    def interruption(self) -> Interruption:
        """Notes a signal that ends the search."""
        return self._runner.interruption

    def end_with(self, error: BaseException) -> None:
        """End the search with an error, unless another one has ended it before."""
        self.error = self.error or error

    def next(self) -> LiveTrial | None:
        """Return a trial that a process may train now; None if there is none now, or any more (`is_over`).

        Raises:
            TrialEndedSearch: the study was found to be mistaken in it.
        """
        if self._without_process:
            return self._without_process.pop(0)
        if self._is_closing:
            if not self.live and not self.is_over:
                self._look_at_the_last()
                self.is_over = True
            return None
        if time.monotonic() < self._look_again or self._in_preflight is not None:
            return None
        while True:
            with self._engine.deciding(self._runner) as trials:
                chosen = trials.next(self._runner, self._proposer)
            self.has_no_more = not isinstance(chosen, OptunaTrial)
            if isinstance(chosen, OptunaTrial):
                live = self._begin(chosen)
                if live is not None:
                    self.live[live.told.number] = live
                    self._runner.under_way[live.told.number] = live.so_far
                    self._in_preflight = None if live.told.preflight is None else live.told.number
                    return live
                if self.interruption.signal:
                    return None
                continue
            if chosen is None:
                self._is_closing = True
                self.is_over = not self.live
                if trials.ending is not None:
                    self._runner.announce(trials.ending)
            self._look_again = time.monotonic() + _SECONDS_BETWEEN_LOOKS
            return None

    def _look_at_the_last(self) -> None:
        """Decide once more if a budget has ended the search, as the last trials may just have paused."""
        if self._runner.used_up() is not None:
            with self._engine.deciding(self._runner) as trials:
                trials.next(self._runner)

    def assignment(self, live: LiveTrial) -> Assignment:
        """Return what to send to the process that takes a trial now: the time that is left now, too."""
        return replace(live.told, seconds=self.seconds_left)

    @property
    def seconds_left(self) -> float | None:
        """What is left of the search's time; None if there is no limit."""
        return self._runner.seconds_left

    def hear(self, live: LiveTrial, message: Message) -> Any:
        """Receive a message of a trial; return the answer to a question."""
        has_begun = message.step > 0 if isinstance(message, Progress) else not isinstance(message, Question)
        if has_begun and live.told.number == self._in_preflight:
            self._in_preflight = None
        if isinstance(message, Progress):
            self._runner.listener.on_progress(live.trial, message.step, message.max_steps)
        elif isinstance(message, Question):
            try:
                with self._engine.talking():
                    return live.trial.suggest(message.name, message.parameter)
            except StorageError:
                raise
            except Exception as error:
                return sendable(error)
        elif isinstance(message, Notice):
            self.announce(message.text)
        elif isinstance(message, Noted):
            so_far = message.so_far.going_on_from(live.so_far)  # it may not know its earlier reports yet
            self._note(live, so_far)
            self._runner.note(so_far)
        else:
            if message.so_far.schedule != live.so_far.schedule:
                self._runner.note(message.so_far)
            self._note(live, message.so_far)
            with self._engine.talking():
                for value, resource in message.new_values:
                    live.trial.report(value, resource)
            self._runner.listener.on_report(live.trial, message.report)
        return None

    def answer(self, live: LiveTrial, message: Reported) -> Verdict:
        """Return what a trial of another process does that has reported: by the budgets of the study, or by `verdict`.

        A trial of this process looks at the budgets itself, after each step.
        """
        stop = self.reason_to_stop(message)
        return self.verdict(live, message) if stop is None else Verdict(stop=stop)

    def verdict(self, live: LiveTrial, message: Reported) -> Verdict:
        """Ask the rungs, or else the pruner, about a trial that has reported."""
        with self._engine.talking():
            return live.trial.verdict(message.so_far, message.is_comparable, message.is_last)

    def used_up(self) -> str | None:
        """Return which budget of the study the trials under way have used up together; None: none."""
        return self._runner.used_up()

    def reason_to_stop(self, message: Reported) -> str | None:
        """Return the budget of the study for which a trial stops that has reported; None if it continues."""
        is_trained = message.report.step > 0  # else it would have no result
        return self.used_up() if is_trained and not message.is_last else None

    def announce(self, notice: str) -> None:
        """Say something about the search while it runs."""
        self._runner.announce(notice)

    def give_back(self, live: LiveTrial) -> None:
        """Take back a trial that no process has taken; it is the next one."""
        self._without_process.insert(0, live)

    def lost(self, live: LiveTrial, loss: Loss) -> bool:
        """Take a trial whose process has died; return whether another process resumes it, else `finish` it."""
        number = live.told.number
        self._losses[number] += loss.is_new
        if not loss.is_retried(self._losses[number], self._retries):
            return False
        live.has_lost_process = True
        if loss.is_new:
            live.trial.begin_again()
            self.announce(f"trial {live.trial.number} has lost its worker ({loss.reason}): it resumes in another one")
        if not loss.resumes_itself:
            self._without_process.append(live)
        return True

    def finish(self, live: LiveTrial, ended: Ended) -> TrialRecord:
        """Record a trial that has ended.

        Raises:
            TrialEndedSearch: the search ends with it.
        """
        self._leave(live)
        try:
            record = self._runner.finish(replace(ended, record=ended.record.going_on_from(live.so_far)))
        except TrialEndedSearch as found:
            self._settle(live, found.record, is_stored=not isinstance(found.cause, StorageError))
            raise
        self._settle(live, record)
        return record

    def finish_waiting(self, live: LiveTrial, verdict: Any) -> TrialRecord:
        """Record a trial that is stopped while no process is at it."""
        execution = self._runner.execution(live.trial, live.told.others)
        return self.finish(live, Ended(execution.record_of_waiting(live.so_far, verdict)))

    def interrupt(self, reason: str) -> None:
        """Record the trials that have not ended as interrupted: they can be resumed."""
        is_stored = not isinstance(getattr(self.error, "cause", self.error), StorageError)
        errors: list[Exception] = []
        for live in list(self.live.values()):
            self._leave(live)
            try:
                self._settle(live, self._runner.finish(live.ended(TrialState.INTERRUPTED, reason)), is_stored)
            except Exception as error:  # of a listener, say: the others are to be recorded all the same
                errors.append(error)
        if errors and self.error is None:
            raise errors[0]
        for each in errors:
            logger.warning("While the search was ending: %r", each)

    def check_changes(self, live: LiveTrial, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Check that a trial can resume from a checkpoint that was trained with other arguments.

        Raises:
            StudyError: it cannot.
        """
        self._runner.execution(live.trial, live.told.others).check_changes(before, after)

    def _begin(self, trial: OptunaTrial) -> LiveTrial | None:
        """Prepare a trial; None if it has ended before it could be trained."""
        try:
            with quiet_optuna():
                told = self._runner.begin(trial)
        except TrialEndedSearch as ended:
            is_stored = not isinstance(ended.cause, StorageError)
            self._engine.settle(trial, ended.record, self._runner, is_stored)
            raise
        if isinstance(told, TrialRecord):
            self._engine.settle(trial, told, self._runner)
            if self._proposer is not None:
                self._proposer.end(told, {})
            return None
        if told.earlier is not None:
            return LiveTrial(trial, told, replace(told.earlier, state=TrialState.RUNNING, reason=None))
        params = {**trial.params.values_by_name, **told.arguments}
        begun = TrialRecord(told.number, told.name, TrialState.RUNNING, params, dict(told.arguments))
        return LiveTrial(trial, told, begun)

    def _note(self, live: LiveTrial, so_far: TrialRecord) -> None:
        """Remember how far a trial is."""
        live.so_far = so_far
        self._runner.under_way[live.told.number] = so_far

    def _leave(self, live: LiveTrial) -> None:
        """Take a trial from those that are under way."""
        self._in_preflight = None if live.told.number == self._in_preflight else self._in_preflight
        del self.live[live.told.number]
        self._runner.under_way.pop(live.told.number, None)

    def _settle(self, live: LiveTrial, record: TrialRecord, is_stored: bool = True) -> None:
        self._look_again = -math.inf
        self._engine.settle(live.trial, record, self._runner, is_stored)
