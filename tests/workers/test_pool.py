"""What becomes of workers, without any process."""

from __future__ import annotations

from typing import Any

import pytest

from hpsearch import StudyError
from hpsearch.executors.processes import pool
from hpsearch.executors.processes.device_slots import Slot
from hpsearch.executors.processes.pool import Lost, Workers
from hpsearch.executors.processes.worker import Ready, Unusable

DIES, NO_ROOM = Lost("killed"), Unusable("no room")


def workers_that_say(monkeypatch: pytest.MonkeyPatch, *messages: object) -> Workers:
    """Return the workers of one slot; whichever is there says the next of these messages."""
    left = iter(messages)

    class Says:
        def __init__(self, number: int, slot: Slot, *_: object) -> None:
            self.number, self.slot, self.trials = number, slot, 0
            self.is_ready = self.is_over = self.is_forked_here = False

        def receive(self) -> object:
            return next(left)

        def end(self, seconds: float = 0.0) -> None:
            """There is no process."""

    monkeypatch.setattr(pool, "Worker", Says)
    monkeypatch.setattr(pool, "_with_news", lambda workers, seconds: workers)
    payload: Any = None
    workers = Workers([Slot(None, 1)], payload)
    workers.start()
    for _ in messages:
        assert list(workers.wait(0.0)) == []  # nothing that concerns a trial
    return workers


def test_starts_that_fail_are_counted_until_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = workers_that_say(monkeypatch, Ready(), *[DIES, NO_ROOM, NO_ROOM, Ready()] * 3)
    assert len(workers.ready()) == 1
    with pytest.raises(StudyError, match="No worker can be started: no room"):
        workers_that_say(monkeypatch, Ready(), DIES, NO_ROOM, NO_ROOM, NO_ROOM)
