"""The workers of a search: starts, replaces and ends them, and receives their messages."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from ...errors import StudyError
from ...system.machine import WORKER, memory_of
from ...trial.assignment import Assignment
from ...trial.ending import Ended
from ...trial.messages import Message
from .device_slots import Slot
from .payload import Payload
from .process_settings import ProcessSettings
from .worker import Abandon, Finish, Job, Ready, Unusable, receive, send
from .worker_process import WorkerProcess, is_server_ready

_SECONDS_TO_END, _SECONDS_TO_RETIRE = 2.0, 10.0
# A killed process releases all its memory of a GPU before it ends.
_SECONDS_TO_DIE = 30.0
_MOST_FAILED_STARTS = 3
_SECONDS_BETWEEN_STARTS = 0.05
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lost:
    """The process of a worker has ended."""

    reason: str


class Worker:
    """A process that trains trials.

    Args:
        number, slot: see below.
        payload: the trainer and the settings.
        process: that was started already; None: start one.

    Attributes:
        number: of its place among the workers.
        slot: the part of the machine that it may use.
        trials: the number of trials that it has been given.
        is_ready: whether it has loaded the trainer and has no trial.
        is_forked_here: whether its process was started already, so it was forked from the program.

    Raises:
        OSError, EOFError: the process cannot be started.
    """

    def __init__(self, number: int, slot: Slot, payload: Payload, process: WorkerProcess | None = None) -> None:
        self.number, self.slot, self.trials, self.is_ready = number, slot, 0, False
        self.is_forked_here = process is not None
        self._process = process or WorkerProcess()
        self.connection, self.sentinel = self._process.connection, self._process.sentinel
        self.send(Job(f"{WORKER} {number}", slot, payload, ProcessSettings.here()))

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def memory(self) -> int:
        """Its resident memory in bytes; 0 if it has ended."""
        return memory_of(self.pid)

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self._process.exitcode is not None

    def send(self, message: object) -> bool:
        """Send a message; return False if the process has ended, which `receive` reports too."""
        try:
            send(self.connection, message)
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """Return its message, or `Lost`."""
        if self.is_over:  # its children may still hold its end of the connection, and messages may be left in it
            self._end_group()
        try:
            if self.connection.poll() or not self.is_over:
                return receive(self.connection)
        except (EOFError, OSError):
            self._process.join(_SECONDS_TO_END)
        return Lost(_end_of(self._process.exitcode))

    def end(self, seconds: float = 0.0) -> None:
        """End the process, by force after this many seconds; leave it if the system cannot end it."""
        if seconds:
            self._process.join(seconds)
        self._end_group()
        self._process.kill()
        self._process.join(_SECONDS_TO_DIE)
        if not self.is_over:
            logger.warning("Worker %d (process %d) cannot be ended.", self.number, self.pid)
        self._process.close()

    def _end_group(self) -> None:
        """End the process and those that it has started, where the system has process groups."""
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self.pid, signal.SIGKILL)


class Workers:
    """The workers of a search.

    Args:
        slots: the part of the machine that each of them may use.
        payload: the trainer and the settings.
        most_trials: a worker is replaced after this number of trials; None: never for that reason.
        most_memory: a worker is replaced after a trial that leaves it with more bytes.
        first: a process for the first worker, which was started already; None: it is started like the others.

    Attributes:
        seconds_to_first: how long it took from `start` until the first worker was ready; None while none is.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        payload: Payload,
        most_trials: int | None = None,
        most_memory: float | None = None,
        first: WorkerProcess | None = None,
    ) -> None:
        self._first = first
        self._later: list[int] = []  # the numbers of those that are started when the fork server is ready
        self._started_at = math.inf
        self.seconds_to_first: float | None = None
        self._payload, self._most_trials, self._most_memory = payload, most_trials, most_memory
        self._slots = slots
        self._failed_starts: Counter[int] = Counter()  # consecutive ones, by number
        self._has_begun = False  # whether any has loaded the trainer
        self._has_warned = False
        self._workers: dict[int, Worker] = {}  # by number
        self._retired: dict[Worker, float] = {}  # since when

    def start(self) -> None:
        """Start the workers; `wait` notices when each is ready, and starts those that must wait for the fork server."""
        self._started_at = time.monotonic()
        numbers = list(range(len(self._slots)))
        self._later = numbers[1:] if self._first is not None else []
        for number in numbers[: len(numbers) - len(self._later)]:
            self._workers[number] = self._started(number)

    def ready(self) -> list[Worker]:
        """Return the workers without a trial."""
        return [each for each in self._workers.values() if each.is_ready and not each.is_over]

    def train(self, worker: Worker, assignment: Assignment) -> bool:
        """Give a trial to a free worker; return False if the worker has died."""
        if not worker.send(assignment):
            return False
        worker.is_ready = False
        worker.trials += 1
        return True

    def wait(self, seconds: float) -> Iterator[tuple[Worker, Message | Ended | Lost]]:
        """Wait for messages about trials; yield each worker with its message, or with `Lost`.

        Raises:
            StudyError: no worker can load the trainer, or none can be started.
        """
        latest = time.monotonic() - _SECONDS_TO_RETIRE
        for worker in [each for each, since in self._retired.items() if each.is_over or since < latest]:
            del self._retired[worker]
            worker.end()
        while self._later and is_server_ready():
            self._start_again(self._later.pop(0))
        seconds = min(seconds, _SECONDS_BETWEEN_STARTS) if self._later else seconds
        for worker in _with_news(list(self._workers.values()), seconds):
            message = worker.receive()
            if isinstance(message, Ready):
                worker.is_ready = self._has_begun = True
                if self.seconds_to_first is None:
                    self.seconds_to_first = time.monotonic() - self._started_at
                    logger.info("First worker ready after %.1f s.", self.seconds_to_first)
                self._failed_starts[worker.number] = 0
            elif isinstance(message, Unusable) and (self._has_begun or worker.is_forked_here):
                # Others could load it: perhaps memory was short. Or a module of the program cannot be imported twice.
                self._replace(worker, message.reason)
            elif isinstance(message, Unusable):
                raise StudyError(
                    f"The trainer cannot be loaded in a worker: {message.reason}. Its functions, classes and data must "
                    "be importable in another process of this machine."
                )
            elif isinstance(message, Lost):
                self._replace(worker, message.reason)
                if not worker.is_ready and worker.trials:
                    yield worker, message
            else:
                yield worker, message

    def release(self, worker: Worker, has_failed: bool = False) -> None:
        """Mark a worker as ready after its trial, or replace it if it has reached a limit.

        It is replaced after a trial that failed on a GPU, too: the error may have broken the state of CUDA in it.
        """
        is_suspect = has_failed and worker.slot.device is not None
        is_exhausted = self._most_trials is not None and worker.trials >= self._most_trials
        memory = 0 if self._most_memory is None else worker.memory
        is_too_large = self._most_memory is not None and memory > self._most_memory
        if is_suspect:  # end it immediately: the next worker needs its memory of the GPU
            self._replace(worker)
        elif is_exhausted or is_too_large:
            if is_too_large and not is_exhausted and worker.trials == 1:
                self._warn_of_size(memory)
            worker.send(None)
            self._retired[self._workers.pop(worker.number)] = time.monotonic()
            self._start_again(worker.number)
        else:
            worker.is_ready = True

    def _warn_of_size(self, found: int) -> None:
        """Warn once that a worker is replaced after every trial."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "A worker is replaced after its first trial, after which it holds %.0f MB, more than the limit of "
                "%.0f MB: no worker is reused. Pass a larger worker_memory=, or use fewer workers.",
                found / 1e6,
                (self._most_memory or 0) / 1e6,
            )

    def finish_steps(self, number: int) -> None:
        """Order all workers to finish their steps, write checkpoints and leave their trials, because of a signal."""
        for worker in self._workers.values():
            if not worker.is_ready and worker.trials:
                worker.send(Finish(number))

    def abandon(self) -> Iterator[tuple[Worker, Message | Ended | Lost]]:
        """Order all workers to leave their trials; yield each with the messages that come in time."""
        busy = [each for each in self._workers.values() if not each.is_ready and each.trials]
        for worker in busy:
            worker.send(Abandon())
        until = time.monotonic() + _SECONDS_TO_END
        while busy and time.monotonic() < until:
            for worker in _with_news(busy, until - time.monotonic()):
                message = worker.receive()
                if isinstance(message, Lost):
                    busy.remove(worker)
                yield worker, message
                if worker.is_ready:
                    busy.remove(worker)

    def end(self) -> None:
        """End all workers, also those that train."""
        self._later = []
        for worker in self._workers.values():
            worker.send(None)
        until = time.monotonic() + _SECONDS_TO_END
        for worker in [*self._workers.values(), *self._retired]:
            listens = worker.is_ready or worker in self._retired
            worker.end(max(0.0, until - time.monotonic()) if listens else 0.0)
        self._workers, self._retired = {}, {}

    def _replace(self, worker: Worker, reason: str = "") -> None:
        """End a worker and start another one in its place."""
        del self._workers[worker.number]  # first: the start of another one may fail
        worker.end()
        self._start_again(worker.number, None if worker.is_ready or worker.trials else reason)

    def _start_again(self, number: int, failed: str | None = None) -> None:
        """Start a worker in place of another; after too many failed starts the search continues without it.

        Raises:
            StudyError: the worker cannot be started, and there is no other one.
        """
        try:
            if failed is not None:
                self._note_failed_start(number, failed)
            self._workers[number] = self._started(number)
        except StudyError as error:
            if not any(each.is_ready or each.trials for each in self._workers.values()):
                raise
            logger.warning("%s Worker %d is not replaced; the other workers continue.", error, number)

    def _started(self, number: int) -> Worker:
        while True:
            try:
                process, self._first = self._first, None
                return Worker(number, self._slots[number], self._payload, process)
            except (EOFError, OSError) as error:
                self._note_failed_start(number, str(error) or type(error).__name__)

    def _note_failed_start(self, number: int, reason: str) -> None:
        self._failed_starts[number] += 1
        if self._failed_starts[number] >= _MOST_FAILED_STARTS:
            raise StudyError(f"No worker can be started: {reason}.")


def _with_news(workers: Sequence[Worker], seconds: float) -> list[Worker]:
    """Wait until a worker has sent a message or has ended; return all such workers."""
    ready = wait([each for worker in workers for each in (worker.connection, worker.sentinel)], seconds)
    return [each for each in workers if each.connection in ready or each.sentinel in ready]


def _end_of(code: int | None) -> str:
    """Describe how a process has ended."""
    if code is None:
        return "it does not answer"
    if code >= 0:
        return f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        return f"{name}{', possibly because memory ran out' if name == 'SIGKILL' else ''}"
    return f"signal {-code}"
