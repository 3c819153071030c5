"""A worker: loads the trainer, then trains one trial after the other and reports to the searching process.

A worker may be a group of processes, which run this code each. The first one reports, the others follow it. None of
them ends because another one has: the searching process, which alone knows the first cause, ends the whole group.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from ...errors import CommunicationError
from ...search.process_group import Ranks
from ...search.study import Study
from ...system.interruption import Interruption, ignore_signals
from ...system.sockets import keep_sockets_in
from ...trial.assignment import Assignment
from ...trial.ending import Ended
from ...trial.execution import described
from ...trial.messages import Progress, Reported
from ...trial.remote_trial import Abandoned, Line, train_remotely
from ...trial.searchable import Searchable
from .device_memory import DeviceMemory
from .device_slots import Slot
from .group_call import GroupCall
from .group_outcomes import GroupBroken, GroupFailed, follow_main, outcome_in_main
from .joined_arguments import ranks_in_group
from .payload import Payload
from .process_settings import ProcessSettings
from .rendezvous import join_environment

# In the folder of a trial: its output and log.
OUTPUT_FILE = "output.log"
_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_PROGRESS = 0.25
logger = logging.getLogger(__name__)


class Abandon:
    """Orders a worker to leave its trial, which is resumed later."""


@dataclass(frozen=True)
class Finish:
    """Orders a worker to finish the step, write a checkpoint and leave its trial, which is resumed later.

    Attributes:
        signal: that the searching process has received.
    """

    signal: int


@dataclass(frozen=True)
class Job:
    """The first message to a worker.

    Attributes:
        name: of its process.
        slot: the part of the machine that the worker may use.
        payload: the trainer and the settings of the study.
        settings: of the searching process.
        rank: the number of the process in its group.
        variables: of the environment, by which it joins its group; empty if it is alone.
    """

    name: str
    slot: Slot
    payload: Payload
    settings: ProcessSettings
    rank: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready:
    """The worker has loaded the trainer, and waits for a trial."""


@dataclass(frozen=True)
class Unusable:
    """The worker cannot load the trainer; it has ended."""

    reason: str


@dataclass(frozen=True)
class Measured:
    """What the worker has used of its GPU so far; it does not wait for an answer."""

    memory: DeviceMemory


def send(connection: Connection, message: object) -> None:
    """Send a message, which may hold functions and classes of the program itself."""
    connection.send_bytes(cloudpickle.dumps(message))


def receive(connection: Connection) -> Any:
    """Wait for a message.

    Raises:
        EOFError: the other process has ended.
    """
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - from our own process


def work(connection: Connection) -> None:
    """Train trials until the searching process sends None or closes the connection."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # the worker and all that it starts can be ended together; Ctrl-C does not reach it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignore_signals()
    _train(_SearchingProcess(connection))
    # Let the threads of the trainer end, but skip the teardown of all modules, which takes a second.
    atexit.register(_exit)


def _train(search: _SearchingProcess) -> None:
    job: Job = search.receive()
    _prepare(job)
    try:
        loaded = job.payload.load()
        if isinstance(loaded, GroupCall):
            _call(loaded, job.rank, search)
            return
        recipe, study = loaded
        ranks = ranks_in_group(recipe, job.slot.processes)
    except CommunicationError as error:  # another process of the group has died
        search.send(GroupBroken(str(error)))
        return
    except BaseException as error:
        search.send(Unusable(described(error)))
        return
    search.is_measured = job.slot.is_measured
    train = _follow if job.rank else _train_one
    output = f"output-{job.rank}.log" if job.rank else OUTPUT_FILE
    if ranks.is_main:
        search.send(Ready())
    while True:
        message = search.receive()
        if message is None:
            return
        if isinstance(message, Assignment):  # else a verdict that came after the trial had ended
            search.begin_trial()
            with _output_to(study.folder / message.name / output):
                outcome = train(recipe, study, message, search, ranks)
            if outcome is not None:
                search.send(outcome)


def _call(called: GroupCall, rank: int, search: _SearchingProcess) -> None:
    """Call a function, send what there is to send, and wait to be ended: another process may still need this one."""
    result = called.result(rank)
    if result is not None:
        search.send(result)
    search.receive()


_Outcome = Ended | GroupFailed | GroupBroken | None


def _train_one(
    recipe: Searchable, study: Study, assignment: Assignment, search: _SearchingProcess, ranks: Ranks
) -> _Outcome:
    """Train a trial in the process that reports; return what there is to send."""
    return outcome_in_main(train_remotely(recipe, study, assignment, search, ranks))


def _follow(
    recipe: Searchable, study: Study, assignment: Assignment, search: _SearchingProcess, ranks: Ranks
) -> _Outcome:
    """Train a trial with the process that reports; return what there is to send, if that process cannot."""
    return follow_main(recipe, study, assignment, search.interruption, ranks)


def _prepare(job: Job) -> None:
    """Apply the settings of the searching process, and those of the slot."""
    multiprocessing.current_process().name = job.name
    job.settings.apply()
    keep_sockets_in(job.payload.file.parent)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(_nth_visible, job.slot.devices))
    torch.set_num_threads(job.slot.threads)
    if job.variables:
        join_environment(dict(job.variables), job.slot.threads, is_on_cpu=not job.slot.devices)


class _SearchingProcess(Line):
    """Sends messages to the searching process, and receives its messages.

    This process ends immediately when the searching process ends: another search may resume its trials.

    Attributes:
        is_measured: whether to send what this process has used of its GPU with each report of a trained model.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection, self.is_measured = connection, False
        self._received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="hpsearch connection", daemon=True).start()
        self.begin_trial()

    def begin_trial(self) -> None:
        """Reset the progress."""
        self.step = self.max_steps = 0
        self.interruption = Interruption()
        self._looked_at = self._reported_at = time.monotonic()

    def send(self, message: object) -> None:
        """Send a message."""
        send(self._connection, message)

    def receive(self) -> Any:
        """Wait for a message."""
        return pickle.loads(self._received.get())  # noqa: S301 - from our own process

    def ask(self, message: object) -> Any:
        """Send the message, and wait for the answer."""
        memory = DeviceMemory.measured() if self.is_measured else None
        if memory is not None and isinstance(message, Reported) and message.report.step > 0:
            self.send(Measured(memory))
        self.send(message)
        while self._obey(answer := self.receive()):
            pass
        return answer

    def look(self) -> None:
        """Raise `Abandoned` if the search has ended, and report progress; not at every step."""
        now = time.monotonic()
        if now < self._looked_at + _SECONDS_BETWEEN_LOOKS:
            return
        self._looked_at = now
        if not self._received.empty():
            self._obey(self.receive())
        if now > self._reported_at + _SECONDS_BETWEEN_PROGRESS:
            self._reported_at = now
            self.send(Progress(self.step, self.max_steps))

    def _obey(self, message: object) -> bool:
        """Obey a message if it is an order; return whether it is one.

        Raises:
            Abandoned: it orders to leave the trial.
        """
        if isinstance(message, Abandon):
            raise Abandoned
        if isinstance(message, Finish):
            self.interruption.note(message.signal)
        return isinstance(message, Finish)

    def _listen(self) -> None:
        try:
            while True:
                self._received.put(self._connection.recv_bytes())
        except (EOFError, OSError):
            if hasattr(os, "killpg"):
                os.killpg(0, signal.SIGKILL)
            os._exit(1)


def _nth_visible(device: int) -> str:
    """Return the name in CUDA_VISIBLE_DEVICES of the GPU that this process numbers so."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(device) if not visible else visible.split(",")[device].strip()


@contextlib.contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Append all output of this process to a file while the block runs.

    If the file cannot be opened, the output goes where the program prints, and the trial is trained all the same.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("ab")
    except OSError as error:
        logger.warning("The output of a trial cannot be written: %s", error)
        yield
        return
    _flush()
    before = [os.dup(number) for number in (1, 2)]
    with stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    try:
        yield
    finally:
        _flush()
        for number, kept in zip((1, 2), before, strict=True):
            os.dup2(kept, number)
            os.close(kept)


def _exit() -> None:
    # It was registered before this function, which ends the process first; it deletes temporary folders.
    util._exit_function()  # type: ignore[attr-defined]
    _flush()
    os._exit(0)


def _flush() -> None:
    """Flush the output, if there is room for it: a full disk does not change the result of a trial."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
