"""Failures before the first success of a study do not count once their cause is mended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpsearch import NoCompletedTrialError, Report, TooManyFailuresError, TrialRecord, TrialState, open_study
from hpsearch.search.requests.request import Kind, Request
from hpsearch.search.store.forgiven_failures import UNCOUNTED_BEFORE, count_uncounted, uncounted_before
from tests.support.coordinators import Searching
from tests.support.searching import HearsNotices, states
from tests.support.small_search import search
from tests.support.small_trainer import CountsModels

REPORT = Report((0.5,), 1, 4, 1.0, {})


def record(number: int, state: TrialState, *reports: Report) -> TrialRecord:
    return TrialRecord(number, f"run-{number}", state, {}, reports=reports)


FAILED = [record(number, TrialState.FAILED) for number in range(3)]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], 0),
        (FAILED, 3),
        ([*FAILED, record(3, TrialState.REFUSED)], 3),
        ([*FAILED, record(3, TrialState.COMPLETE, REPORT)], 0),
        ([*FAILED, record(3, TrialState.FAILED, REPORT)], 4),
        ([*FAILED, record(3, TrialState.PRUNED, REPORT)], 0),
        ([*FAILED, record(3, TrialState.PAUSED, REPORT)], 0),
    ],
)
def test_a_search_that_ends_without_any_success_leaves_failures_that_will_not_count(
    records: list[TrialRecord], expected: int
) -> None:
    assert uncounted_before(records) == expected


@pytest.mark.parametrize(("bound", "expected"), [(None, 0), (0, 0), (2, 2), (9, 3)])
def test_only_failed_trials_below_the_bound_do_not_count(bound: int | None, expected: int) -> None:
    settings = None if bound is None else {UNCOUNTED_BEFORE: bound}
    assert count_uncounted(settings, [*FAILED, record(3, TrialState.COMPLETE, REPORT)]) == expected


def test_a_requested_trial_that_failed_counts() -> None:
    requested = replace(FAILED[0], origin=Request(Kind.RETRY, 1).origin)
    assert count_uncounted({UNCOUNTED_BEFORE: 9}, [requested, *FAILED[1:]]) == 2


def fail(trial: Any) -> None:
    raise RuntimeError("out of luck")


@pytest.mark.slow
def test_with_the_cause_mended_a_search_has_all_its_trials(tmp_path: Path) -> None:
    broken = {"model_init": CountsModels(fail)}
    with pytest.raises(TooManyFailuresError):
        search(tmp_path, 4, trainer=broken, max_failures=3)
    with pytest.raises(NoCompletedTrialError):
        search(tmp_path, 2, trainer=broken, max_failures=3)
    hears = HearsNotices()
    best = search(tmp_path, 4, progress=hears)
    assert states(best) == [*["failed"] * 5, *["complete"] * 4]
    assert hears.notices == ["5 trials that failed do not count, as there was no success before: 9 trials in all"]
    again = search(tmp_path, 4)
    assert len(again.run_summary.records) == 9
    assert len(search(tmp_path, 5).run_summary.records) == 10


def test_a_requested_trial_whose_failure_does_not_count_raises_the_total_once(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(NoCompletedTrialError):
            search(tmp_path, 2, trainer={"model_init": CountsModels(fail)})
        if len(open_study(tmp_path / "study").records) == 2:
            open_study(tmp_path / "study").retry(0)
    notices = HearsNotices()
    records = search(tmp_path, 2, progress=notices).run_summary.records
    assert [each.state for each in records] == [TrialState.FAILED] * 5 + [TrialState.COMPLETE] * 2
    assert any("7 trials in all" in each for each in notices.notices)


def test_a_failure_beside_a_success_counts(tmp_path: Path) -> None:
    def fails_at_first(trial: Any) -> None:
        if trial.number == 0:
            raise RuntimeError("out of luck")

    best = search(tmp_path, 2, trainer={"model_init": CountsModels(fails_at_first)})
    assert states(best) == ["failed", "complete"]
    assert states(search(tmp_path, 2)) == ["failed", "complete"]


def test_what_a_search_starts_with_is_tried_again_where_its_failure_does_not_count(tmp_path: Path) -> None:
    searching = Searching(tmp_path, start_with=({"learning_rate": 0.5},), uncounted_before=1)
    rates = []
    for state in (TrialState.FAILED, TrialState.FAILED, TrialState.COMPLETE):
        begun = searching.coordinator.next()
        assert begun is not None
        rates.append(begun.params["learning_rate"])
        searching.end(begun.number, state)
    assert rates[:2] == [0.5, 0.5]
    assert rates[2] != 0.5
