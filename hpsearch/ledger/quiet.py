"""Optuna without its own log lines."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import optuna

_is_quiet: ContextVar[bool] = ContextVar("_is_quiet", default=False)


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's own log lines and experimental warnings: progress is shown by our listeners.

    Inside another such block nothing is left to be done.
    """
    if _is_quiet.get():
        yield
        return
    _silence.watch()
    token = _is_quiet.set(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
            # A parameter knows the last step in its range; Optuna says so for every value that it suggests.
            warnings.filterwarnings("ignore", message=".*range is not divisible by `step`.*")
            yield
    finally:
        _is_quiet.reset(token)


class _Silence(logging.Filter):
    """Drops what Optuna logs below a warning inside a quiet block.

    A filter, because to change a logger's level and back empties the caches of all loggers, a millisecond each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known = 0

    def watch(self) -> None:
        """Attach this filter to all loggers of Optuna that exist; a module makes its own when it is imported."""
        loggers = logging.root.manager.loggerDict
        if len(loggers) == self._known:
            return
        self._known = len(loggers)
        for name, logger in list(loggers.items()):
            if name.partition(".")[0] == "optuna" and isinstance(logger, logging.Logger):
                logger.addFilter(self)  # once, however often it is added

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        return record.levelno >= logging.WARNING or not _is_quiet.get()


_silence = _Silence()
