"""The workers of a search: starts, replaces and ends them, and receives their messages."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from ...errors import StudyError
from ...system.machine import WORKER, memory_of
from ...trial.assignment import Assignment
from ...trial.ending import Ended
from ...trial.messages import Message
from .device_slots import Slot
from .group_outcomes import GroupBroken, GroupFailed
from .payload import Payload
from .process_settings import ProcessSettings
from .rendezvous import Rendezvous
from .worker import Abandon, Finish, Job, Measured, Ready, Unusable, receive, send
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
    """One process, or a group of them, that trains trials.

    The first process of a group reports, the others follow it; if one of them dies, all are lost.

    Args:
        number, slot: see below.
        payload: the trainer and the settings.
        process: that was started already; None: start one.
        clock: returns the seconds since some moment.

    Attributes:
        number: of its place among the workers.
        slot: the part of the machine that it may use.
        trials: the number of trials that it has been given.
        is_ready: whether it has loaded the trainer and has no trial.
        is_broken: whether its processes cannot train another trial together.
        is_forked_here: whether its process was started already, so it was forked from the program.
        heard_at: when it has sent the last message, or was given something to do.

    Raises:
        OSError, EOFError: a process cannot be started.
    """

    def __init__(
        self,
        number: int,
        slot: Slot,
        payload: Payload,
        process: WorkerProcess | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.number, self.slot, self.trials, self.is_ready, self.is_broken = number, slot, 0, False, False
        self.is_forked_here = process is not None
        self._clock, self.heard_at = clock, clock()
        self._reason_of_end: str | None = None
        self._rendezvous = Rendezvous(slot.processes) if slot.processes > 1 else None
        self._processes: list[WorkerProcess] = [] if process is None else [process]
        try:
            while len(self._processes) < slot.processes:
                self._processes.append(WorkerProcess())
        except BaseException:
            self.end()
            raise
        for rank, each in enumerate(self._processes):
            self._send_to(each, self._job(rank, payload))

    def _job(self, rank: int, payload: Payload) -> Job:
        name, settings = f"{WORKER} {self.number}", ProcessSettings.here()
        if self._rendezvous is None:
            return Job(name, self.slot, payload, settings)
        name = f"{name}, process {rank}" if rank else name
        return Job(name, self.slot, payload, settings, rank, self._rendezvous.variables(rank))

    @property
    def pid(self) -> int:
        """The process that reports."""
        return self._processes[0].pid

    @property
    def memory(self) -> int:
        """The resident memory of its processes in bytes; those that have ended have none."""
        return sum(memory_of(each.pid) for each in self._processes)

    @property
    def is_over(self) -> bool:
        """Whether one of its processes has ended."""
        return any(each.exitcode is not None for each in self._processes)

    @property
    def has_ended(self) -> bool:
        """Whether all of its processes have ended."""
        return all(each.exitcode is not None for each in self._processes)

    @property
    def sources(self) -> list[Any]:
        """What is ready if the worker has sent a message, or if one of its processes has ended."""
        return [source for each in self._processes for source in (each.connection, each.sentinel)]

    def send(self, message: object) -> bool:
        """Send a message to the process that reports; return False if it has ended, which `receive` reports too."""
        self.heard_at = self._clock()
        return self._send_to(self._processes[0], message)

    def send_to_all(self, message: object) -> bool:
        """Send a message to all processes; return False if one of them has ended."""
        self.heard_at = self._clock()
        sent = [self._send_to(each, message) for each in self._processes]
        return all(sent)

    def _send_to(self, process: WorkerProcess, message: object) -> bool:
        try:
            send(process.connection, message)
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """Return the message of one of its processes, or `Lost`."""
        if self.is_over:  # its children may still hold its end of the connection, and messages may be left in it
            self.reason_of_end()  # before the others of a group end, too
            self._end_groups()
        for process in self._processes:
            try:
                if process.connection.poll():
                    message = receive(process.connection)
                    self.heard_at = self._clock()
                    return message
            except (EOFError, OSError):
                process.join(_SECONDS_TO_END)
                break
        return Lost(self.reason_of_end() or "it does not answer")

    def reason_of_end(self, seconds: float = 0.0) -> str | None:
        """Return how the first process that has ended did so, in words; None if none ends in time."""
        if self._reason_of_end is None:
            wait([each.sentinel for each in self._processes], seconds)
            for rank, each in enumerate(self._processes):
                if each.exitcode is not None and self._reason_of_end is None:
                    of_group = f"process {rank} of {len(self._processes)}: " if len(self._processes) > 1 else ""
                    self._reason_of_end = f"{of_group}{_end_of(each.exitcode)}"
        return self._reason_of_end

    def end(self, seconds: float = 0.0) -> None:
        """End its processes, by force after this many seconds; leave one that the system cannot end."""
        until = time.monotonic() + seconds
        for each in self._processes if seconds else ():
            each.join(max(0.0, until - time.monotonic()))
        self._end_groups()
        for each in self._processes:
            each.kill()
        for each in self._processes:
            each.join(_SECONDS_TO_DIE)
            if each.exitcode is None:
                logger.warning("Worker %d (process %d) cannot be ended.", self.number, each.pid)
            each.close()
        self._rendezvous = None

    def _end_groups(self) -> None:
        """End the processes and those that they have started, where the system has process groups."""
        for each in self._processes:
            with contextlib.suppress(OSError, AttributeError):
                os.killpg(each.pid, signal.SIGKILL)


class Workers:
    """The workers of a search.

    Args:
        slots: the part of the machine that each of them may use.
        payload: the trainer and the settings.
        most_trials: a worker is replaced after this number of trials; None: never for that reason.
        most_memory: a worker is replaced after a trial that leaves it with more bytes.
        memory_of_all: the bytes of all workers together, of which each has an equal part if `most_memory` is None.
        first: a process for the first worker, which was started already; None: it is started like the others.
        group_timeout: the seconds of silence after which a group that has a trial, or loads the trainer, is lost.
        clock: returns the seconds since some moment.

    Attributes:
        seconds_to_first: how long it took from `start` until the first worker was ready; None while none is.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        payload: Payload,
        most_trials: int | None = None,
        most_memory: float | None = None,
        memory_of_all: float = math.inf,
        first: WorkerProcess | None = None,
        group_timeout: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first, self._group_timeout, self._clock = first, group_timeout, clock
        self._later: list[int] = []  # the numbers of those that are started when the fork server is ready
        self._started_at = math.inf
        self.seconds_to_first: float | None = None
        self._payload, self._most_trials = payload, most_trials
        self._most_memory, self._memory_of_all = most_memory, memory_of_all
        self._slots = list(slots)
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

    def add(self, slot: Slot) -> None:
        """Start one more worker; if that fails, the search continues without it."""
        self._slots.append(slot)
        self._start_again(len(self._slots) - 1)

    def on_device(self, device: int) -> list[Worker]:
        """Return the workers that use a GPU."""
        return [each for each in self._workers.values() if device in each.slot.devices]

    def ready(self) -> list[Worker]:
        """Return the workers without a trial."""
        return [each for each in self._workers.values() if each.is_ready and not each.is_over]

    def train(self, worker: Worker, assignment: Assignment) -> bool:
        """Give a trial to a free worker; if the worker has died, replace it and return False."""
        if not worker.send_to_all(assignment):
            self._replace(worker)
            return False
        worker.is_ready = False
        worker.trials += 1
        return True

    def wait(self, seconds: float) -> Iterator[tuple[Worker, Message | Measured | Ended | Lost]]:
        """Wait for messages about trials; yield each worker with its message, or with `Lost`.

        Raises:
            StudyError: no worker can load the trainer, or none can be started.
        """
        latest = time.monotonic() - _SECONDS_TO_RETIRE
        for worker in [each for each, since in self._retired.items() if each.has_ended or since < latest]:
            del self._retired[worker]
            worker.end()
        while self._later and is_server_ready():
            self._start_again(self._later.pop(0))
        seconds = min(seconds, _SECONDS_BETWEEN_STARTS) if self._later else seconds
        for worker in _with_news(list(self._workers.values()), seconds):
            message = worker.receive()
            if isinstance(message, GroupBroken):  # a process that has died is the reason, and is known in a moment
                message = Lost(worker.reason_of_end(_SECONDS_TO_END) or message.reason)
            if isinstance(message, GroupFailed):
                worker.is_broken = True
                message = message.ended
            if isinstance(message, Ready):
                self._note_ready(worker)
            elif isinstance(message, Unusable) and (self._has_begun or worker.is_forked_here):
                # Others could load it: perhaps memory was short. Or a module of the program cannot be imported twice.
                self._replace(worker, message.reason)
            elif isinstance(message, Unusable):
                raise StudyError(
                    f"The trainer cannot be loaded in a worker: {message.reason}. Its functions, classes and data must "
                    "be importable in another process of this machine."
                )
            elif isinstance(message, Lost):
                yield from self._lose(worker, message)
            else:
                yield worker, message
        for worker in self._silent():
            yield from self._lose(worker, Lost(f"no answer for {self._group_timeout:g} s"))

    def _note_ready(self, worker: Worker) -> None:
        worker.is_ready = self._has_begun = True
        if self.seconds_to_first is None:
            self.seconds_to_first = time.monotonic() - self._started_at
            logger.info("First worker ready after %.1f s.", self.seconds_to_first)
        self._failed_starts[worker.number] = 0

    def _lose(self, worker: Worker, lost: Lost) -> Iterator[tuple[Worker, Lost]]:
        """Replace a worker; yield it if it has had a trial."""
        self._replace(worker, lost.reason)
        if not worker.is_ready and worker.trials:
            yield worker, lost

    def _silent(self) -> list[Worker]:
        """Return the groups in which a process hangs, as far as their silence shows it.

        A worker of one process keeps its trial: a function may compute for hours before it reports.
        """
        latest = self._clock() - self._group_timeout
        groups = [each for each in self._workers.values() if each.slot.processes > 1]
        return [each for each in groups if not each.is_ready and each.heard_at < latest]

    def release(self, worker: Worker, has_failed: bool = False) -> None:
        """Mark a worker as ready after its trial, or replace it if it has reached a limit.

        It is replaced after a trial that failed on a GPU, too: the error may have broken the state of CUDA in it. So is
        a group whose processes cannot work together any more.
        """
        is_suspect = worker.is_broken or (has_failed and bool(worker.slot.devices))
        is_exhausted = self._most_trials is not None and worker.trials >= self._most_trials
        limit = self._memory_of_all / max(1, len(self._workers)) if self._most_memory is None else self._most_memory
        memory = 0 if limit == math.inf else worker.memory
        is_too_large = memory > limit
        if is_suspect:  # end it immediately: the next worker needs its memory of the GPU
            self._replace(worker)
        elif is_exhausted or is_too_large:
            if is_too_large and not is_exhausted and worker.trials == 1:
                self._warn_of_size(memory, limit)
            self.retire(worker)
            self._start_again(worker.number)
        else:
            worker.is_ready = True

    def retire(self, worker: Worker) -> None:
        """Let a worker without a trial end by itself."""
        worker.send_to_all(None)
        self._retired[self._workers.pop(worker.number)] = time.monotonic()

    def _warn_of_size(self, found: int, limit: float) -> None:
        """Warn once that a worker is replaced after every trial."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "A worker is replaced after its first trial, after which it holds %.0f MB, more than the limit of "
                "%.0f MB: no worker is reused. Pass a larger worker_memory=, or use fewer workers.",
                found / 1e6,
                limit / 1e6,
            )

    def finish_steps(self, number: int) -> None:
        """Order all workers to finish their steps, write checkpoints and leave their trials, because of a signal."""
        for worker in self._workers.values():
            if not worker.is_ready and worker.trials:
                worker.send(Finish(number))

    def abandon(self) -> Iterator[tuple[Worker, Message | Measured | Ended | Lost]]:
        """Order all workers to leave their trials; yield each with the messages that come in time."""
        busy = [each for each in self._workers.values() if not each.is_ready and each.trials]
        for worker in busy:
            worker.send(Abandon())
        until = time.monotonic() + _SECONDS_TO_END
        while busy and time.monotonic() < until:
            for worker in _with_news(busy, until - time.monotonic()):
                message = worker.receive()
                if isinstance(message, (Lost, GroupBroken)):
                    busy.remove(worker)
                    continue
                yield worker, message.ended if isinstance(message, GroupFailed) else message
                if worker.is_ready:
                    busy.remove(worker)

    def end(self) -> None:
        """End all workers, also those that train."""
        self._later = []
        for worker in self._workers.values():
            worker.send_to_all(None)
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
                return Worker(number, self._slots[number], self._payload, process, self._clock)
            except (EOFError, OSError) as error:
                self._note_failed_start(number, str(error) or type(error).__name__)

    def _note_failed_start(self, number: int, reason: str) -> None:
        self._failed_starts[number] += 1
        if self._failed_starts[number] >= _MOST_FAILED_STARTS:
            raise StudyError(f"No worker can be started: {reason}.")


def _with_news(workers: Sequence[Worker], seconds: float) -> list[Worker]:
    """Wait until a worker has sent a message or has ended; return all such workers."""
    ready = set(wait([source for each in workers for source in each.sources], seconds))
    return [each for each in workers if not ready.isdisjoint(each.sources)]


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
