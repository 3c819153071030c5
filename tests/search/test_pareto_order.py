"""Trials of several objectives are ranked at a rung by non-dominated fronts, and within a front spread out."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.search.decisions.agreement import Agreement, Compared, agreement
from hpsearch.search.decisions.pareto_order import ParetoRanks, fronts, pareto_order

numbers = st.integers(0, 6).map(float) | st.just(math.inf)
points = st.integers(1, 3).flatmap(lambda count: st.lists(st.tuples(*[numbers] * count), min_size=1, max_size=25))


def dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


@given(points)
def test_each_point_is_dominated_from_the_front_before_its_own_and_by_none_of_its_own_or_later_ones(found: Any) -> None:
    front = fronts(found)
    for place, point in enumerate(found):
        dominators = [front[other] for other, each in enumerate(found) if dominates(each, point)]
        assert front[place] == 1 + max(dominators, default=-1)


@given(points)
def test_the_order_is_by_front_and_has_each_point_once(found: Any) -> None:
    order, front = pareto_order(found), fronts(found)
    assert sorted(order) == list(range(len(found)))
    assert [front[place] for place in order] == sorted(front)


@given(points)
def test_a_monotone_change_of_scale_changes_no_place(found: Any) -> None:
    changed = [tuple(math.exp(each) for each in point) for point in found]
    assert pareto_order(changed) == pareto_order(found)


@given(st.lists(numbers, min_size=1, max_size=25))
def test_one_objective_is_sorted_and_the_earlier_of_equals_comes_first(values: list[float]) -> None:
    expected = sorted(range(len(values)), key=lambda place: (values[place], place))
    assert pareto_order([(each,) for each in values]) == expected


def test_within_a_front_the_best_by_the_first_objective_comes_first_then_what_is_farthest() -> None:
    front = [(float(place), 8.0 - place) for place in range(9)]
    assert pareto_order(front)[:3] == [0, 8, 4]
    assert sorted(pareto_order(front)[3:5]) == [2, 6]
    assert pareto_order([*front, front[4]])[-1] == 9  # an equal of one that is chosen adds nothing


def test_ranks_that_are_kept_are_those_of_all_costs_as_they_are_now() -> None:
    random, kept, now = np.random.default_rng(0), ParetoRanks(), {}
    for _ in range(200):
        number = int(random.integers(20))
        costs = (tuple(float(each) for each in random.integers(5, size=2)), float(random.integers(2)))
        kept.set(number, now.get(number), costs)
        now[number] = costs
        if random.random() < 0.2:
            kept.set(number, now.pop(number), None)
        fresh = ParetoRanks()
        for each, known in now.items():
            fresh.set(each, None, known)
        assert [kept.rank(each) for each in now] == [fresh.rank(each) for each in now]


def test_of_equal_costs_the_lower_loss_and_then_the_lower_number_comes_first() -> None:
    kept = ParetoRanks()
    for number, loss in ((3, 0.2), (2, 0.1), (1, 0.2)):
        kept.set(number, None, ((0.5, 1.0), loss))
    assert [kept.rank(number) for number in (2, 1, 3)] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["random", "one front", "as many fronts as points"])
def test_a_thousand_trials_at_a_rung_are_ranked_in_no_time(kind: str) -> None:
    first = np.arange(1000.0)
    second = {"random": np.random.default_rng(0).random(1000), "one front": -first}.get(kind, first)
    costs = list(zip(first.tolist(), second.tolist(), strict=True))
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        pareto_order(costs)
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 0.05  # 0.01 s alone


@pytest.mark.parametrize(
    ("late", "found"),
    [
        ([(1, 1), (2, 2), (3, 3)], Agreement(3, 3, 3)),
        ([(3, 3), (2, 2), (1, 1)], Agreement(0, 3, 3)),
        ([(1, 3), (2, 2), (3, 1)], Agreement(0, 3, 3)),  # each might have been on the front
        ([(1, 1), (1, 1), (3, 3)], Agreement(2, 2, 3)),  # equal ones say nothing
    ],
)
def test_a_pair_agrees_if_the_trial_that_dominates_at_the_rung_dominates_at_the_end(late: Any, found: Any) -> None:
    early = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
    compared = [Compared(each, None, final) for each, final in zip(early, late, strict=True)]
    assert agreement(compared) == found
    probes = [Compared(each, at_last_rung, None) for each, at_last_rung in zip(early, late, strict=True)]
    assert agreement(probes) == found


def test_pairs_of_which_neither_dominates_at_the_rung_are_not_compared() -> None:
    early = [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
    assert agreement([Compared(each, None, each) for each in early]) == Agreement(0, 0, 3)
