"""What the scheduler that Tune asks answers, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from ray.tune.experiment import Trial

from hpsearch.executors.ray_executor.study_scheduler import StudyScheduler


class Queued:
    """A trial as Tune has it; Tune starts it by itself while it is pending."""

    config: dict[str, Any] = {}

    def __init__(self, name: str) -> None:
        self.trial_id, self.status = name, Trial.PENDING

    def set_status(self, status: str) -> None:
        self.status = status


def test_of_more_trials_than_may_run_one_is_held_back_until_another_has_ended() -> None:
    live: list[Queued] = []
    controller: Any = SimpleNamespace(get_live_trials=lambda: live, get_trials=lambda: live)
    dispatch: Any = SimpleNamespace(is_ending=False, exhausted=lambda: None)
    scheduler = StudyScheduler(dispatch, None, at_once=2)
    for name in ("first", "second", "third"):
        trial: Any = Queued(name)
        live.append(trial)
        scheduler.on_trial_add(controller, trial)
    first, second, third = live
    assert [each.status for each in live] == [Trial.PENDING, Trial.PENDING, Trial.PAUSED]
    first.status = second.status = Trial.RUNNING
    assert scheduler.choose_trial_to_run(controller) is None
    live.remove(first)
    assert scheduler.choose_trial_to_run(controller) is third
