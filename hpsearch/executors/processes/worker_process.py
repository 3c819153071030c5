"""Starts the processes of workers: forked from a server of our own, or in a fresh interpreter where fork is not safe.

The first one is forked from this process where that is safe, as the server needs some seconds to import torch.

Nothing of this process changes for that: not `sys.modules`, `sys.path`, its environment or its signal handlers.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from multiprocessing.connection import Connection, wait
from multiprocessing.spawn import get_executable

from ...system.ctrl_c import ignoring_ctrl_c
from .forked_here import CannotFork, ForkConditions, end_monitors_of_bars, fork_here
from .process_settings import module_path
from .program_modules import is_of_program

_FORK_IS_SAFE = sys.platform == "linux"
_FIRST = "hpsearch.trainer.trainer"
# The server imports what this process has imported of these packages and modules: trials need it, and it takes time.
_PACKAGES = ("transformers.models.", "peft.")
_MODULES = ("evaluate", "sentence_transformers", "sklearn.metrics", "transformers.trainer", "trl")
_MAIN = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path = connection.recv()
from {module} import {function}
{function}(connection)
"""
logger = logging.getLogger(__name__)
_lock = threading.Lock()
_server: _ForkServer | None = None
_processes: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


class WorkerProcess:
    """A process that runs `worker.work`.

    Args:
        is_forked_here: fork it from this process; see `forked_here.py`.

    Attributes:
        pid: the process.
        connection: to its `work`, which ends the process when this end is closed.

    Raises:
        OSError, EOFError: the process cannot be started.
        CannotFork: it cannot be forked from this process.
    """

    def __init__(self, is_forked_here: bool = False) -> None:
        self._exitcode: int | None = None
        self.connection, theirs = multiprocessing.Pipe()
        self._status, status = multiprocessing.Pipe(duplex=False)
        _processes.add(self)
        try:
            with theirs:
                if is_forked_here:
                    fork_here(theirs, status)
                elif _FORK_IS_SAFE:
                    _fork(theirs, status)
                else:
                    _spawn(self.connection, theirs, status)
            started = self._status.recv()
            if isinstance(started, OSError):
                raise started
        except BaseException:
            self.connection.close()
            self._status.close()
            raise
        self.pid: int = started

    @property
    def sentinel(self) -> int:
        """Is ready when the process has ended."""
        return self._status.fileno()

    @property
    def exitcode(self) -> int | None:
        """None while the process runs; the negative number of the signal that ended it; 255 if unknown."""
        if self._exitcode is None and self._status.poll():
            try:
                self._exitcode = self._status.recv()
            except (EOFError, OSError):  # the server was killed
                self._exitcode = 255
        return self._exitcode

    def join(self, seconds: float) -> None:
        """Wait until the process has ended, at most this long."""
        if self._exitcode is None:
            wait([self._status], seconds)

    def kill(self) -> None:
        """End the process."""
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the connection and the sentinel."""
        self.connection.close()
        self._status.close()


def fork_first_worker(most_memory: float = math.inf) -> WorkerProcess | None:
    """Fork a worker from this process if that is safe, and faster than a server that has yet to import torch.

    Args:
        most_memory: the number of bytes with which a worker is replaced.
    """
    if _server is not None and is_server_ready() and _server.is_running:
        return None
    end_monitors_of_bars()
    reason = ForkConditions.here().reason_against(most_memory)
    if reason is None:
        try:
            return WorkerProcess(is_forked_here=True)
        except CannotFork as error:
            reason = str(error)
    logger.info("The first worker is not forked from this program: %s.", reason)
    return None


def prepare() -> None:
    """Start the fork server, which imports in the background; if that fails, the first worker tries again."""
    if _FORK_IS_SAFE:
        with contextlib.suppress(OSError), _lock:
            _running_server()


def is_server_ready() -> bool:
    """Return whether the fork server has imported all, or has ended: a worker starts, or fails to, without a wait."""
    return _server is None or _server.is_ready


def _fork(theirs: Connection, status: Connection) -> None:
    """Let the server fork a worker and report on `status`."""
    with status, _lock:
        _running_server().request(theirs, status)


def _spawn(ours: Connection, theirs: Connection, status: Connection) -> None:
    """Start a worker in a fresh interpreter; a thread of this process reports on `status`."""
    process = _interpreter("hpsearch.executors.processes.worker", "work", theirs, dict(os.environ))
    ours.send(module_path())
    status.send(process.pid)

    def report_exit() -> None:
        with status, contextlib.suppress(OSError):  # the parent may not read it any more
            status.send(process.wait())

    threading.Thread(target=report_exit, name="hpsearch worker exit", daemon=True).start()


def _running_server() -> _ForkServer:
    global _server
    if _server is None or not _server.is_running:
        _server = None
        _server = _ForkServer()
    return _server


class _ForkServer:
    """The process of `fork_server.py`; it ends when the connection is closed, so with this process at the latest."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            # The imports may ask whether there is a GPU, and must not touch it: a process that has cannot be forked.
            variables = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
            self._process = _interpreter("hpsearch.executors.processes.fork_server", "main", theirs, variables)
        self._connection.send(module_path())
        self._connection.send([_FIRST, *_imported_here()])

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        return self._connection.poll() or not self.is_running

    def request(self, worker: Connection, status: Connection) -> None:
        """Let it fork a worker; Ctrl-C never leaves half of the request there."""
        with socket.fromfd(self._connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            try:
                socket.send_fds(channel, [b"\0"], [worker.fileno(), status.fileno()])
            except BrokenPipeError as error:
                code = self._process.wait()
                raise OSError(f"the process they are forked from has ended with exit code {code}, see above") from error

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Drop it in a process that has inherited it by a fork."""
        self._connection.close()
        self._process.returncode = 0  # to the parent it is running


def _imported_here() -> list[str]:
    """Return the modules that this process has imported and trials will need; files of the user are none of them."""
    known = list(sys.modules.items())
    installed = (name for name, each in known if name in _MODULES and not is_of_program(name, each))
    return sorted([*(name for name, _ in known if name.startswith(_PACKAGES)), *installed])


def _interpreter(
    module: str, function: str, connection: Connection, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start Python, to call a function with a connection, on which it first receives its `sys.path`.

    The terminal's Ctrl-C does not reach the process: it has a process group of its own.
    """
    flags = ["-P", *["-O"] * sys.flags.optimize, *(f"-W{each}" for each in sys.warnoptions)]
    flags += [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]
    code = _MAIN.format(module=module, function=function)
    return subprocess.Popen(  # noqa: S603 - Python itself
        [get_executable(), *flags, "-c", code, str(connection.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[connection.fileno()],
        env=variables,
        process_group=0,
    )


@atexit.register
def _end_server() -> None:
    if _server is not None:
        with ignoring_ctrl_c():
            _server.end()


def _forget() -> None:
    """Let a forked child start a server of its own, and close its copies of the connections to the workers.

    While a copy is open, a worker does not notice that the searching process has died, and trains on.
    """
    global _lock, _server
    if _server is not None:
        _server.forget()
    for each in _processes:
        each.close()
    _lock, _server = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
