"""A trial in a thread of its worker: it trains until it has something to report, and then waits for the answer."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import replace
from typing import Any

from ...errors import StorageError
from ...search.process_group import Ranks
from ...search.study import Study
from ...search.trial import Verdict
from ...search.trial_record import TrialState
from ...system.interruption import Interruption
from ...trial.assignment import Assignment
from ...trial.ending import Ended
from ...trial.messages import Message, Progress, Saved
from ...trial.remote_trial import Abandoned, Line, train_remotely
from ...trial.searchable import Searchable
from .run_folders import RunFolders


class TrainingThread:
    """Runs one trial in a thread, which waits after every event until it may continue.

    Its methods are called by the worker's main thread; `tell` and `save` while the trial waits.

    Args:
        recipe: the trainer that trials are made from.
        study: the settings.
        assignment: the trial.
        folders: where its checkpoints are to be kept.
        ranks: the processes that train it together, of which this is the main one; None: this one alone.
    """

    def __init__(
        self,
        recipe: Searchable,
        study: Study,
        assignment: Assignment,
        folders: RunFolders,
        ranks: Ranks | None = None,
    ) -> None:
        self._line = _Line(assignment.name, folders)
        self._ranks = ranks
        self._waits = False
        self._answer: object = Verdict()
        self._unread: Message | Ended | None = None
        self._thread = threading.Thread(target=self._run, args=(recipe, study, assignment), name="trial", daemon=True)
        self._thread.start()

    @property
    def seconds_of_silence(self) -> float:
        """The time since the trial has done a step or reported, or has received an answer."""
        return time.monotonic() - self._line.active_at

    def next_event(self, seconds: float) -> Message | Ended:
        """Let the trial continue, and return what it reports next; after `seconds` without anything, how far it is."""
        unread, self._unread = self._unread, None
        if unread is not None:
            return unread
        if self._waits:
            self._line.answers.put(self._answer)
        self._waits, self._answer = False, Verdict()
        try:
            event: Message | Ended = self._line.events.get(timeout=seconds)
        except queue.Empty:
            if not self._thread.is_alive() and self._line.events.empty():
                raise RuntimeError(f"The trial's thread has ended: {self._line.error!r}") from self._line.error
            return Progress(self._line.step, self._line.max_steps)
        self._waits = not isinstance(event, Ended)
        return event

    def tell(self, answer: object) -> None:
        """Give the answer that the trial waits for: the `Verdict` on its report, or the value of a parameter."""
        self._answer = answer

    def save(self) -> int | None:
        """Let a trial with an unanswered report write a checkpoint, and return its step; None if none is due.

        It waits again after it.
        """
        if not self._waits:
            return None
        self._line.answers.put(Verdict(save=True))
        event = self._line.events.get()
        if isinstance(event, Saved):
            return event.step
        self._unread = event  # it continued without a checkpoint: an evaluation before the first step has none
        self._waits = not isinstance(event, Ended)
        return None

    def finish_step(self, number: int) -> None:
        """Let the trial end with a checkpoint after the step, because of a signal."""
        self._line.interruption.note(number)

    def leave(self) -> None:
        """End the thread; the trial resumes from its last checkpoint another time."""
        self._line.is_abandoned = True
        self._line.answers.put(None)
        self._waits = False
        self._thread.join()
        self._line.leave()

    def _run(self, recipe: Searchable, study: Study, assignment: Assignment) -> None:
        try:
            self._train(recipe, study, assignment)
        except BaseException as error:  # the main thread finds it when it asks for the next event
            self._line.error = error

    def _train(self, recipe: Searchable, study: Study, assignment: Assignment) -> None:
        ended = train_remotely(recipe, study, assignment, self._line, self._ranks)
        if ended.record.state.is_counted:
            ended = self._line.kept(ended)
        self._line.events.put(ended)


class _Line(Line):
    """Between the two threads of a worker."""

    def __init__(self, run: str, folders: RunFolders) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.interruption = Interruption()
        self.is_abandoned = False
        self.error: BaseException | None = None
        self._run, self._folders = run, folders
        self._checked = self.active_at = time.monotonic()

    def ask(self, event: object) -> Any:
        """Send an event, and wait for the answer."""
        self.look()
        self.events.put(event)
        answer = self.answers.get()
        self.look()
        return answer

    def look(self) -> None:
        """Leave the trial if it has been abandoned, here or by the search that it is of."""
        now = self.active_at = time.monotonic()
        if not self.is_abandoned and now > self._checked + self._folders.seconds_between_looks:
            self._checked = now
            if not self._is_wanted():
                raise StorageError(f"Another search has taken over {self._run}: this search has ended, or seems dead.")
        if self.is_abandoned:
            raise Abandoned

    def keep(self) -> None:
        """Keep the checkpoints that there are now.

        Raises:
            StorageError: they cannot be.
        """
        self.look()
        try:
            self._folders.keep(self._run)
        except Exception as error:
            raise StorageError(f"The checkpoints of {self._run} cannot be kept: {error}") from error

    def leave(self) -> None:
        """Delete what only this worker needs."""
        with contextlib.suppress(OSError):
            self._folders.leave(self._run)

    def kept(self, ended: Ended) -> Ended:
        """Keep what an ended trial has left; if that cannot be, it has not ended, and resumes another time."""
        try:
            self.keep()
            self._folders.leave(self._run)
        except (StorageError, Abandoned) as error:
            record = replace(ended.record, state=TrialState.INTERRUPTED, reason=str(error))
            return replace(ended, record=record, cause=error)
        return ended

    def _is_wanted(self) -> bool:
        try:
            return self._folders.is_wanted(self._run)
        except Exception:  # a storage that does not answer now may do so at the next look
            return True
