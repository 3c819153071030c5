"""A worker: takes the trainer, then one trial after the other, and tells what happens."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from ..search.assignment import Assignment
from ..search.distant_trial import Abandoned, Line, train_as_told
from ..search.execution import described
from ..search.messages import Progress
from .logged import LoggingSettings
from .parcel import Parcel
from .slots import Slot

# In the folder of a run: what was printed and logged while it trained.
OUTPUT_FILE = "output.log"
_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_PROGRESS = 0.25
logger = logging.getLogger(__name__)


class Abandon:
    """Tells a worker to leave its trial, which goes on another time."""


@dataclass(frozen=True)
class Ready:
    """The worker has loaded the trainer, and waits for a trial."""


@dataclass(frozen=True)
class Unusable:
    """The worker cannot load the trainer; it has ended."""

    reason: str


def send(connection: Connection, message: Any) -> None:
    """Send a message; what it holds may be of the program itself."""
    connection.send_bytes(cloudpickle.dumps(message))


def receive(connection: Connection) -> Any:
    """Wait for a message.

    Raises:
        EOFError: the other process is gone.
    """
    return pickle.loads(connection.recv_bytes())  # noqa: S301 - from our own process


def work(
    connection: Connection, slot: Slot, parcel: Parcel, variables: dict[str, str], what_is_logged: LoggingSettings
) -> None:
    """Train trials until there are none left, or the process that searches is gone."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # it ends with all that it starts; and Ctrl-C is for the process that searches
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(variables)
    what_is_logged.apply()
    threading.Thread(target=_end_with_the_search, name="hpsearch lifeline", daemon=True).start()
    if slot.device is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = _nth_visible(slot.device)
    torch.set_num_threads(slot.threads)
    try:
        recipe, study = parcel.open()
    except BaseException as error:
        send(connection, Unusable(described(error)))
        return
    send(connection, Ready())
    line = _Pipe(connection)
    while True:
        told = receive(connection)
        if told is None:
            return
        if isinstance(told, Assignment):  # else an answer that came too late
            line.begin()
            with _output_to(study.folder / told.name / OUTPUT_FILE):
                ended = train_as_told(recipe, study, told, line)
            send(connection, ended)


class _Pipe(Line):
    """Leads to the process that searches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.begin()

    def begin(self) -> None:
        """Begin with another trial."""
        self.step = self.max_steps = 0
        self._looked = self._told = time.monotonic()

    def ask(self, message: Any) -> Any:
        """Send the message, and wait."""
        send(self._connection, message)
        answer = receive(self._connection)
        if isinstance(answer, Abandon):
            raise Abandoned
        return answer

    def look(self) -> None:
        """Look whether there is word of the search, and tell how far the trial is; not at every update."""
        now = time.monotonic()
        if now < self._looked + _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        if self._connection.poll() and isinstance(receive(self._connection), Abandon):
            raise Abandoned
        if now > self._told + _SECONDS_BETWEEN_PROGRESS:
            self._told = now
            send(self._connection, Progress(self.step, self.max_steps))


def _end_with_the_search() -> None:
    """End this process at once when the one that searches is gone: another search may go on with its trials."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _nth_visible(device: int) -> str:
    """Return what names a GPU that this process sees by its number."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(device) if not visible else visible.split(",")[device].strip()


@contextlib.contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Let everything that this process prints go to the end of a file while the block runs.

    If there can be no such file, it goes where the program prints: what the trial comes to does not hang on that.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("ab")
    except OSError as error:
        logger.warning("What a trial prints cannot be written: %s", error)
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


def _flush() -> None:
    """Write out what was printed, if there is room for it: what a trial has come to does not hang on that."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
