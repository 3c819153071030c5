"""A signal that asks a search to end: how it is noticed, and what the program exits with."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import SearchInterrupted
from .ctrl_c import ctrl_c_errors_handled, put_back
from .redaction import holds_secret

# SIGTERM: preemption, `kill`, the end of a container. SIGUSR1: what Slurm's --signal sends by convention.
NAMES = ("SIGTERM", "SIGUSR1")
# A launcher passes on the signal that the whole process group has received: both are one request.
_SECONDS_OF_ONE_REQUEST = 5.0
# Slurm, torchrun and Kubernetes kill a process 30 seconds after SIGTERM.
_SECONDS_AFTER_SIGTERM = 25.0
_installed: list[dict[int, Any]] = []  # for each search: the previous handlers


class Interruption:
    """The interruption of a search by a signal.

    Args:
        clock: returns the seconds since some moment.

    Attributes:
        signal: the number of the first signal, SIGINT for Ctrl-C; 0: none has come.
        is_awaited: whether a trial that trains in this process would now end with a checkpoint.
        error: what a handler of the program has raised, such as `SystemExit`; to be raised when the search has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.signal, self.is_awaited = 0, False
        self.error: BaseException | None = None
        self._clock, self._until = clock, math.inf

    def note(self, number: int) -> None:
        """Note that a signal has come."""
        self.signal = self.signal or number
        if number == signal.SIGTERM:
            self._until = min(self._until, self._clock() + _SECONDS_AFTER_SIGTERM)

    def press(self) -> None:
        """Note Ctrl-C; pressed again, or after a signal, it says that nothing is waited for any longer."""
        if self.signal:
            self._until = -math.inf
        else:
            self.note(signal.SIGINT)

    @property
    def name(self) -> str:
        """The name of the signal, such as ``SIGTERM``."""
        return signal.Signals(self.signal).name

    @property
    def is_by_user(self) -> bool:
        """Whether no signal has come but Ctrl-C."""
        return self.signal in (0, signal.SIGINT)

    @property
    def reason(self) -> str:
        """Why the search ends, and its trials with it; ``interrupted by the user`` if no signal has come but Ctrl-C."""
        return f"interrupted by {'the user' if self.is_by_user else self.name}"

    @property
    def announcement(self) -> str:
        """What the running trials do now that a signal has come."""
        if self.is_by_user:
            return "Ctrl-C: finishing the step, writing a checkpoint; Ctrl-C again ends immediately"
        return f"{self.name}: the trials write their checkpoints"

    @property
    def is_overdue(self) -> bool:
        """Whether nothing is waited for: after SIGTERM, the system may soon kill this process; or Ctrl-C came again."""
        return self._clock() >= self._until


@contextlib.contextmanager
def noticing_signals(interruption: Interruption, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Note SIGTERM and SIGUSR1 while the block runs, in place of ending the process; only in the main thread.

    A handler of the program is called immediately, too; what it raises is kept until the search has ended. A signal
    that is ignored, or that a handler outside Python catches, is left alone. A signal that comes again later does what
    it does without a search. Children by fork do not inherit this.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in NAMES if is_main and hasattr(signal, name)]
    earlier = {number: signal.getsignal(number) for number in numbers if _can_be_noticed(number)}
    handlers = {number: _handler(interruption, before, clock) for number, before in earlier.items()}
    for number, handler in handlers.items():
        signal.signal(number, handler)
    _installed.append(earlier)
    try:
        yield
    finally:
        _installed.remove(earlier)
        for number, handler in handlers.items():
            if signal.getsignal(number) is handler:  # else the program has set another one meanwhile
                signal.signal(number, earlier[number])


@contextlib.contextmanager
def finishing_at_ctrl_c(
    interruption: Interruption, announce: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Note the first Ctrl-C while the block runs and a trial is awaited, in place of the error that it is otherwise.

    Ctrl-C again is that error, as it is while no trial is awaited: there is nothing to lose. A handler of the program
    is called immediately; what it raises is kept until the search has ended, and if it raises nothing, the search
    continues. Only in the main thread. A child by fork, such as a worker of a DataLoader, which a terminal sends Ctrl-C
    too, lets the first one pass and says nothing: its parent ends it.

    Args:
        interruption: notes it, and knows whether a trial is awaited.
        announce: shows the user what happens now; called in a thread, as Ctrl-C may have come while something is shown.
        clock: returns the seconds since some moment.
    """
    first: list[float] = []
    process = os.getpid()

    def note(error: BaseException) -> bool:
        if os.getpid() != process:
            is_first = not first
            first.append(clock())
            return is_first
        if not (first and _is_of_launcher() and clock() <= first[0] + _SECONDS_OF_ONE_REQUEST):
            if interruption.signal or not interruption.is_awaited:
                return False
            first.append(clock())
            interruption.note(signal.SIGINT)
            threading.Thread(target=_announced, args=(announce, interruption.announcement), daemon=True).start()
        if not isinstance(error, KeyboardInterrupt):
            interruption.error = interruption.error or error
        return True

    with ctrl_c_errors_handled(note):
        yield


def _announced(announce: Callable[[str], None], text: str) -> None:
    with contextlib.suppress(Exception):  # of a view; the search ends all the same
        announce(text)


def ignore_signals() -> None:
    """Ignore SIGTERM and SIGUSR1 in this process, but not in those that it starts.

    A process of a search that does not decide when it ends calls this: a terminal, Slurm or a container may send these
    signals to all processes of the program.
    """
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    _installed.append({number: signal.getsignal(number) for number in numbers})
    for number in numbers:
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not inherited by programs that it starts


def _handler(interruption: Interruption, earlier: object, clock: Callable[[], float]) -> Callable[[int, object], None]:
    first: list[float] = []

    def handle(number: int, frame: object) -> None:
        first.append(clock())
        if first[-1] > first[0] + _SECONDS_OF_ONE_REQUEST:
            _act_as_before(number, frame, earlier)
            return
        interruption.note(number)
        if callable(earlier) and not _is_of_ray(earlier):
            try:
                earlier(number, frame)
            except BaseException as error:
                interruption.error = interruption.error or error

    return handle


def _act_as_before(number: int, frame: object, earlier: object) -> None:
    if callable(earlier):
        earlier(number, frame)
    else:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _is_of_ray(handler: object) -> bool:
    """Return whether `ray.init` has set a handler; it ends the process immediately."""
    return str(getattr(handler, "__module__", "")).startswith("ray.")


def _can_be_noticed(number: int) -> bool:
    handler = signal.getsignal(number)
    is_ignored_or_not_of_python = handler in (None, signal.SIG_IGN)
    return not is_ignored_or_not_of_python and not (handler is signal.SIG_DFL and _is_caught(number))


def _is_caught(number: int) -> bool:
    """Return whether any handler is set, even one unknown to Python, such as that of `faulthandler`; on Linux."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        caught = next(each for each in lines if each.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


def _forget_in_child() -> None:
    """Give a forked process the handlers from before the search: `Pool.terminate` ends its processes by SIGTERM."""
    while _installed:
        put_back(_installed.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def own_command() -> str | None:
    """Return the command line of this program; None if it is not known, or holds a secret.

    It is not known of one process of a launcher, nor of a notebook or a console, which both set `sys.ps1`.
    """
    if _is_of_launcher() or _is_console() or _has_secret(sys.orig_argv):
        return None
    return shlex.join(sys.orig_argv)


def _is_of_launcher() -> bool:
    processes = os.environ.get("WORLD_SIZE", "")
    return "TORCHELASTIC_RUN_ID" in os.environ or (processes.isdecimal() and int(processes) > 1)


def _has_secret(words: Sequence[str]) -> bool:
    """Return whether a command line holds a secret: ``--name value``, ``--name=value``, ``name=value``, or in a URL."""
    pairs = [word.partition("=")[::2] for word in words]
    pairs += [each for each in itertools.pairwise(words) if each[0].startswith("-")]
    named = any(value and holds_secret(name.lstrip("-").replace("-", "_"), value) for name, value in pairs)
    return named or holds_secret("", list(words))


class _ExitHook:
    """A `sys.excepthook` that prints `SearchInterrupted` without a traceback, and ends the program with its exit code.

    A hook of the program, or of a debugger, shows it in its own way. A console, which calls the hook too, is not ended.
    """

    def __init__(self, earlier: Callable[..., object]) -> None:
        self._earlier = earlier

    def __call__(self, kind: type[BaseException], error: BaseException, trace: object) -> None:
        if isinstance(error, SearchInterrupted) and _only_prints(self._earlier):
            sys.stderr.write(f"{error}\n")
        else:
            self._earlier(kind, error, trace)
        if isinstance(error, SearchInterrupted) and not _is_console():
            raise SystemExit(error.exit_code)


def _only_prints(hook: Callable[..., object]) -> bool:
    """Return whether a hook is Python's own, or one that Ray or `torch.distributed` has put in front of it."""
    return hook is sys.__excepthook__ or str(getattr(hook, "__module__", "")).startswith(("ray.", "torch."))


def _is_console() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def set_exit_code() -> None:
    """Let the program exit with the code of a `SearchInterrupted` that it does not catch; Python's own would be 1."""
    if not isinstance(sys.excepthook, _ExitHook):
        sys.excepthook = _ExitHook(sys.excepthook)
