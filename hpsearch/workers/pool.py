"""The workers of a search: started, listened to, replaced, ended."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import psutil

from ..errors import StudyError
from ..machine import WORKER
from ..search.assignment import Assignment
from .logged import LoggingSettings
from .parcel import Parcel
from .server import start
from .slots import Slot
from .worker import Abandon, Ready, Unusable, receive, send, work

_SECONDS_TO_END, _SECONDS_TO_RETIRE = 2.0, 10.0
# A process that was killed gives back all that it has of a GPU before it is gone.
_SECONDS_TO_DIE = 30.0
_TOO_LONG = "AF_UNIX path too long"
_MOST_FAILED_STARTS = 3
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lost:
    """A worker's process is gone."""

    reason: str


class Worker:
    """A process that trains trials.

    Attributes:
        number: of its place among the workers.
        slot: what of the machine it has.
        trials: how many it has been given.
        is_ready: whether it has the trainer, and no trial.
    """

    def __init__(self, number: int, slot: Slot, parcel: Parcel) -> None:
        self.number, self.slot, self.trials, self.is_ready = number, slot, 0, False
        self.connection, theirs = multiprocessing.Pipe()
        given = (theirs, slot, parcel, dict(os.environ), LoggingSettings.here())
        try:
            self._process = start(work, given, f"{WORKER} {number}")
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """The process."""
        return int(self._process.pid)

    @property
    def memory(self) -> int:
        """Its resident memory in bytes, without what files hold for all processes, where the system tells.

        0 if it is gone.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            used = process.memory_info()
            if hasattr(used, "shared"):
                return int(used.rss) - int(used.shared)
            with contextlib.suppress(psutil.AccessDenied):  # slower, and not for everybody everywhere
                return int(process.memory_full_info().uss)
            return int(used.rss)
        return 0

    @property
    def sentinel(self) -> int:
        """Is ready when the process has ended."""
        return int(self._process.sentinel)

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self._process.exitcode is not None

    def tell(self, message: Any) -> bool:
        """Send it something; return False if it is gone, which is heard of another way too."""
        try:
            send(self.connection, message)
        except OSError:
            return False
        return True

    def hear(self) -> Any:
        """Return what it tells, or `Lost`."""
        if self.is_over:  # its children may still hold its end of the connection, and it has perhaps not said all
            self._end_group()
        try:
            if self.connection.poll() or not self.is_over:
                return receive(self.connection)
        except (EOFError, OSError):
            self._process.join(_SECONDS_TO_END)
        return Lost(_end_of(self._process.exitcode))

    def end(self, seconds: float = 0.0) -> None:
        """End the process, at the latest after so many seconds; one that the system cannot end is left to itself."""
        if seconds:
            self._process.join(seconds)
        self._end_group()
        self._process.kill()
        self._process.join(_SECONDS_TO_DIE)
        self.connection.close()
        if self.is_over:
            self._process.close()
        else:
            logger.warning("Worker %d (process %d) cannot be ended.", self.number, self.pid)
            multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined] # nobody waits for it

    def _end_group(self) -> None:
        """End the process with those that it has started, where there are groups."""
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(self.pid, signal.SIGKILL)


class Workers:
    """The workers of a search.

    Args:
        slots: what of the machine each of them has.
        parcel: the trainer and the settings.
        most_trials: a worker is replaced after so many; None: never for that.
        most_memory: a worker is replaced after a trial that leaves it with more bytes than these.
    """

    def __init__(
        self, slots: Sequence[Slot], parcel: Parcel, most_trials: int | None = None, most_memory: float | None = None
    ) -> None:
        self._parcel, self._most_trials, self._most_memory = parcel, most_trials, most_memory
        self._slots = slots
        self._failed_starts: Counter[int] = Counter()  # one after the other, in each place
        self._has_begun = False  # any of them
        self._has_warned = False
        self._workers: dict[int, Worker] = {}  # by number
        self._retired: dict[Worker, float] = {}  # since when

    def start(self) -> None:
        """Start them; they are ready one after the other."""
        for number in range(len(self._slots)):
            self._workers[number] = self._started(number)

    def ready(self) -> list[Worker]:
        """Return those that wait for a trial."""
        return [each for each in self._workers.values() if each.is_ready and not each.is_over]

    def train(self, worker: Worker, told: Assignment) -> bool:
        """Give a trial to a worker that waits; return False if it has died while it waited."""
        if not worker.tell(told):
            return False
        worker.is_ready = False
        worker.trials += 1
        return True

    def wait(self, seconds: float) -> Iterator[tuple[Worker, Any]]:
        """Wait until a worker tells something of its trial; yield each that does, and what, or `Lost`.

        Raises:
            StudyError: workers end before they can begin.
        """
        latest = time.monotonic() - _SECONDS_TO_RETIRE
        for worker in [each for each, since in self._retired.items() if each.is_over or since < latest]:
            del self._retired[worker]
            worker.end()
        for worker in _that_tell(list(self._workers.values()), seconds):
            message = worker.hear()
            if isinstance(message, Ready):
                worker.is_ready = self._has_begun = True
                self._failed_starts[worker.number] = 0
            elif isinstance(message, Unusable) and self._has_begun:  # others could load it: memory was short, say
                self._replace(worker, message.reason)
            elif isinstance(message, Unusable):
                raise StudyError(
                    f"The trainer cannot be loaded in a worker: {message.reason}. What it is made of (functions, "
                    "classes, data) must be importable in another process of this machine."
                )
            elif isinstance(message, Lost):
                self._replace(worker, message.reason)
                if not worker.is_ready and worker.trials:
                    yield worker, message
            else:
                yield worker, message

    def release(self, worker: Worker, has_failed: bool = False) -> None:
        """Let a worker wait whose trial has ended; replace it if it has had enough.

        After a trial that failed on a GPU, it has: an error there may have broken all that the process has on it.
        """
        is_suspect = has_failed and worker.slot.device is not None
        is_used_up = self._most_trials is not None and worker.trials >= self._most_trials
        memory = 0 if self._most_memory is None else worker.memory
        is_too_large = self._most_memory is not None and memory > self._most_memory
        if is_suspect:  # nothing is left to end in it, and what it holds of the GPU is needed
            self._replace(worker)
        elif is_used_up or is_too_large:
            if is_too_large and not is_used_up and worker.trials == 1:
                self._warn_of_size(memory)
            worker.tell(None)
            self._retired[self._workers.pop(worker.number)] = time.monotonic()
            self._start_again(worker.number)
        else:
            worker.is_ready = True

    def _warn_of_size(self, found: int) -> None:
        """Say, once, that workers are replaced all the time."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "A worker is replaced after its first trial, which has left it with %.0f MB, more than the %.0f MB "
                "that each may have: none stays warm. Pass a larger worker_memory=, or run fewer at a time.",
                found / 1e6,
                (self._most_memory or 0) / 1e6,
            )

    def abandon(self) -> Iterator[tuple[Worker, Any]]:
        """Let all workers leave their trials; yield how they left them, as far as they tell in time."""
        busy = [each for each in self._workers.values() if not each.is_ready and each.trials]
        for worker in busy:
            worker.tell(Abandon())
        until = time.monotonic() + _SECONDS_TO_END
        while busy and time.monotonic() < until:
            for worker in _that_tell(busy, until - time.monotonic()):
                message = worker.hear()
                if isinstance(message, Lost):
                    busy.remove(worker)
                yield worker, message
                if worker.is_ready:
                    busy.remove(worker)

    def end(self) -> None:
        """End all workers, wherever they are."""
        for worker in self._workers.values():
            worker.tell(None)
        until = time.monotonic() + _SECONDS_TO_END
        for worker in [*self._workers.values(), *self._retired]:
            listens = worker.is_ready or worker in self._retired
            worker.end(max(0.0, until - time.monotonic()) if listens else 0.0)
        self._workers, self._retired = {}, {}

    def _replace(self, worker: Worker, reason: str = "") -> None:
        """Start another one in the place of a worker that is lost, or of no use."""
        del self._workers[worker.number]  # first: perhaps no other comes in its place
        worker.end()
        self._start_again(worker.number, None if worker.is_ready or worker.trials else reason)

    def _start_again(self, number: int, failed: str | None = None) -> None:
        """Start a worker in a place where there was one; after too many failed starts the others go on without it.

        Raises:
            StudyError: it cannot be started, and there is no other one.
        """
        try:
            if failed is not None:
                self._note_failed_start(number, failed)
            self._workers[number] = self._started(number)
        except StudyError as error:
            if not any(each.is_ready or each.trials for each in self._workers.values()):
                raise
            logger.warning("%s Worker %d is gone, the others go on.", error, number)

    def _started(self, number: int) -> Worker:
        while True:
            try:
                return Worker(number, self._slots[number], self._parcel)
            except (EOFError, OSError) as error:  # it was killed before it was there
                self._note_failed_start(number, str(error) or type(error).__name__)

    def _note_failed_start(self, number: int, reason: str) -> None:
        self._failed_starts[number] += 1
        if self._failed_starts[number] >= _MOST_FAILED_STARTS:
            hint = " The variable TMPDIR must name a folder with a shorter path." if _TOO_LONG in reason else ""
            raise StudyError(f"No worker can be started: {reason}.{hint}")


def _that_tell(workers: Sequence[Worker], seconds: float) -> list[Worker]:
    """Wait until a worker tells something, or has ended, and return all that do."""
    heard = wait([each for worker in workers for each in (worker.connection, worker.sentinel)], seconds)
    return [each for each in workers if each.connection in heard or each.sentinel in heard]


def _end_of(code: int | None) -> str:
    """Return in words how a process has ended."""
    if code is None:
        return "it does not answer"
    if code >= 0:
        return f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        return f"{name}{', as when memory runs out' if name == 'SIGKILL' else ''}"
    return f"signal {-code}"
