"""Optuna without its own log lines."""

from __future__ import annotations

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
    level = optuna.logging.get_verbosity()
    try:
        _is_quiet.set(True)
        _set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
            # A parameter knows the last step in its range; Optuna says so for every value that it suggests.
            warnings.filterwarnings("ignore", message=".*range is not divisible by `step`.*")
            yield
    finally:
        _set_verbosity(level)
        _is_quiet.set(False)


def _set_verbosity(level: int) -> None:
    if optuna.logging.get_verbosity() != level:  # to set it takes a millisecond, whatever it was
        optuna.logging.set_verbosity(level)
