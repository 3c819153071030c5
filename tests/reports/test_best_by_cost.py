"""The best value by cost: the epochs and the time of a search until each trial that was better than all before."""

from __future__ import annotations

import pytest

from hpsearch.reports.best_by_cost import BestByCost, Improvement, best_by_cost
from hpsearch.reports.figure import value_axis
from hpsearch.search.trial_record import Span, TrialRecord, TrialState
from tests.support.rendering import record, summary_of


def trial(number: int, value: float, *spans: Span, epochs: float = 4.0, **changes: object) -> TrialRecord:
    return record(number, value, spans=spans, epochs=epochs, **changes)


def test_the_best_is_that_of_the_trials_that_had_ended_by_all_epochs_until_then_and_by_time_without_breaks() -> None:
    records = [
        trial(0, 0.9, Span(0.0, 10.0), Span(100.0, 110.0)),  # the last to end, after a break
        trial(1, 0.5, Span(0.0, 5.0)),
        trial(2, 0.4, Span(5.0, 8.0)),
        trial(3, 0.7, Span(100.0, 104.0), epochs=2.0),
    ]
    steps = [
        Improvement(1, 0.5, 5.0, 5.0),
        Improvement(3, 0.7, 4 + 4 + 2 + 2.8, 14.0),
        Improvement(0, 0.9, 14.0, 20.0),
    ]
    assert best_by_cost(summary_of(records)) == BestByCost(steps, 14.0, 20.0)


def test_without_recorded_times_trials_count_one_after_the_other() -> None:
    records = [trial(0, 0.5), trial(1, 0.4), trial(2, 0.6), trial(3, 0.9, state=TrialState.PRUNED)]
    steps = [Improvement(0, 0.5, 4.0, None), Improvement(2, 0.6, 12.0, None)]
    assert best_by_cost(summary_of(records)) == BestByCost(steps, 16.0, None)
    assert best_by_cost(summary_of([])).steps == []


@pytest.mark.parametrize(
    ("values", "outside", "extreme"),
    [
        ([0.1 * each for each in range(10)], 0, None),
        ([*(0.1 * each for each in range(10)), 2.0], 0, None),  # takes not most of the range
        ([*(0.1 * each for each in range(10)), 50.0, -1e300, 1.7e308], 3, 1.7e308),
        ([*(0.1 * each for each in range(10)), float("nan"), float("inf")], 0, None),
        ([0.5] * 9 + [100.0], 0, None),  # hides nothing
        ([1.0, 2.0, 1e9], 0, None),  # too few to know
    ],
)
def test_an_axis_leaves_out_values_that_would_press_all_others_together(
    values: list[float], outside: int, extreme: float | None
) -> None:
    axis = value_axis(enumerate(values))
    assert (axis.values, axis.extreme) == (outside, extreme)
    assert bool(axis.layout) == bool(outside)
    assert (f"leaves out {outside} values of {outside} trials" in axis.description) == bool(outside)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_value_is_on_the_axis_also_where_it_is_far_from_all_others(sign: int) -> None:
    axis = value_axis(enumerate([*(0.1 * each for each in range(10)), 9.0 * sign, 1e6 * sign]), best=9.0 * sign)
    low, high = axis.layout["range"]
    assert low < 9.0 * sign < high
    assert (low > -12, high < 12, axis.values) == (True, True, 1)
