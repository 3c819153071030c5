"""What hears of Tune's workers passes a signal on to each of them."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial

from hpsearch.executors.ray_executor.tune_parts import WorkerEvents
from hpsearch.system.interruption import Interruption


class Worker:
    """Stands for the handle of a worker: remembers the signals that were sent to it."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.finish_step = SimpleNamespace(remote=self.signals.append)
        self.begin = SimpleNamespace(remote=lambda seconds: None)


def test_a_worker_that_takes_over_after_the_signal_is_told_of_it_too() -> None:
    said: list[str] = []
    interruption = Interruption()
    dispatch: Any = SimpleNamespace(interruption=interruption, error=None, seconds_left=None, announce=said.append)
    events = WorkerEvents(dispatch, lambda: None)
    workers = [Worker(), Worker()]
    dispatch.interruption.note(signal.SIGUSR1)
    for worker in workers:
        trial: Any = SimpleNamespace(
            trial_id="a", status=Trial.RUNNING, temporary_state=SimpleNamespace(ray_actor=worker)
        )
        events.on_trial_start(0, [trial], trial)
        for step in range(2):
            events.on_step_begin(step, [trial])
    assert [each.signals for each in workers] == [[signal.SIGUSR1]] * 2
    assert set(said) == {interruption.announcement}
