"""What becomes of workers, without any process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hpsearch import StudyError
from hpsearch.executors.processes import pool
from hpsearch.executors.processes.device_slots import Slot
from hpsearch.executors.processes.group_outcomes import GroupBroken, GroupFailed
from hpsearch.executors.processes.pool import Lost, Worker, Workers
from hpsearch.executors.processes.worker import Ready, Unusable
from hpsearch.trial.messages import Progress

DIES, NO_ROOM = Lost("killed"), Unusable("no room")


def workers_that_say(monkeypatch: pytest.MonkeyPatch, *messages: object) -> Workers:
    """Return the workers of one slot; whichever is there says the next of these messages."""
    left = iter(messages)

    class Says:
        def __init__(self, number: int, slot: Slot, *_: object) -> None:
            self.number, self.slot, self.trials = number, slot, 0
            self.is_ready = self.is_over = self.is_forked_here = self.is_broken = False
            self.heard_at = 0.0

        def receive(self) -> object:
            return next(left)

        def end(self, seconds: float = 0.0) -> None:
            """There is no process."""

    monkeypatch.setattr(pool, "Worker", Says)
    monkeypatch.setattr(pool, "_with_news", lambda workers, seconds: workers)
    payload: Any = None
    workers = Workers([Slot((), 1)], payload)
    workers.start()
    for _ in messages:
        assert list(workers.wait(0.0)) == []  # nothing that concerns a trial
    return workers


def test_starts_that_fail_are_counted_until_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = workers_that_say(monkeypatch, Ready(), *[DIES, NO_ROOM, NO_ROOM, Ready()] * 3)
    assert len(workers.ready()) == 1
    with pytest.raises(StudyError, match="No worker can be started: no room"):
        workers_that_say(monkeypatch, Ready(), DIES, NO_ROOM, NO_ROOM, NO_ROOM)


class Group:
    """A group that says what a test lets it say, and has no process."""

    made: list[Group] = []
    news: list[tuple[Group, object]] = []

    def __init__(self, number: int, slot: Slot, payload: object, process: object, clock: Callable[[], float]) -> None:
        self.number, self.slot, self.trials, self.clock, self.heard_at = number, slot, 0, clock, clock()
        self.is_ready = self.is_over = self.is_forked_here = self.is_broken = self.has_ended = False
        Group.made.append(self)

    def receive(self) -> object:
        self.heard_at = self.clock()
        return next(message for group, message in Group.news if group is self)

    def send_to_all(self, message: object) -> bool:
        self.heard_at = self.clock()
        return True

    def reason_of_end(self, seconds: float) -> str | None:
        return None

    def end(self, seconds: float = 0.0) -> None:
        self.has_ended = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(pool, "Worker", Group)
    monkeypatch.setattr(pool, "_with_news", lambda workers, seconds: [group for group, _ in Group.news])
    monkeypatch.setattr(Group, "made", [])
    monkeypatch.setattr(Group, "news", [])
    return Clock()


def busy_group(clock: Clock, processes: int = 2) -> tuple[Workers, Group]:
    payload: Any = None
    workers = Workers([Slot((), 1, processes)], payload, group_timeout=600.0, clock=clock)
    workers.start()
    [group] = Group.made
    told(workers, group, Ready())
    trial: Any = None
    assert workers.train(workers.ready()[0], trial)
    return workers, group


def told(workers: Workers, group: Group, *messages: object) -> list[object]:
    """Return what the workers yield when the group says this, or nothing."""
    found: list[object] = []
    for message in messages or [None]:
        Group.news = [(group, message)] if messages else []
        found += [each for _, each in workers.wait(0.0)]
    return found


def test_a_group_that_says_nothing_while_it_trains_is_lost_after_the_timeout(clock: Clock) -> None:
    workers, group = busy_group(clock)
    clock.now = 600.0
    assert told(workers, group) == []
    clock.now = 600.5
    assert told(workers, group) == [Lost("no answer for 600 s")]
    assert group.has_ended
    assert len(Group.made) == 2  # another one takes its place


def test_a_worker_of_one_process_keeps_its_trial_however_long_it_says_nothing(clock: Clock) -> None:
    workers, worker = busy_group(clock, processes=1)
    clock.now = 100_000.0
    assert told(workers, worker) == []
    assert not worker.has_ended


def test_any_message_of_a_group_begins_the_timeout_anew(clock: Clock) -> None:
    workers, group = busy_group(clock)
    for clock.now in (500.0, 1000.0, 1500.0):
        assert told(workers, group, Progress(1, 9)) == [Progress(1, 9)]
    clock.now = 2100.0
    assert told(workers, group) == []
    clock.now = 2101.0
    assert told(workers, group) == [Lost("no answer for 600 s")]


def test_a_group_without_a_trial_may_say_nothing_as_long_as_it_likes(clock: Clock) -> None:
    workers, group = busy_group(clock)
    group.is_ready = True
    clock.now = 10_000.0
    assert told(workers, group) == []
    assert not group.has_ended


def test_a_group_that_does_not_load_the_trainer_in_time_is_replaced_and_no_trial_is_lost(clock: Clock) -> None:
    payload: Any = None
    workers = Workers([Slot((), 1, 2)], payload, group_timeout=600.0, clock=clock)
    workers.start()
    for clock.now in (601.0, 1202.0):
        assert told(workers, Group.made[-1]) == []
    clock.now = 1803.0
    with pytest.raises(StudyError, match="No worker can be started: no answer for 600 s"):
        told(workers, Group.made[-1])


def test_a_group_that_has_failed_ends_its_trial_and_is_replaced(clock: Clock) -> None:
    workers, group = busy_group(clock)
    ended: Any = object()
    assert told(workers, group, GroupFailed(ended)) == [ended]
    group.is_ready = True  # the search has recorded the trial
    workers.release(group, has_failed=True)  # type: ignore[arg-type]
    assert group.has_ended
    assert len(Group.made) == 2


def test_a_group_that_has_lost_its_connection_loses_its_trial(clock: Clock) -> None:
    workers, group = busy_group(clock)
    assert told(workers, group, GroupBroken("RuntimeError: connection reset")) == [
        Lost("RuntimeError: connection reset")
    ]
    assert group.has_ended


def test_the_process_of_a_group_that_dies_first_is_named_not_those_that_are_ended_because_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def process(exitcode: int | None) -> Any:
        return SimpleNamespace(exitcode=exitcode, sentinel=0, connection=SimpleNamespace(poll=lambda: False))

    group: Any = Worker.__new__(Worker)
    group._processes, group._reason_of_end = [process(None), process(-11), process(None)], None

    def end_all(self: Any) -> None:
        for each in self._processes:
            each.exitcode = each.exitcode or -9

    monkeypatch.setattr(Worker, "_end_groups", end_all)
    monkeypatch.setattr(pool, "wait", lambda *_: [])
    assert group.receive() == Lost("process 1 of 3: SIGSEGV")
