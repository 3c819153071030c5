"""The reports of trials that other processes train reach the search as they should."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpsearch.backends.optuna_backend.dispatch import Dispatch, LiveTrial
from hpsearch.search.lost_worker import Loss
from hpsearch.search.messages import Noted
from hpsearch.search.trial import TrialRecord
from tests.support.at_rungs import running


def made(retries: int = 1) -> tuple[Dispatch, LiveTrial, Any]:
    """Return a dispatch with a trial that resumes after two reports, and what stands for its runner."""
    trial = SimpleNamespace(number=0, begin_again=lambda: None)
    so_far = replace(running(0, 0.5, 0.4), epochs=3.0, fraction=1 / 6)
    live = LiveTrial(trial, SimpleNamespace(number=0), so_far)  # type: ignore[arg-type]
    runner = SimpleNamespace(under_way={0: so_far}, written=[], notices=[])
    runner.note, runner.announce = runner.written.append, runner.notices.append
    dispatch = Dispatch(runner, None, retries=retries)  # type: ignore[arg-type]
    dispatch.live[0] = live
    return dispatch, live, runner


def test_a_trial_that_runs_out_of_memory_before_it_has_resumed_keeps_its_reports() -> None:
    dispatch, live, runner = made()
    smaller = ({"arguments": {"per_device_train_batch_size": 1}, "reason": "out of memory"},)
    anew = TrialRecord(0, "run-0", live.so_far.state, {}, epochs=0.0, fraction=0.0, fallbacks=smaller)
    dispatch.hear(live, Noted(anew))
    for record in (live.so_far, runner.under_way[0], *runner.written):
        assert (len(record.reports), record.epochs, record.fraction) == (2, 3.0, 1 / 6)
        assert record.fallbacks == smaller
    assert len(runner.written) == 1


@pytest.mark.parametrize(
    ("loss", "is_retried", "is_next"),
    [
        (Loss("killed"), [True, False], True),
        (Loss("killed", is_new=False), [True, True], True),
        (Loss("killed", resumes_itself=True), [True, True], False),
        (Loss("it cannot be made", is_creation=True), [False], False),
    ],
)
def test_a_trial_is_resumed_as_often_as_it_may_be(loss: Loss, is_retried: list[bool], is_next: bool) -> None:
    dispatch, live, runner = made(retries=1)
    for retried in is_retried:
        assert dispatch.lost(live, loss) is retried
        if retried and is_next:
            assert dispatch.next() is live
    assert len(runner.notices) == (sum(is_retried) if loss.is_new else 0)


def test_a_trial_that_no_process_has_taken_is_the_next_one() -> None:
    dispatch, live, _ = made()
    dispatch.give_back(live)
    assert dispatch.next() is live
