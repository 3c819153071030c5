"""What is optimised: named metrics, functions, the documented default; and which way is better."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

from hpsearch import ObjectiveError
from hpsearch.search.metrics.objective import Objective, natural_direction, resolve_objectives

METRICS = {
    "eval_loss": 2.0,
    "eval_accuracy": 0.5,
    "eval_f1": 0.25,
    "eval_runtime": 100.0,
    "eval_samples_per_second": 200.0,
    "eval_steps_per_second": 300.0,
    "eval_model_preparation_time": 400.0,
    "eval_mem_cpu_alloc_delta": 500,
    "eval_mem_gpu_peaked_delta": 600,
    "init_mem_cpu_alloc_delta": 700,
    "epoch": 3.0,
}


def resolve_objective(*asked: Any, **about: Any) -> Objective:
    """The objective of a search that has one."""
    (objective,) = resolve_objectives(*asked, **about)
    return objective


@pytest.mark.parametrize("name", ["accuracy", "eval_accuracy"])
def test_a_metric_may_be_named_with_or_without_its_prefix(name: str) -> None:
    objective = resolve_objective(name, None, has_metrics=True)
    assert objective.value(METRICS) == 0.5
    assert objective.direction == "maximize"
    assert "maximize eval_accuracy" in objective.description


def test_a_metric_of_one_of_several_evaluation_sets_can_be_named() -> None:
    objective = resolve_objective("dev_loss", None, has_metrics=False)
    assert objective.value({"eval_dev_loss": 1.0, "eval_test_loss": 9.0}) == 1.0
    assert objective.direction == "minimize"


def test_a_missing_metric_is_an_error_that_lists_those_produced_and_offers_the_nearest() -> None:
    with pytest.raises(ObjectiveError) as caught:
        resolve_objective("accurcy", None, has_metrics=True).value(METRICS)
    message = str(caught.value)
    assert "'eval_accurcy'" in message
    assert "eval_accuracy, eval_f1, eval_loss" in message
    assert "Did you mean 'eval_accuracy'?" in message
    assert "runtime" not in message
    assert "mem_" not in message


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("eval_loss", "minimize"),
        ("eval_dev_loss", "minimize"),
        ("eval_wer", "minimize"),
        ("eval_perplexity", "minimize"),
        ("eval_mean_squared_error", "minimize"),
        ("eval_error_rate", "minimize"),
        ("eval_accuracy", "maximize"),
        ("eval_accuracy_top5", "maximize"),
        ("eval_macro_f1", "maximize"),
        ("eval_rougeL", "maximize"),
        ("eval_quality", None),
    ],
)
def test_a_name_tells_its_direction_or_nothing(metric: str, direction: str | None) -> None:
    assert natural_direction(metric) == direction


def test_an_unknown_metric_is_maximised_and_this_is_said() -> None:
    objective = resolve_objective("quality", None, has_metrics=True)
    assert objective.direction == "maximize"
    assert "direction not given" in objective.description
    assert resolve_objective("quality", "minimize", has_metrics=True).direction == "minimize"


@pytest.mark.parametrize(
    ("metric", "direction", "better"), [("loss", "maximize", "minimize"), ("accuracy", "minimize", "maximize")]
)
def test_a_direction_that_contradicts_the_metric_is_refused(metric: str, direction: str, better: str) -> None:
    with pytest.raises(ObjectiveError) as caught:
        resolve_objective(metric, direction, has_metrics=True)
    message = str(caught.value)
    assert f"direction={direction!r}" in message
    assert f"'eval_{metric}'" in message
    assert repr(better) in message


def test_maximising_the_default_loss_is_refused() -> None:
    with pytest.raises(ObjectiveError, match="'maximize' contradicts the default objective"):
        resolve_objective(None, "maximize", has_metrics=False)
    assert resolve_objective(None, "minimize", has_metrics=False).direction == "minimize"


@pytest.mark.feature(1)
@pytest.mark.parametrize("direction", ["minimise", "max", "", 1, "MINIMIZE"])
def test_what_is_no_direction_is_refused_with_those_allowed(direction: Any) -> None:
    with pytest.raises(ObjectiveError) as caught:
        resolve_objective(None, direction, has_metrics=True)
    assert f"direction={direction!r}" in str(caught.value)
    assert "'minimize', 'maximize'" in str(caught.value)


def test_a_misspelt_direction_is_offered_the_nearest() -> None:
    with pytest.raises(ObjectiveError, match="Did you mean 'minimize'"):
        resolve_objective("loss", "minimise", has_metrics=True)


@pytest.mark.feature(4)
def test_a_function_needs_a_direction_and_gets_a_copy_of_all_metrics() -> None:
    def f1_and_more(metrics: dict[str, float]) -> float:
        return metrics.pop("eval_f1") + metrics["eval_accuracy"]

    with pytest.raises(ObjectiveError, match="direction='minimize' or 'maximize'"):
        resolve_objective(f1_and_more, None, has_metrics=True)
    objective = resolve_objective(f1_and_more, "minimize", has_metrics=True)
    metrics = dict(METRICS)
    assert objective.value(metrics) == 0.75
    assert metrics == METRICS
    assert objective.direction == "minimize"
    assert "f1_and_more" in objective.description


def test_functions_without_a_name_are_accepted() -> None:
    def weighted(weight: float, metrics: dict[str, float]) -> float:
        return weight * metrics["eval_f1"]

    assert resolve_objective(functools.partial(weighted, 4.0), "maximize", has_metrics=True).value(METRICS) == 1.0
    assert resolve_objective(lambda metrics: -1, "maximize", has_metrics=True).name == "objective"


@pytest.mark.feature(4)
def test_the_default_without_metrics_is_the_loss_minimised() -> None:
    objective = resolve_objective(None, None, has_metrics=False)
    assert objective.direction == "minimize"
    measured = {name: value for name, value in METRICS.items() if name not in ("eval_accuracy", "eval_f1")}
    assert objective.value(measured) == 2.0
    assert "minimize the evaluation loss" in objective.description


@pytest.mark.feature(4)
def test_the_default_with_metrics_is_their_sum_maximised_without_losses_speed_and_memory() -> None:
    objective = resolve_objective(None, None, has_metrics=True)
    assert objective.direction == "maximize"
    assert objective.value(METRICS) == 0.75
    assert "sum of all metrics except losses, speed and memory" in objective.description
    assert resolve_objective(None, "minimize", has_metrics=True).direction == "minimize"


def test_the_default_over_several_evaluation_sets_sums_their_metrics() -> None:
    sets = {
        f"eval_{name}_{key}": value for name in ("dev", "test") for key, value in (("accuracy", 0.5), ("loss", 2.0))
    }
    sets.update({"eval_dev_runtime": 7.0, "eval_test_samples_per_second": 9.0, "epoch": 1.0})
    assert resolve_objective(None, None, has_metrics=True).value(sets) == 1.0
    losses = {name: value for name, value in sets.items() if "accuracy" not in name}
    assert resolve_objective(None, None, has_metrics=False).value(losses) == 4.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_pass_through(value: float) -> None:
    found = resolve_objective("accuracy", None, has_metrics=True).value({"eval_accuracy": value})
    assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5], {"a": 1}, np.array([0.5, 0.5]), 1j])
def test_a_value_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ObjectiveError) as caught:
        resolve_objective(lambda metrics: value, "maximize", has_metrics=True).value(METRICS)
    assert "must be a number" in str(caught.value)
    assert ("shape (2,)" if isinstance(value, np.ndarray) else repr(value)) in str(caught.value)


def test_numbers_of_other_libraries_are_numbers() -> None:
    objective = resolve_objective(lambda metrics: np.float32(0.5), "maximize", has_metrics=True)
    assert objective.value(METRICS) == 0.5
    assert type(objective.value(METRICS)) is float


@pytest.mark.parametrize("direction", [None, ["maximize", None], ("maximize", "minimize")])
def test_a_list_gives_several_objectives_each_with_its_direction(direction: Any) -> None:
    objectives = resolve_objectives(["accuracy", "loss"], direction, has_metrics=True)
    assert [(each.name, each.direction) for each in objectives] == [
        ("eval_accuracy", "maximize"),
        ("eval_loss", "minimize"),
    ]
    assert [each.value(METRICS) for each in objectives] == [0.5, 2.0]


@pytest.mark.parametrize(
    ("compute_objective", "direction", "told"),
    [
        ("loss", ["minimize", "maximize"], "direction=['minimize', 'maximize'] is a list"),
        (None, ["minimize", "maximize"], "compute_objective must be a list"),
        ([], None, "an empty list"),
        (["loss", "accuracy"], ["minimize"], "a list of 2 and direction one of 1"),
        (["loss", None], None, "but contains None"),
        (["loss", "eval_loss"], None, "'eval_loss' is given twice"),
        (["loss", "accuracy"], ["minimize", "minimize"], "contradicts"),
        (["loss", "accuracy"], ["minimize", "up"], "'up' is not a direction"),
    ],
)
def test_lists_of_objectives_and_directions_that_do_not_fit_are_refused(
    compute_objective: Any, direction: Any, told: str
) -> None:
    with pytest.raises(ObjectiveError) as caught:
        resolve_objectives(compute_objective, direction, has_metrics=True)
    assert told in str(caught.value)


@pytest.mark.parametrize("compute_objective", ["", 3, {"loss": 1}])
def test_what_is_no_objective_is_refused(compute_objective: Any) -> None:
    with pytest.raises(ObjectiveError) as caught:
        resolve_objective(compute_objective, "minimize", has_metrics=True)
    assert repr(compute_objective) in str(caught.value)
    assert "a metric's name, a function, a list of these or None" in str(caught.value)


@pytest.mark.parametrize(("metric", "worse", "better"), [("loss", 2.0, 1.0), ("accuracy", 1.0, 2.0)])
def test_better_follows_the_direction_and_nothing_unfinite_is_better(metric: str, worse: float, better: float) -> None:
    objective = resolve_objective(metric, None, has_metrics=True)
    assert objective.is_better(better, worse)
    assert not objective.is_better(worse, better)
    assert not objective.is_better(better, better)
    assert objective.is_better(worse, None)
    assert objective.is_better(worse, math.nan)
    for value in (math.nan, math.inf, -math.inf):
        assert not objective.is_better(value, worse)
        assert not objective.is_better(value, None)
