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


KILLED, NO_NODE = Loss("killed"), Loss("no node", had_worker=False)


@pytest.mark.parametrize(
    ("losses", "retries", "is_retried"),
    [
        ([KILLED, KILLED], 1, [True, False]),
        ([KILLED], 0, [False]),
        ([NO_NODE, NO_NODE], 0, [True, False]),  # one that no process has trained is tried once more
        ([Loss("it cannot be made", is_creation=True)], 3, [False]),
        # An engine that resumes trials itself says so, and may say of the same loss that it does not.
        ([Loss("killed", resumes_itself=True), Loss("killed", is_new=False)], 1, [True, True]),
        ([Loss("killed", resumes_itself=True), KILLED], 1, [True, False]),
    ],
)
@pytest.mark.parametrize("pauses", [False, True])
def test_a_trial_is_resumed_as_often_as_it_may_be_however_often_it_pauses(
    losses: list[Loss], retries: int, is_retried: list[bool], pauses: bool
) -> None:
    dispatch, live, runner = made(retries)
    for loss, retried in zip(losses, is_retried, strict=True):
        assert dispatch.lost(live, loss) is retried
        if retried and not loss.resumes_itself:
            assert dispatch.next() is live
            assert live.has_lost_process
        if pauses:
            live = replace(live, has_lost_process=False)  # as it is chosen again
    assert len(runner.notices) == sum(each.is_new and retried for each, retried in zip(losses, is_retried, strict=True))


def test_a_trial_that_no_process_has_taken_is_the_next_one() -> None:
    dispatch, live, _ = made()
    dispatch.give_back(live)
    assert dispatch.next() is live
