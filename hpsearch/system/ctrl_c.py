"""Ctrl-C while a block runs: an action, an interruption, or ignored; and signal handlers put back after it."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from types import FrameType
from typing import Any

SECONDS_TO_THE_NEXT_PRESS = 0.05


@contextlib.contextmanager
def at_ctrl_c(act: Callable[[], None], times: int = 1) -> Iterator[None]:
    """Call `act` at the first Ctrl-C while the block runs, or the first few; then it is an error, wherever it comes.

    Only in the main thread, and unless the program ignores Ctrl-C.
    """

    presses: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        if len(presses) > times:
            signal.default_int_handler(number, frame)
        act()

    with restored_signals("SIGINT") as handlers:
        if handlers.get(signal.SIGINT) not in (None, signal.SIG_IGN):
            signal.signal(signal.SIGINT, handle)
        yield


@contextlib.contextmanager
def ctrl_c_as_interruption() -> Iterator[None]:
    """Raise KeyboardInterrupt for any error that comes out of the block after Ctrl-C was an error in it.

    What Ctrl-C interrupts may make another error of it: an import of compiled code a TypeError, say. Python itself
    drops the errors of a destructor, so a Ctrl-C that fell into one is pressed again, once the destructor has ended.
    What Ctrl-C does stays as it was: one that only makes a note interrupts nothing. Only in the main thread.
    """
    errors: list[BaseException] = []

    def keep(error: BaseException) -> bool:
        errors.append(error)
        return False

    with ctrl_c_errors_handled(keep):
        try:
            with _pressed_again(errors):
                yield
        except Exception as error:
            if errors:
                raise KeyboardInterrupt from error
            raise


@contextlib.contextmanager
def ctrl_c_errors_handled(handle_error: Callable[[BaseException], bool]) -> Iterator[None]:
    """Call `handle_error` with what Ctrl-C raises while the block runs; it is raised unless that returns True.

    Only in the main thread, and unless Ctrl-C is ignored.
    """
    with restored_signals("SIGINT") as handlers:
        before = handlers.get(signal.SIGINT)
        if callable(before):

            def handle(number: int, frame: object) -> None:
                try:
                    before(number, frame)
                except BaseException as error:
                    if not handle_error(error):
                        raise

            signal.signal(signal.SIGINT, handle)
        yield


@contextlib.contextmanager
def _pressed_again(errors: Sized) -> Iterator[None]:
    """Press Ctrl-C once more whenever Python drops a KeyboardInterrupt in the block, once Ctrl-C has raised errors."""
    main, before = threading.main_thread().ident, sys.unraisablehook

    def drop(dropped: sys.UnraisableHookArgs) -> None:
        if len(errors) and main is not None and issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(SECONDS_TO_THE_NEXT_PRESS, signal.pthread_kill, (main, signal.SIGINT)).start()
        else:
            before(dropped)

    sys.unraisablehook = drop
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def ignoring_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C while the block runs, and in the processes that it starts; only in the main thread."""
    with restored_signals("SIGINT") as handlers:
        if handlers:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        yield


@contextlib.contextmanager
def restored_signals(*names: str) -> Iterator[dict[int, Any]]:
    """Put back the handlers of signals afterwards; yield them. Only the main thread has, and changes, any."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in names if is_main and hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield handlers
    finally:
        put_back(handlers)


def put_back(handlers: Mapping[int, Any]) -> None:
    """Set the handlers of signals."""
    for number, handler in handlers.items():
        if handler is not None:  # None: not set by Python
            signal.signal(number, handler)
