"""What Ray changes in this process - variables, signals, loggers - for as long as a search needs it, and no longer."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TUNE_LOGGERS = ("ray.tune", "ray.train", "ray.air")


@contextlib.contextmanager
def quiet_tune(slots: int) -> Iterator[None]:
    """Let Tune run without its own output, files and checks, and put back what it changes in this process.

    Tune reads all these variables while it runs, so they may be set after Ray was imported, and after it was joined.

    Args:
        slots: how many trials run at once; as many may wait for a place.
    """
    settings = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
        "TUNE_GLOBAL_CHECKPOINT_S": "1e9",
        "TUNE_MAX_PENDING_TRIALS_PG": str(max(slots, 1)),
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        # Tune hands this one on to the workers.
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }
    # Tune may set TUNE_RESULT_BUFFER_LENGTH, and leaves its handlers of both signals.
    with (
        environment(settings, "TUNE_RESULT_BUFFER_LENGTH"),
        restored_signals("SIGINT", "SIGUSR1"),
        restored_levels(*_TUNE_LOGGERS),
    ):
        for name in _TUNE_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield


@contextlib.contextmanager
def environment(settings: Mapping[str, str], *others: str) -> Iterator[None]:
    """Set variables of the environment; put back these and `others` afterwards."""
    before = {name: os.environ.get(name) for name in (*settings, *others)}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def at_ctrl_c(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` at the first Ctrl-C while the block runs; the next one is an error, wherever the program is.

    Only in the main thread, and unless the program ignores Ctrl-C.
    """

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        act()

    with restored_signals("SIGINT") as handlers:
        if handlers.get(signal.SIGINT) not in (None, signal.SIG_IGN):
            signal.signal(signal.SIGINT, handle)
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


@contextlib.contextmanager
def restored_levels(*names: str) -> Iterator[None]:
    """Put back the levels of loggers afterwards."""
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
