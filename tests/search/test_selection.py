"""Which report stands for a trial, and which trial wins, under every scope."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpsearch import Report, StudyError, TrialRecord, TrialState
from hpsearch.search.metrics.objective import Objective, resolve_objectives
from hpsearch.search.metrics.selection import best_records, check_scope, ranking, select_report
from hpsearch.system.scope_names import SCOPES

MINIMIZE = resolve_objectives("loss", "minimize", has_metrics=False)
MAXIMIZE = resolve_objectives("accuracy", "maximize", has_metrics=True)


def reports(*values: float) -> tuple[Report, ...]:
    return tuple(Report((value,), step, 10 * step, float(step), {}) for step, value in enumerate(values, start=1))


def record(number: int, value: float | None, state: TrialState = TrialState.COMPLETE, **changes: Any) -> TrialRecord:
    return TrialRecord(number, f"run-{number}", state, {}, values=() if value is None else (value,), **changes)


def winner(scope: str, objective: tuple[Objective, ...], *trials: tuple[float, ...]) -> int:
    records = []
    for number, values in enumerate(trials):
        selected = select_report(reports(*values), scope, objective)
        records.append(record(number, None if selected is None else selected.values[0]))
    [best] = best_records(records, objective)
    return best.number


@pytest.mark.feature(11)
@pytest.mark.parametrize(
    ("scope", "first", "second", "third", "best"),
    [
        ("last", 9, 4, 3.5, 2),
        ("all", 1, 4, 3, 0),
        ("avg", 5, 4, 14.5 / 3, 1),
        ("last-5-avg", 5, 4, 14.5 / 3, 1),
        ("last-10-avg", 5, 4, 14.5 / 3, 1),
    ],
)
@pytest.mark.parametrize("objective", [MINIMIZE, MAXIMIZE])
def test_the_three_trials_are_told_apart_by_every_scope(
    scope: str, first: float, second: float, third: float, best: int, objective: tuple[Objective, ...]
) -> None:
    sign = 1.0 if objective is MINIMIZE else -1.0
    trials = [tuple(sign * value for value in values) for values in ((5, 1, 9), (4, 4, 4), (3, 8, 3.5))]
    for values, expected in zip(trials, (first, second, third), strict=True):
        selected = select_report(reports(*values), scope, objective)
        assert selected is not None
        assert selected.values[0] == pytest.approx(sign * expected)
    assert winner(scope, objective, *trials) == best


def test_all_is_the_largest_report_when_maximised() -> None:
    selected = select_report(reports(5, 1, 9), "all", MAXIMIZE)
    assert selected is not None
    assert (selected.values[0], selected.report.step) == (9, 30)


@pytest.mark.parametrize(
    ("scope", "step"), [("last", 30), ("all", 20), ("avg", 30), ("last-5-avg", 30), ("last-10-avg", 30)]
)
def test_the_weights_are_those_of_the_report_that_gives_the_value_or_of_the_last_behind_a_mean(
    scope: str, step: int
) -> None:
    selected = select_report(reports(5, 1, 9), scope, MINIMIZE)
    assert selected is not None
    assert selected.report.step == step


def test_of_equally_good_reports_the_earliest_stands_for_the_trial() -> None:
    selected = select_report(reports(2, 1, 1), "all", MINIMIZE)
    assert selected is not None
    assert selected.report.step == 20


def test_averages_look_back_over_their_window() -> None:
    twelve = reports(*range(12))
    values = {scope: select_report(twelve, scope, MINIMIZE) for scope in SCOPES}
    assert {scope: each.values[0] for scope, each in values.items() if each} == {
        "last": 11,
        "all": 0,
        "avg": 5.5,
        "last-5-avg": 9.0,
        "last-10-avg": 6.5,
    }


@pytest.mark.feature(11)
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("objective", [MINIMIZE, MAXIMIZE])
def test_reports_that_are_not_finite_are_left_out(scope: str, bad: float, objective: tuple[Objective, ...]) -> None:
    with_gaps = (*reports(3.0, bad, 5.0), Report((bad,), 4, 40, 4.0, {}))
    without = tuple(each for each in with_gaps if math.isfinite(each.value))
    assert select_report(with_gaps, scope, objective) == select_report(without, scope, objective)


@pytest.mark.parametrize("scope", SCOPES)
def test_sparse_reports_are_averaged_over_their_own_number(scope: str) -> None:
    sparse = tuple(Report((value,), resource, resource, resource, {}) for resource, value in ((10, 2.0), (50, 4.0)))
    expected = {"last": 4.0, "all": 2.0}.get(scope, 3.0)
    selected = select_report(sparse, scope, MINIMIZE)
    assert selected is not None
    assert selected.values[0] == expected


@pytest.mark.parametrize("scope", SCOPES)
def test_a_single_report_stands_for_its_trial_and_none_for_none(scope: str) -> None:
    only = reports(7.0)
    selected = select_report(only, scope, MINIMIZE)
    assert selected is not None
    assert (selected.values[0], selected.report) == (7.0, only[0])
    assert select_report((), scope, MINIMIZE) is None
    assert select_report(reports(math.nan, math.inf), scope, MINIMIZE) is None


@pytest.mark.parametrize(("objective", "order"), [(MINIMIZE, [2, 0, 3, 1]), (MAXIMIZE, [1, 0, 3, 2])])
def test_trials_are_ranked_by_value_and_equals_by_number(objective: tuple[Objective, ...], order: list[int]) -> None:
    records = [record(3, 0.5), record(1, 0.9), record(0, 0.5), record(2, 0.0)]
    assert [each.number for each in ranking(records, objective)] == order


@pytest.mark.parametrize("first", [-1, 0, 1, 2, 3, 5, 6, 9, None])
@pytest.mark.parametrize("objective", [MINIMIZE, MAXIMIZE])
def test_the_first_few_are_those_of_the_whole_ranking(objective: tuple[Objective, ...], first: int | None) -> None:
    values = [0.5, 0.2, 0.9, 0.2, None, 0.2, 0.9]
    records = [record(number, value) for number, value in enumerate(values)]
    whole = [each.number for each in ranking(records, objective)]
    assert [each.number for each in ranking(records[::-1], objective, first)] == (
        whole if first is None else whole[: max(first, 0)]
    )


def test_only_trials_with_a_result_are_ranked() -> None:
    values = {state: record(number, float(number), state) for number, state in enumerate(TrialState)}
    kept = {each.state for each in ranking(values.values(), MINIMIZE)}
    assert kept == {TrialState.COMPLETE, TrialState.STOPPED}
    assert ranking([record(0, None)], MINIMIZE) == []
    assert best_records([record(0, 1.0, TrialState.PRUNED)], MINIMIZE) == []


@pytest.mark.parametrize("scope", ["lst", "best", "", None, 5, ["last"]])
def test_what_is_no_scope_is_refused_with_those_allowed(scope: Any) -> None:
    with pytest.raises(StudyError) as caught:
        check_scope(scope)
    assert f"scope={scope!r}" in str(caught.value)
    for allowed in SCOPES:
        assert repr(allowed) in str(caught.value)


@pytest.mark.feature(11)
def test_the_scopes_are_those_of_ray_tune() -> None:
    assert set(SCOPES) == {"last", "all", "avg", "last-5-avg", "last-10-avg"}
    assert all(check_scope(scope) == scope for scope in SCOPES)
