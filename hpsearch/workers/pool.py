"""The workers of a search: started, listened to, replaced, ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any

import psutil

from ..errors import StudyError
from ..search.assignment import Assignment
from ..surroundings import environment
from .parcel import Parcel
from .slots import Slot
from .worker import Abandon, Ready, Unusable, receive, send, work

_SECONDS_TO_END = 2.0
_MOST_FAILED_STARTS = 3
_IN_MAIN = threading.Lock()


@dataclass(frozen=True)
class Lost:
    """A worker's process is gone."""

    reason: str


class Worker:
    """A process that trains trials.

    Attributes:
        slot: what of the machine it has.
        trials: how many it has been given.
        is_ready: whether it has the trainer, and no trial.
    """

    def __init__(self, slot: Slot, parcel: Parcel) -> None:
        self.slot, self.trials, self.is_ready = slot, 0, False
        self.connection, theirs = multiprocessing.Pipe()
        context: Any = _context()
        self._process = context.Process(target=work, args=(theirs, slot, parcel), name="hpsearch worker")
        with _without_main():
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process."""
        return int(self._process.pid)

    @property
    def memory(self) -> int:
        """Its resident memory in bytes, without what files hold for all processes; 0 if it is gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            used = psutil.Process(self.pid).memory_info()
            return int(used.rss) - int(getattr(used, "shared", 0))
        return 0

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self._process.exitcode is not None

    def tell(self, message: Any) -> None:
        """Send it something; nothing happens if it is gone, which is heard of another way."""
        with contextlib.suppress(OSError):
            send(self.connection, message)

    def hear(self) -> Any:
        """Return what it tells, or `Lost`."""
        try:
            return receive(self.connection)
        except (EOFError, OSError):
            self._process.join(_SECONDS_TO_END)
            return Lost(_end_of(self._process.exitcode))

    def end(self, seconds: float = 0.0) -> None:
        """End the process, at the latest after so many seconds."""
        if seconds:
            self._process.join(seconds)
        self._process.kill()
        self._process.join()
        self.connection.close()
        self._process.close()


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
        self._slots, self._failed_starts = slots, 0
        self._workers: list[Worker] = []
        self._retired: list[Worker] = []

    def start(self) -> None:
        """Start them; they are ready one after the other."""
        for slot in self._slots:
            self._workers.append(Worker(slot, self._parcel))

    def ready(self) -> list[Worker]:
        """Return those that wait for a trial."""
        return [each for each in self._workers if each.is_ready]

    def train(self, worker: Worker, told: Assignment) -> None:
        """Give a trial to a worker that waits."""
        worker.is_ready = False
        worker.trials += 1
        worker.tell(told)

    def wait(self, seconds: float) -> Iterator[tuple[Worker, Any]]:
        """Wait until a worker tells something of its trial; yield each that does, and what, or `Lost`.

        Raises:
            StudyError: workers end before they can begin.
        """
        for worker in [each for each in self._retired if each.is_over]:
            self._retired.remove(worker)
            worker.end()
        heard = wait([each.connection for each in self._workers], seconds)
        for worker in [each for each in self._workers if each.connection in heard]:
            message = worker.hear()
            if isinstance(message, Ready):
                worker.is_ready, self._failed_starts = True, 0
            elif isinstance(message, Unusable):
                raise StudyError(
                    f"The trainer cannot be loaded in a worker: {message.reason}. What it is made of (functions, "
                    "classes, data) must be importable in another process of this machine."
                )
            elif isinstance(message, Lost):
                self._replace_lost(worker, message)
                if not worker.is_ready and worker.trials:
                    yield worker, message
            else:
                yield worker, message

    def release(self, worker: Worker) -> None:
        """Let a worker wait whose trial has ended; replace it if it has had enough."""
        is_used_up = self._most_trials is not None and worker.trials >= self._most_trials
        is_too_large = self._most_memory is not None and worker.memory > self._most_memory
        if is_used_up or is_too_large:
            worker.tell(None)
            self._retired.append(worker)
            self._workers[self._workers.index(worker)] = Worker(worker.slot, self._parcel)
        else:
            worker.is_ready = True

    def abandon(self) -> Iterator[tuple[Worker, Any]]:
        """Let all workers leave their trials; yield how they left them, as far as they tell in time."""
        busy = [each for each in self._workers if not each.is_ready and each.trials]
        for worker in busy:
            worker.tell(Abandon())
        until = time.monotonic() + _SECONDS_TO_END
        while busy and time.monotonic() < until:
            heard = wait([each.connection for each in busy], until - time.monotonic())
            for worker in [each for each in busy if each.connection in heard]:
                message = worker.hear()
                if isinstance(message, Lost):
                    busy.remove(worker)
                yield worker, message
                if worker.is_ready:
                    busy.remove(worker)

    def end(self) -> None:
        """End all workers, wherever they are."""
        for worker in self._workers:
            worker.tell(None)
        until = time.monotonic() + _SECONDS_TO_END
        for worker in [*self._workers, *self._retired]:
            listens = worker.is_ready or worker in self._retired
            worker.end(max(0.0, until - time.monotonic()) if listens else 0.0)
        self._workers, self._retired = [], []

    def _replace_lost(self, worker: Worker, lost: Lost) -> None:
        if not worker.is_ready and not worker.trials:
            self._failed_starts += 1
            if self._failed_starts >= _MOST_FAILED_STARTS:
                raise StudyError(f"No worker can be started: {lost.reason}.")
        place = self._workers.index(worker)
        worker.end()
        self._workers[place] = Worker(worker.slot, self._parcel)


def _context() -> Any:
    """Return how processes are started: forked from one that has imported everything, where that is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hpsearch.trainer", *_imported_here(), "hpsearch.workers.preload"])
    # To ask whether there is a GPU must not touch it: a process that has cannot be forked.
    with _without_main(), environment({"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}):
        forkserver.ensure_running()
    return context


def _imported_here() -> list[str]:
    """Return the modules of models that this process has imported: trials will need them."""
    return sorted(name for name in sys.modules if name.startswith(("transformers.models.", "peft.")))


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new process from importing the program itself: what is defined there travels along."""
    with _IN_MAIN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


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
