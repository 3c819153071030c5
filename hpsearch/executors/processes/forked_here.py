"""Forks a worker from the searching process itself, where that is safe: torch need not be imported again.

The child must behave as a worker from the fork server does: see `leaving_the_program.py`. It shares no thread. It is
forked before the search opens its storage, its folder and its locks.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import torch
from tqdm import TMonitor, tqdm

from ...system.machine import memory_of
from .leaving_the_program import leave_the_program

_TASKS = Path("/proc/self/task")
# A larger program leaves a worker forked from it too little of its memory: it counts as the worker's own.
_LARGEST_PART = 0.5
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
        memory: in bytes, as of a worker.
    """

    platform: str
    has_accelerator: bool
    threads: int
    changed: tuple[str, ...]
    memory: int

    @classmethod
    def here(cls) -> ForkConditions:
        """Return the conditions of this process."""
        has_accelerator, threads = torch.accelerator.is_available(), threading.active_count()
        return cls(sys.platform, has_accelerator, threads, changed_settings(), memory_of(os.getpid()))

    def reason_against(self, most_memory: float = math.inf) -> str | None:
        """Return why no worker may be forked; None if one may, as far as can be known before.

        Args:
            most_memory: the number of bytes with which a worker is replaced.
        """
        if self.platform != "linux":
            return f"fork is not safe on {self.platform}"
        if self.has_accelerator:
            return "torch can use an accelerator"
        if self.threads != 1:
            return f"the program runs {self.threads} threads"
        if self.changed:
            return f"the program has set {', '.join(self.changed)} in torch"
        if self.memory > _LARGEST_PART * most_memory:
            most = f"a worker may have {most_memory / 1e6:.0f} MB"
            return f"the program has {self.memory / 1e6:.0f} MB of memory, and {most}"
        return None


class CannotFork(Exception):
    """A worker cannot be forked from this process; the message says why."""


def end_monitors_of_bars() -> None:
    """End the threads by which tqdm watches its bars, if no bar is open; it starts one again with the next bar."""
    if not getattr(tqdm, "_instances", ()):
        for thread in threading.enumerate():
            if isinstance(thread, TMonitor):
                thread.exit()


def fork_here(theirs: Connection, status: Connection) -> None:
    """Fork a worker, which never returns from here; a thread of this process reports on `status`.

    Threads of the system are looked at after the fork: libraries that prepare for one, as OpenBLAS does, have ended
    theirs by then. If others remain, such as the pool of OpenMP, the child might wait for them forever.

    Signals wait: none is handled in the child before it has left the program, and none here before the child is known.

    Raises:
        CannotFork: other threads are running or cannot be seen, or the system refuses.
    """
    _threads_of_the_system()  # fails here, if at all
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # else the child would write it again
    with _signals_blocked() as before:
        pid = _forked()
        if pid == 0:
            _be_worker(theirs, status, before)
        try:
            others = _threads_of_the_system()
            if others:
                raise CannotFork(f"libraries of the program run {others} thread{'s' if others > 1 else ''}")
            status.send(pid)
            thread = threading.Thread(target=_report_exit, args=(pid, status), name="hpsearch worker exit", daemon=True)
            thread.start()
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise


@contextlib.contextmanager
def _signals_blocked() -> Iterator[set[int | signal.Signals]]:
    """Let signals wait while the block runs; yield those that did before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forked() -> int:
    try:
        with warnings.catch_warnings():  # later versions of Python warn of the threads that are looked at afterwards
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    except OSError as error:
        raise CannotFork(str(error)) from error


def _report_exit(pid: int, status: Connection) -> None:
    """Wait for the end of the worker; if the program has waited for it already, the exit code is unknown."""
    with status, contextlib.suppress(OSError):
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        status.send(code)


def _threads_of_the_system() -> int:
    """Return the number of threads of this process, apart from this one and those that are safe.

    Raises:
        CannotFork: the system does not show them.
    """
    names = []
    try:
        tasks = list(_TASKS.iterdir())
    except OSError as error:
        raise CannotFork(f"the threads of the program cannot be counted ({error})") from error
    for task in tasks:
        with contextlib.suppress(OSError):  # it has ended
            names.append((task / "comm").read_text().strip())
    return sum(each not in _SAFE_THREADS for each in names) - 1


def _be_worker(theirs: Connection, status: Connection, mask: set[int | signal.Signals]) -> NoReturn:
    """Be a worker, and end as one; nothing of the program runs again, not even its `finally` blocks.

    Args:
        mask: the signals that are blocked once the program has been left.
    """
    try:
        status.close()
        leave_the_program(theirs)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        from .worker import work

        work(theirs)
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads, as the end of the interpreter does
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _is_kernel_enabled(name: str) -> bool:
    return bool(getattr(torch.backends.cuda, f"{name}_sdp_enabled")())  # it holds on the CPU, too


# Settings of torch that change numbers, in words, each with a test whether it is another one than in a new process.
_SETTINGS: dict[str, Callable[[], object]] = {
    "the default dtype": lambda: torch.get_default_dtype() is not torch.float32,
    "the default device": lambda: torch.empty(0).device.type != "cpu",
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "no gradients": lambda: not torch.is_grad_enabled(),
    "inference mode": torch.is_inference_mode_enabled,
    "the precision of matrix products": lambda: torch.get_float32_matmul_precision() != "highest",
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "anomaly detection": torch.is_anomaly_enabled,
    "no mkldnn": lambda: not torch.backends.mkldnn.enabled,
    "denormal numbers to zero": lambda: (torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 1.0).item() == 0.0,
    "the kernels of attention": lambda: not all(map(_is_kernel_enabled, ("flash", "mem_efficient", "math"))),
    "no fast path of attention": lambda: not torch.backends.mha.get_fastpath_enabled(),
    "hooks of all modules": torch.nn.modules.module._has_any_global_hook,
}


def changed_settings() -> tuple[str, ...]:
    """Return the settings of torch, in words, that change numbers and are not those of a new process."""
    return tuple(name for name, is_changed in _SETTINGS.items() if is_changed())
