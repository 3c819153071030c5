"""Forks a worker from the searching process itself, where that is safe: torch need not be imported again.

The child must behave as a worker from the fork server does. It shares no thread, and it drops the program's handlers
of signals, exits and logging. It is forked before the search opens its storage, its folder and its locks.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing import process, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

# Threads that prepare for a fork by themselves, by their names: jemalloc, in Arrow.
_SAFE_THREADS = {"jemalloc_bg_thd"}


@dataclass(frozen=True)
class ForkConditions:
    """The properties of a process that decide whether a worker may be forked from it.

    Attributes:
        platform: as `sys.platform`.
        has_accelerator: whether torch can use one, so its driver may have been loaded.
        threads: the number of threads of Python.
        changed: settings of torch, in words, that a new process does not have.
    """

    platform: str
    has_accelerator: bool
    threads: int
    changed: tuple[str, ...]

    @classmethod
    def here(cls) -> ForkConditions:
        """Return the conditions of this process."""
        return cls(sys.platform, torch.accelerator.is_available(), threading.active_count(), tuple(_changed_settings()))

    def reason_against(self) -> str | None:
        """Return why no worker may be forked; None if one may, as far as can be known before."""
        if self.platform != "linux":
            return f"fork is not safe on {self.platform}"
        if self.has_accelerator:
            return "torch can use an accelerator"
        if self.threads != 1:
            return f"the program runs {self.threads} threads"
        if self.changed:
            return f"the program has set {', '.join(self.changed)} in torch"
        return None


class CannotFork(Exception):
    """A worker cannot be forked from this process; the message says why."""


def fork_here(theirs: Connection, status: Connection) -> None:
    """Fork a worker, which never returns from here; a thread of this process reports on `status`.

    Threads of the system are looked at after the fork: libraries that prepare for one, as OpenBLAS does, have ended
    theirs by then. If others remain, such as the pool of OpenMP, the child might wait for them forever.

    Raises:
        CannotFork: other threads are running, or the system refuses.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # else the child would write it again
    try:
        with warnings.catch_warnings():  # later versions of Python warn of the threads that are looked at below
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError as error:
        raise CannotFork(str(error)) from error
    if pid == 0:
        _be_worker(theirs, status)
    others = _threads_of_the_system()
    if others:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise CannotFork(f"libraries of the program run {others} thread{'s' if others > 1 else ''}")
    status.send(pid)
    threading.Thread(target=_report_exit, args=(pid, status), name="hpsearch worker exit", daemon=True).start()


def _report_exit(pid: int, status: Connection) -> None:
    """Wait for the end of the worker; if the program has waited for it, nobody knows the exit code."""
    with status, contextlib.suppress(OSError):
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        status.send(code)


def _threads_of_the_system() -> int:
    """Return the number of threads of this process, apart from this one and those that are safe."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            names.append((task / "comm").read_text().strip())
    return sum(each not in _SAFE_THREADS for each in names) - 1


def _be_worker(theirs: Connection, status: Connection) -> NoReturn:
    """Be a worker, and end as one; nothing of the program runs again, not even its `finally` blocks."""
    try:
        gc.freeze()  # what the program has made is not collected here: connections to databases, for example
        status.close()
        _leave_the_program()
        from .worker import work

        work(theirs)
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads, as the end of the interpreter does
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _leave_the_program() -> None:
    """Drop the settings of the program that a process from the fork server would not have."""
    atexit._clear()
    util._finalizer_registry.clear()  # type: ignore[attr-defined] # as a child of multiprocessing does
    util._run_after_forkers()  # type: ignore[attr-defined]
    process._children.clear()  # type: ignore[attr-defined]
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    for logger in [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]:
        for handler in [*getattr(logger, "handlers", ())]:
            if isinstance(handler, logging.FileHandler) or not isinstance(handler, logging.StreamHandler):
                logger.removeHandler(handler)  # type: ignore[union-attr] # it is the program's
    for state in (GradientState, AcceleratorState, PartialState):
        state._reset_state()


def _changed_settings() -> list[str]:
    """Return the settings of torch, in words, that change numbers and are not those of a new process."""
    found = {
        "the default dtype": torch.get_default_dtype() is not torch.float32,
        "the default device": torch.empty(0).device.type != "cpu",
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "no gradients": not torch.is_grad_enabled(),
        "the precision of matrix products": torch.get_float32_matmul_precision() != "highest",
        "autocast": torch.is_autocast_enabled("cpu"),
        "anomaly detection": torch.is_anomaly_enabled(),
        "no mkldnn": not torch.backends.mkldnn.enabled,
    }
    return [name for name, is_changed in found.items() if is_changed]
