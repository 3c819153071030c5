"""Limit the changes that Ray makes in this process - variables, signals, loggers - to the duration of a search."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from ...system.ctrl_c import put_back, restored_signals
from ...system.environment_variables import environment

_TUNE_LOGGERS = ("ray.tune", "ray.train", "ray.air")


@contextlib.contextmanager
def quiet_tune(slots: int) -> Iterator[Callable[[], None]]:
    """Let Tune run without its own output, files and checks, and put back what it changes in this process.

    Yield a function that puts back the handler of SIGUSR1 while Tune runs: Tune's own would end the search immediately.

    Tune reads all these variables while it runs, so they may be set after Ray was imported, and after it was joined.

    Args:
        slots: the number of parallel trials; as many may be queued.
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
        restored_signals("SIGUSR1") as handlers,
        restored_levels(*_TUNE_LOGGERS),
    ):
        for name in _TUNE_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield lambda: put_back(handlers)


@contextlib.contextmanager
def restored_levels(*names: str) -> Iterator[None]:
    """Put back the levels of loggers afterwards."""
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
