"""What a search says at its end about where a further one might find more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpsearch import Categorical, Float, Int, Report, SearchSpace, SearchSummary, TrialState
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.result.advice import advice
from tests.support.rendering import NoEngine, record


class Known:
    """A study, as far as advice asks for it."""

    constraints = ()
    scope = "last"
    folder = Path("nowhere")

    def __init__(self, space: Any = None, objective: Any = "accuracy") -> None:
        self.objectives = resolve_objectives(objective, None, has_metrics=True)
        self.objective = self.objectives[0]
        self._space = SearchSpace(space or {"learning_rate": Float(1e-4, 0.1, log=True)})

    def described_space(self) -> dict[str, Any] | str:
        return self._space.describe()


def trial(number: int, value: float, state: TrialState = TrialState.COMPLETE, **params: Any) -> Any:
    last = Report((value,), 1, 1, 1.0, {})
    return record(number, value, state, params=params, reports=(last,))


@pytest.mark.parametrize(
    ("parameter", "value", "end"),
    [
        (Float(1e-4, 0.1, log=True), 0.1, "upper"),
        (Float(1e-4, 0.1, log=True), 0.095, "upper"),
        (Float(1e-4, 0.1, log=True), 0.09, None),
        (Float(1e-4, 0.1, log=True), 1.05e-4, "lower"),
        (Float(1e-4, 0.1), 1.05e-4, "lower"),
        (Float(1e-4, 0.1), 0.098, None),
        (Float(0.0, 0.1), 0.0, None),
        (Float(0.0, 0.1), 0.1, "upper"),
        (Int(1, 8), 8, "upper"),
        (Int(1, 3), 3, None),
        (Int(4, 64, step=4), 64, "upper"),
        (Categorical([1, 2, 3]), 3, None),
    ],
)
def test_a_best_value_at_the_end_of_its_range_is_said(parameter: Any, value: Any, end: str | None) -> None:
    told = advice(Known({"x": parameter}), [trial(0, 0.5, x=0.02), trial(1, 0.9, x=value)])
    expected = [f"The best x, {value:g}, is at the {end} end of its range: a wider range may hold better values."]
    assert told == (expected if end else [])


def test_nothing_is_said_of_the_seed_of_branches_that_are_not_open_and_of_several_objectives() -> None:
    space = {"seed": Int(1, 9), "kind": Categorical({"a": {}, "b": {"x": Float(1.0, 2.0)}})}
    assert advice(Known(space), [trial(0, 0.5, seed=9, kind="a")]) == []
    assert advice(Known({"x": Float(1.0, 2.0)}, ["accuracy", "loss"]), [trial(0, 0.5, x=2.0)]) == []
    assert advice(Known(), []) == []


@pytest.mark.parametrize(("pruned", "is_said"), [(0.95, True), (0.85, False), (float("nan"), False)])
def test_a_pruned_trial_that_was_better_than_the_best_one_is_said(pruned: float, is_said: bool) -> None:
    records = [trial(0, 0.9), trial(1, pruned, TrialState.PRUNED), trial(2, 0.93, TrialState.PRUNED)][: 2 + is_said]
    told = advice(Known(), records)
    said = "Trial 1 was pruned with 0.95, which is better than 0.9, the result of the best trial: prune "
    assert told == ([f"{said}later, or not at all (pruner=None)."] if is_said else [])


def test_all_trials_best_first_are_those_with_a_result_then_the_others_by_what_they_came_to() -> None:
    records = [
        trial(0, 0.2, TrialState.PRUNED),
        trial(1, 0.5),
        trial(2, float("nan"), TrialState.FAILED),
        trial(3, 0.7, TrialState.PRUNED),
        trial(4, 0.6),
    ]
    summary = SearchSummary(Known(), records, NoEngine)  # type: ignore[arg-type]
    assert [each.number for each in summary.best_first()] == [4, 1, 3, 0, 2]
