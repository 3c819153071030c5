"""An executor of threads: what `hpsearch.executors` says of an executor, as code."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from hpsearch.coordinator.coordinator import Coordinator
from hpsearch.coordinator.lost_worker import Loss
from hpsearch.system.interruption import Interruption
from hpsearch.trial.assignment import Assignment
from hpsearch.trial.ending import Ended
from hpsearch.trial.messages import Message, Progress
from hpsearch.trial.remote_trial import Abandoned, Line

_SECONDS_BETWEEN_LOOKS = 0.5


class ThreadLine(Line):
    """Leads from the thread of a trial to the thread of the search."""

    def __init__(self, number: int, messages: queue.SimpleQueue[Any]) -> None:
        self._number, self._messages = number, messages
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_abandoned, self.interruption = False, Interruption()

    def ask(self, message: Message) -> Any:
        self._messages.put((self._number, message))
        answer = self._answers.get()
        if self.is_abandoned:
            raise Abandoned
        return answer

    def look(self) -> None:
        if self.is_abandoned:
            raise Abandoned
        self._messages.put((self._number, Progress(self.step, self.max_steps)))

    def answer(self, answer: Any) -> None:
        self._answers.put(answer)

    def abandon(self) -> None:
        self.is_abandoned = True
        self._answers.put(None)


class ThreadedSearch:
    """Trains the trials of a search in threads.

    Args:
        coordinator: gives the trials, and receives their reports.
        train: trains one, as `train_remotely` does; an error that it raises is the death of its thread.
        slots: the number of threads.
    """

    def __init__(self, coordinator: Coordinator, train: Callable[[Assignment, Line], Ended], slots: int) -> None:
        self._coordinator, self._train, self._slots = coordinator, train, slots
        self._messages: queue.SimpleQueue[tuple[int, Message | Ended | Loss]] = queue.SimpleQueue()
        self._lines: dict[int, ThreadLine] = {}

    def run(self) -> None:
        """Run trials until there are none left; an error that ends the search is raised."""
        coordinator = self._coordinator
        try:
            while not coordinator.is_ending:
                while len(self._lines) < self._slots and (assignment := coordinator.next()) is not None:
                    self._start(assignment)
                if coordinator.is_over:
                    break
                self._take()
            if coordinator.interruption.signal:
                coordinator.end_with(KeyboardInterrupt())
                for line in self._lines.values():
                    line.interruption.note(coordinator.interruption.signal)
                while self._lines and not coordinator.interruption.is_overdue:
                    self._take()
        except BaseException as error:
            coordinator.end_with(error)
        finally:
            try:
                self._abandon()
            finally:
                coordinator.close()
        if coordinator.error is not None:
            raise coordinator.error

    def _start(self, assignment: Assignment) -> None:
        line = self._lines[assignment.number] = ThreadLine(assignment.number, self._messages)

        def work() -> None:
            try:
                self._messages.put((assignment.number, self._train(assignment, line)))
            except BaseException as error:
                self._messages.put((assignment.number, Loss(repr(error))))

        threading.Thread(target=work, daemon=True).start()

    def _take(self) -> None:
        try:
            number, message = self._messages.get(timeout=_SECONDS_BETWEEN_LOOKS)
        except queue.Empty:
            return
        if isinstance(message, Loss):
            del self._lines[number]
            lost = self._coordinator.lost(number, message)
            if lost is not None:
                self._coordinator.ended(lost)
        elif isinstance(message, Ended):
            del self._lines[number]
            self._coordinator.ended(message)
        else:
            answer = self._coordinator.receive(number, message)
            if not isinstance(message, Progress):
                self._lines[number].answer(answer)

    def _abandon(self) -> None:
        for line in self._lines.values():
            line.abandon()
        while self._lines:
            number, message = self._messages.get()
            if isinstance(message, Ended):
                self._coordinator.left(message)
            if isinstance(message, Ended | Loss):
                del self._lines[number]
