"""Optuna's log at a level that a test needs, whatever other tests have left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import optuna


@contextlib.contextmanager
def optuna_logs(level: int) -> Iterator[None]:
    """Let Optuna log at a level, to the root logger too, while the block runs; then it is as before."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(level)
    optuna.logging.enable_propagation()
    try:
        yield
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.set_verbosity(before)
