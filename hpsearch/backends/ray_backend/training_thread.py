"""A trial in a thread of its worker: it trains until it has something to tell, and then waits to be told."""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from dataclasses import replace
from typing import Any

from ray import cloudpickle

from ...errors import HpsearchError, StorageError
from ...search.assignment import AssignedTrial, Assignment
from ...search.budgets import SearchBudget, TrialBudget
from ...search.ending import Ended, run_to_end
from ...search.execution import Execution, Searchable
from ...search.folder import write_record
from ...search.listener import SearchListener
from ...search.parameters import Parameter
from ...search.ranks import OneProcess
from ...search.reporting import comparable_resource
from ...search.study import Study
from ...search.trial import Report, Trial, TrialState, Verdict
from .events import Progress, Question, Reported
from .run_folders import RunFolders


class Abandoned(BaseException):
    """Raised inside a trial that goes on another time, or elsewhere."""


class TrainingThread:
    """Runs one trial in a thread, which waits after every event until it is told to go on.

    Its methods are called by the worker's main thread; `tell` and `save` while the trial waits.

    Args:
        recipe: the trainer that trials are made from.
        study: the settings.
        told: the trial.
        folders: where its checkpoints are to be kept.
    """

    def __init__(self, recipe: Searchable, study: Study, told: Assignment, folders: RunFolders) -> None:
        self._line = _Line(told.name, folders)
        self._waits = False
        self._answer: Any = Verdict()
        self._unread: Progress | Reported | Question | Ended | None = None
        self._thread = threading.Thread(target=self._run, args=(recipe, study, told), name="trial", daemon=True)
        self._thread.start()

    def next_event(self, seconds: float) -> Progress | Reported | Question | Ended:
        """Let the trial go on, and return what it tells next; after `seconds` without anything, how far it is."""
        unread, self._unread = self._unread, None
        if unread is not None:
            return unread
        if self._waits:
            self._line.answers.put(self._answer)
        self._waits, self._answer = False, Verdict()
        try:
            event: Progress | Reported | Question | Ended = self._line.events.get(timeout=seconds)
        except queue.Empty:
            if not self._thread.is_alive() and self._line.events.empty():
                raise RuntimeError(f"The trial's thread has ended: {self._line.error!r}") from self._line.error
            return Progress(self._line.step, self._line.max_steps)
        self._waits = not isinstance(event, Ended)
        return event

    def tell(self, answer: Any) -> None:
        """Give the answer that the trial waits for: the `Verdict` on its report, or the value of a parameter."""
        self._answer = answer

    def save(self) -> int | None:
        """Let a trial that waits at a report write a checkpoint, and return its update; None if it had nothing to wait.

        It waits again after it.
        """
        if not self._waits:
            return None
        self._line.answers.put(Verdict(save=True))
        event = self._line.events.get()
        if isinstance(event, int):
            return event
        self._unread = event  # it went on without a checkpoint: an evaluation before the first update has none
        self._waits = not isinstance(event, Ended)
        return None

    def leave(self) -> None:
        """End the thread; the trial goes on from its last checkpoint another time."""
        self._line.is_abandoned = True
        self._line.answers.put(None)
        self._waits = False
        self._thread.join()
        self._line.leave()

    def _run(self, recipe: Searchable, study: Study, told: Assignment) -> None:
        try:
            self._train(recipe, study, told)
        except BaseException as error:  # the main thread finds it when it asks for the next event
            self._line.error = error

    def _train(self, recipe: Searchable, study: Study, told: Assignment) -> None:
        trial = _WaitingTrial(told, self._line)
        execution = Execution(
            recipe,
            study,
            trial,
            told.others,
            TrialBudget(study, SearchBudget(study, told.seconds), told.others),
            OneProcess(),
            _Teller(trial, self._line),
            on_fallback=lambda record: write_record(study.folder, record),
        )
        trial.execution = execution
        ended = run_to_end(execution, execution.run)
        if ended.record.state.is_counted:
            ended = self._line.kept(ended)
        self._line.events.put(replace(ended, cause=_sendable(ended.cause)))


class _Line:
    """Between the two threads of a worker."""

    def __init__(self, run: str, folders: RunFolders) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_abandoned = False
        self.step, self.max_steps = 0, 0
        self.error: BaseException | None = None
        self._run, self._folders, self._checked = run, folders, time.monotonic()

    def ask(self, event: Any) -> Any:
        """Tell of an event, and wait for the answer."""
        self.check()
        self.events.put(event)
        answer = self.answers.get()
        self.check()
        return answer

    def check(self) -> None:
        """Leave the trial if it has been abandoned, here or by the search that it is of."""
        now = time.monotonic()
        if not self.is_abandoned and now > self._checked + self._folders.seconds_between_looks:
            self._checked = now
            if not self._is_wanted():
                raise StorageError(f"Another search has taken over {self._run}: this one has signed out, or seems to.")
        if self.is_abandoned:
            raise Abandoned

    def keep(self) -> None:
        """Keep the checkpoints that there are now.

        Raises:
            StorageError: they cannot be.
        """
        self.check()
        try:
            self._folders.keep(self._run)
        except Exception as error:
            raise StorageError(f"The checkpoints of {self._run} cannot be kept: {error}") from error

    def leave(self) -> None:
        """Delete what only this worker needs."""
        with contextlib.suppress(OSError):
            self._folders.leave(self._run)

    def kept(self, ended: Ended) -> Ended:
        """Keep what an ended trial has left; if that cannot be, it has not ended, and goes on another time."""
        try:
            self.keep()
            self._folders.leave(self._run)
        except (StorageError, Abandoned) as error:
            return Ended(replace(ended.record, state=TrialState.INTERRUPTED, reason=str(error)), error)
        return ended

    def _is_wanted(self) -> bool:
        try:
            return self._folders.is_wanted(self._run)
        except Exception:  # a storage that does not answer now may do so at the next look
            return True


class _WaitingTrial(AssignedTrial):
    """The trial as the thread sees it: what it reports and asks goes to the search, which answers."""

    execution: Execution

    def __init__(self, told: Assignment, line: _Line) -> None:
        super().__init__(told)
        self._line = line
        self._told: list[tuple[float, int]] = []
        self._answer = Verdict()
        self._is_at_first_update = True

    def report(self, value: float, resource: int) -> None:
        """Remember it for the next event."""
        self._told.append((value, resource))

    def show(self, report: Report) -> None:
        """Tell the search of a report, and wait for what it makes of it."""
        told, self._told = tuple(self._told), []
        is_comparable = bool(told) and told[-1][1] == comparable_resource(report)
        so_far = self.execution.record(TrialState.RUNNING)
        self._answer = self._line.ask(
            Reported(report, told, is_comparable, 0 < self._line.max_steps <= self._line.step, so_far)
        )

    def verdict(self, may_prune: bool) -> Verdict:
        """Return what the search said; without anything to compare it does not prune."""
        said = self._answer
        return said if may_prune or not said.prune else Verdict()

    def begin(self) -> None:
        """Tell the search, at the first update, that the trial has gone on with other parameters than before."""
        if not self._is_at_first_update:
            return
        self._is_at_first_update = False
        so_far = self.execution.record(TrialState.RUNNING)
        if so_far.schedule and so_far.schedule != (self.earlier.schedule if self.earlier is not None else ()):
            self._line.ask(Progress(self._line.step, self._line.max_steps, so_far))

    def grants_checkpoint(self) -> bool:
        """Tell whether the search waits for a checkpoint, which it has now: it wants one only."""
        is_wanted, self._answer = self._answer.save, Verdict()
        return is_wanted

    def _choose(self, name: str, parameter: Parameter) -> Any:
        value = self._line.ask(Question(name, parameter))
        if isinstance(value, Exception):
            raise value
        return value


class _Teller(SearchListener):
    """Tells the search of what happens in a trial, and lets it wait."""

    def __init__(self, trial: _WaitingTrial, line: _Line) -> None:
        self._trial, self._line = trial, line

    def on_report(self, trial: Trial, report: Report) -> None:
        """Tell of the report, and wait."""
        self._trial.show(report)

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Note how far the trial is."""
        self._line.step, self._line.max_steps = step, max_steps
        self._line.check()
        self._trial.begin()

    def on_checkpoint(self, trial: Trial, step: int) -> None:
        """Keep the checkpoint; if the search waits for it, tell of it, and wait."""
        self._line.keep()
        if self._trial.grants_checkpoint():
            self._line.ask(step)


def _sendable(error: BaseException | None) -> BaseException | None:
    """Return an error that another process can load; one that it cannot as its text."""
    if error is None:
        return None
    with contextlib.suppress(Exception):
        sent = cloudpickle.dumps(error)  # type: ignore[no-untyped-call]
        if isinstance(pickle.loads(sent), BaseException):  # noqa: S301 - our own bytes
            return error
    return HpsearchError(f"{type(error).__name__}: {error}")
