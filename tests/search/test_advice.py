"""The findings at the end of a search: what it found, and where a further one might find more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Categorical, Float, Int, Ladder, Report, SearchSpace, SearchSummary, TrialState
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.result.advice import advice
from hpsearch.search.result.findings.early_stops import early_stops
from hpsearch.search.result.noise import Noise
from hpsearch.search.trial_record import Replica
from tests.support.rendering import NoEngine, record
from tests.support.searching import HearsNotices
from tests.support.short_searches import search


class Known:
    """A study, as far as advice asks for it."""

    constraints = ()
    scope = "last"
    repeats, fold_count = 1, 0
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
    ("name", "parameter", "value", "end"),
    [
        ("learning_rate", Float(1e-4, 0.1, log=True), 0.1, "upper bound: widen to 1"),
        ("learning_rate", Float(1e-6, 1e-4, log=True), 1e-4, "upper bound: widen to 1e-3"),
        ("learning_rate", Float(1e-4, 3e-4, log=True), 3e-4, "upper bound: widen to 9e-4"),
        ("x", Float(1e-4, 0.1, log=True), 0.095, "upper bound: widen to 1"),
        ("x", Float(1e-4, 0.1, log=True), 0.09, None),
        ("x", Float(1e-4, 0.1, log=True), 1.05e-4, "lower bound: widen to 1e-5"),
        ("x", Float(1e-4, 0.1), 1.05e-4, "lower bound: widen to 1e-5"),
        ("x", Float(1e-4, 0.1), 0.098, None),
        ("x", Float(0.0, 0.1), 0.0, None),
        ("x", Float(0.0, 0.1), 0.1, "upper bound: widen to 0.2"),
        ("x", Float(-1.0, 1.0), -1.0, "lower bound: widen to -2"),
        ("x", Float(-3.0, -1.0), -1.0, "upper bound: widen to 0"),
        ("x", Float(0.5, 0.5), 0.5, None),
        ("x", Float(0.0, 1.5e308), 1.5e308, None),
        ("x", Int(1, 8), 8, "upper bound: widen to 10"),
        ("x", Int(1, 8), 1, None),
        ("x", Int(4, 20), 4, "lower bound: widen to 1"),
        ("x", Int(8, 64, log=True), 64, "upper bound: widen to 500"),
        ("x", Int(8, 64, log=True), 8, "lower bound: widen to 1"),
        ("x", Int(1, 3), 3, None),
        ("x", Int(4, 64, step=4), 64, "upper bound: widen to 90"),
        ("x", Categorical([1, 2, 3]), 3, None),
        ("model.hidden_dropout_prob", Float(0.0, 0.5), 0.5, "upper bound: widen to 0.8"),
        ("model.hidden_dropout_prob", Float(0.0, 0.9), 0.9, None),
        ("adam_beta2", Float(0.9, 0.999), 0.999, None),
        ("optim.momentum", Float(0.5, 0.99), 0.5, "lower bound: widen to 0.3"),
        ("dpo.beta", Float(0.1, 1.0), 1.0, "upper bound: widen to 2"),
    ],
)
def test_a_best_value_at_a_bound_of_its_range_is_said_with_a_wider_one(
    name: str, parameter: Any, value: Any, end: str | None
) -> None:
    told = advice(Known({name: parameter}), [trial(0, 0.5, **{name: -99}), trial(1, 0.9, **{name: value})])
    expected = [f"The best {name}, {value:g}, is at its {end}."] if end else []
    assert [each for each in told if "bound" in each] == expected
    if isinstance(parameter, Int):
        assert "." not in "".join(expected).rpartition("widen to ")[2][:-1]


@pytest.mark.parametrize("max_steps", [-1, 2])
def test_epochs_without_effect_are_said_before_the_first_trial_and_their_bound_is_not(
    tmp_path: Path, max_steps: int
) -> None:
    heard, space = HearsNotices(), {"num_train_epochs": Int(1, 5), "learning_rate": Float(1e-3, 1e-1)}
    starts = [{"num_train_epochs": 5, "learning_rate": rate} for rate in (0.01, 0.05)]
    best = search(tmp_path, 2, space=space, start_with=starts, trainer={"max_steps": max_steps}, progress=heard)
    said = "num_train_epochs has no effect, as max_steps=2 ends each training run: leave out one of the two"
    assert heard.notices.count(said) == (max_steps == 2)
    found = advice(best.run_summary.study, best.run_summary.records)
    assert any(each.startswith("The best num_train_epochs, 5, is at its upper") for each in found) == (max_steps == -1)


def test_a_trial_without_a_rival_has_nothing_to_be_compared_with() -> None:
    records = [trial(0, 0.5, TrialState.PRUNED), trial(4, 0.5), trial(5, 0.4, TrialState.PRUNED)]
    said = "Only trial 4 has a result, 0.5: it has nothing to be compared with."
    assert advice(Known(), records) == [said]
    assert advice(Known(), [*records, trial(6, 0.6)]) == []
    assert advice(Known(), [*records, trial(6, 0.6, TrialState.PAUSED)]) == []


@pytest.mark.parametrize(("count", "begin"), [(2, "Both trials"), (5, "All 5 trials")])
def test_equal_results_are_said_and_nothing_of_the_best_of_them(count: int, begin: str) -> None:
    records = [trial(each, 0.5, learning_rate=0.1) for each in range(count)]
    said = f"{begin} with a result have the same eval_accuracy, 0.5: the metric does not distinguish them, or it is "
    assert advice(Known(), records) == [f"{said}constant."]
    assert not any("same" in each for each in advice(Known(), [*records, trial(9, 0.6)]))


@pytest.mark.parametrize(
    ("space", "tried", "said"),
    [
        ({"x": Int(1, 2), "y": Categorical(["a", "b"])}, [(1, "a"), (1, "b"), (2, "a"), (2, "b")], "All 4"),
        ({"x": Int(1, 2), "y": Categorical(["a", "b"])}, [(1, "a"), (1, "b"), (2, "a"), (2, "a")], None),
        ({"x": Int(1, 2), "y": Categorical({"a": {}, "b": {"z": Float(0, 1)}})}, [(1, "a"), (2, "a")], None),
        ({"x": Int(1, 1), "y": Categorical(["a"])}, [(1, "a"), (1, "a")], "The only"),
    ],
)
def test_a_space_of_which_everything_was_tried_is_said(space: Any, tried: list[Any], said: str | None) -> None:
    records = [trial(number, number / 8, x=x, y=y) for number, (x, y) in enumerate(tried)]
    found = [each for each in advice(Known(space), records) if "been tried" in each]
    assert [each.split(" config")[0] for each in found] == ([] if said is None else [said])
    if said == "All 4":
        assert found == ["All 4 configurations of this space have been tried: search a larger space."]
        running = [*records[:3], trial(3, 0.5, TrialState.RUNNING, x=2, y="b")]
        assert not any("been tried" in each for each in advice(Known(space), running))


def test_a_choice_with_which_every_trial_failed_is_said() -> None:
    failed = [trial(number, 0.0, TrialState.FAILED, optim="sgd") for number in range(4)]
    records = [*failed, *(trial(number, number / 20, optim="adamw") for number in range(4, 16))]
    said = "All 4 trials with optim='sgd' failed, none of the 12 others: remove the choice."
    assert said in advice(Known({"optim": Categorical(["adamw", "sgd"])}), records)


MORE_SAMPLES = "evaluate on more samples, or prune later"


def curve(*values: float, horizon: float = 4.0) -> Any:
    return tuple(Report((each,), at, at, float(at), {}, horizon=horizon) for at, each in enumerate(values, start=1))


def climber(number: int, *values: float) -> Any:
    """A trial of four epochs that was pruned after the last of these reports, if there are fewer."""
    state = TrialState.COMPLETE if len(values) == 4 else TrialState.PRUNED
    return record(number, values[-1], state, reports=curve(*values))


@pytest.mark.parametrize(
    ("noise", "ladder", "said"),
    [
        (0.01, None, "2 of 3 pruned trials were within the noise of those that continued (standard error 0.01, of the"),
        (0.001, None, None),
        (
            0.005,
            None,
            "1 of 3 pruned trials was within the noise of those that continued (standard error 0.005, of the",
        ),
        (0.01, Ladder((0.25,), complete_first=1), None),  # trial 0 runs to completion whatever it reports
        (0.01, Ladder((0.25, 0.75), probe_first=1), None),  # or to the last rung
        (None, None, None),
    ],
)
def test_pruned_trials_that_noise_may_have_stopped_are_counted(
    noise: float | None, ladder: Ladder | None, said: str | None
) -> None:
    records = [
        climber(0, 0.5, 0.6, 0.7, 0.8),
        climber(1, 0.6, 0.65, 0.7, 0.9),
        climber(2, 0.49),
        climber(3, 0.48),
        climber(4, 0.4),
    ]
    [objective] = resolve_objectives("accuracy", None, has_metrics=True)
    found = early_stops(objective, records, None if noise is None else Noise(noise), ladder)
    assert found == ([] if said is None else [f"{said} learning curves): {MORE_SAMPLES}, or not at all (pruner=None)."])


def test_later_rungs_are_suggested_where_the_first_one_is_early() -> None:
    [objective] = resolve_objectives("accuracy", None, has_metrics=True)
    records = [climber(0, 0.5, 0.6, 0.7, 0.8), climber(1, 0.6, 0.65, 0.7, 0.9), climber(2, 0.49)]
    for fraction, later in ((0.25, " (pruner=Ladder((0.5,)))"), (0.5, "")):
        [said] = early_stops(objective, records, Noise(samples=200), Ladder((fraction,)))
        assert said == (
            "The pruned trial was within the noise of those that continued (standard error 0.036, of 200 samples): "
            f"{MORE_SAMPLES}{later}, or not at all (pruner=None)."
        )


def test_early_stops_are_compared_at_the_same_point_and_of_a_loss_with_the_largest() -> None:
    [loss] = resolve_objectives("loss", None, has_metrics=True)
    complete = [climber(0, 0.5, 0.4, 0.3, 0.2), climber(1, 0.6, 0.3, 0.2, 0.1)]
    said = "The pruned trial was within the noise of those that continued (standard error 0.01, of the learning curves)"
    only = f"{said}: {MORE_SAMPLES}, or not at all (pruner=None)."
    assert early_stops(loss, [*complete, climber(2, 0.61)], Noise(0.01), None) == [only]
    assert early_stops(loss, [*complete, climber(2, 0.51)], Noise(0.01), None) == [only]  # better than one of them
    assert early_stops(loss, [*complete, climber(2, 0.65)], Noise(0.01), None) == []
    assert early_stops(loss, [*complete, climber(2, 0.9, 0.41)], Noise(0.01), None) == [only]
    assert early_stops(loss, [], Noise(0.01), None) == []


def test_the_reason_why_a_better_trial_was_pruned_is_said() -> None:
    ahead = record(2, 0.7, TrialState.PRUNED, reports=curve(0.7), reason="pruned after 1 epoch")
    told = advice(Known(), [climber(0, 0.9, 0.7, 0.6, 0.5), climber(1, 0.5, 0.5, 0.4, 0.4), ahead])
    assert told[-1] == (
        "Trial 2 was pruned with 0.7, which is better than 0.5, the result of the best trial (pruned after 1 epoch; "
        "1 of 2 other trials was better at that point): prune later, or not at all (pruner=None)."
    )


def test_nothing_is_said_of_the_seed_of_branches_that_are_not_open_and_of_several_objectives() -> None:
    space = {"seed": Int(1, 9), "kind": Categorical({"a": {}, "b": {"x": Float(1.0, 2.0)}})}
    assert advice(Known(space), [trial(0, 0.4, seed=9, kind="a"), trial(1, 0.5, seed=9, kind="a")]) == []
    assert advice(Known({"x": Float(1.0, 2.0)}, ["accuracy", "loss"]), [trial(0, 0.5, x=2.0)]) == []
    assert advice(Known(), []) == []


@pytest.mark.parametrize(("pruned", "is_said"), [(0.95, True), (0.85, False), (float("nan"), False)])
def test_a_pruned_trial_that_was_better_than_the_best_one_is_said(pruned: float, is_said: bool) -> None:
    records = [trial(0, 0.9), trial(1, pruned, TrialState.PRUNED), trial(2, 0.93, TrialState.PRUNED)][: 2 + is_said]
    told = advice(Known(), [*records, trial(3, 0.5)])
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
    again = replace(trial(5, 0.1), origin=Replica(1, 1).origin)
    summary = SearchSummary(Known(), [*records, again], NoEngine)  # type: ignore[arg-type]
    assert [each.number for each in summary.best_first()] == [4, 1, 5, 3, 0, 2]
