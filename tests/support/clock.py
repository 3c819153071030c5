"""A clock that a test moves."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest


class Clock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self._now = 1000.0

    def __call__(self) -> float:
        return self._now

    def move(self, seconds: float) -> Callable[[], None]:
        """Return an action that moves the clock forward."""

        def act() -> None:
            self._now += seconds

        return act


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all budgets of the searches that the test makes in this process."""
    from hpsearch.searching import run_search as searching  # not before it is used: `tests/conftest.py` says why

    clock = Clock()
    monkeypatch.setattr(searching, "Search", functools.partial(searching.Search, clock=clock))
    return clock
