"""Every ready-made objective computes what it says from the metrics of real evaluations, and a search optimises it."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import objectives
from hpsearch import BestRun, Int, MissingMetricError, ObjectiveError, Report, StudyError, TrialState
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.search.metrics.objective import resolve_objectives
from objectives.cost_aware import priced, priced_per_doubling
from objectives.latency import milliseconds_per_sample, milliseconds_per_sample_of
from objectives.several import metric_and_latency, metric_and_size, metric_latency_and_size
from objectives.size import millions_of_parameters
from objectives.weighted import weighted
from tests.support.small_trainer import TwoLayers, points, small_trainer

NAMES = [each.name for each in pkgutil.iter_modules(objectives.__path__)]
ROOT = Path(__file__).parents[2]
SMALL, LARGE = {"model.hidden": 1}, {"model.hidden": 32}
# Each objective, with the direction it is to be passed with and the same computed by hand.
OBJECTIVES: dict[str, tuple[Any, str, Callable[[Mapping[str, float]], float]]] = {
    "weighted": (
        weighted({"accuracy": 2.0, "loss": 0.5}),
        "maximize",
        lambda metrics: 2 * metrics["eval_accuracy"] - metrics["eval_loss"] / 2,
    ),
    "priced accuracy": (
        priced("accuracy", 0.25),
        "maximize",
        lambda metrics: metrics["eval_accuracy"] - metrics["eval_runtime"] / 4,
    ),
    "priced loss": (
        priced("eval_loss", 0.125, per="num_parameters"),
        "minimize",
        lambda metrics: metrics["eval_loss"] + metrics["num_parameters"] / 8,
    ),
    "priced per doubling": (
        priced_per_doubling("accuracy", 0.5),
        "maximize",
        lambda metrics: metrics["eval_accuracy"] - math.log2(metrics["num_parameters"]) / 2,
    ),
    "latency": (
        milliseconds_per_sample,
        "minimize",
        lambda metrics: 1000 / metrics["eval_samples_per_second"],
    ),
    "size": (millions_of_parameters, "minimize", lambda metrics: metrics["num_parameters"] / 1_000_000),
}
every_objective = pytest.mark.parametrize("name", OBJECTIVES)


def model_init(trial: Any) -> TwoLayers:
    return TwoLayers(trial.params["model.hidden"])


def search(folder: Path, *start_with: dict[str, Any], **options: Any) -> Any:
    """Search the width of the hidden layer: two trials, in full."""
    settings = {"pruner": None, "storage": "journal", "progress": False, "n_trials": 2, **options}
    trainer = small_trainer(folder, model_init=model_init)
    return trainer.hyperparameter_search({"model.hidden": Int(1, 32)}, start_with=list(start_with), **settings)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A real evaluation, in a search."""
    best: BestRun = search(tmp_path_factory.mktemp("real"), LARGE, n_trials=1)
    return best.run_summary.records[0].reports[-1]


def value(objective: Any, direction: str, metrics: Mapping[str, float]) -> float:
    """The objective as a search sees it."""
    (resolved,) = resolve_objectives(objective, direction, has_metrics=True)
    return resolved.value(metrics)


# What the files say.


def test_all_kinds_of_objectives_are_tested() -> None:
    assert NAMES == ["cost_aware", "latency", "several", "size", "weighted"]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_can_stand_in_a_listing_and_the_examples_run(name: str) -> None:
    module = importlib.import_module(f"objectives.{name}")
    assert re.fullmatch(r"[A-Z].{20,88}\.", (module.__doc__ or "").splitlines()[0])
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0


# Values.


@every_objective
def test_of_a_real_evaluation_it_is_what_it_says(name: str, report: Report) -> None:
    objective, direction, by_hand = OBJECTIVES[name]
    found = value(objective, direction, report.metrics)
    assert math.isfinite(found)
    assert found == pytest.approx(by_hand(report.metrics), rel=1e-12)


@every_objective
def test_a_search_finds_the_trial_that_is_best_by_it(name: str, tmp_path: Path) -> None:
    objective, direction, by_hand = OBJECTIVES[name]
    best = search(tmp_path, LARGE, SMALL, compute_objective=objective, direction=direction)
    records = best.run_summary.records
    assert [record.state for record in records] == [TrialState.COMPLETE] * 2
    values = [by_hand(record.reports[-1].metrics) for record in records]
    assert [record.value for record in records] == pytest.approx(values, rel=1e-12)
    assert best.objective == pytest.approx((min if direction == "minimize" else max)(values), rel=1e-12)


@pytest.mark.parametrize(
    ("objective", "direction"),
    [
        (millions_of_parameters, "minimize"),
        (priced("loss", 1e3, per="num_parameters"), "minimize"),
        (priced("accuracy", 1e3, per="num_parameters"), "maximize"),
        (priced_per_doubling("accuracy", 1e3), "maximize"),
        (priced_per_doubling("loss", 1e3), "minimize"),
        (weighted({"accuracy": 1.0, "num_parameters": 1e3}), "maximize"),
    ],
)
def test_where_size_weighs_enough_the_smaller_model_wins(objective: Any, direction: str, tmp_path: Path) -> None:
    best = search(tmp_path, LARGE, SMALL, compute_objective=objective, direction=direction)
    assert best.run_id == "1"
    assert best.hyperparameters["model.hidden"] == 1


def test_latency_is_the_runtime_of_the_evaluation_over_its_samples(report: Report) -> None:
    # The metrics round the runtime to a tenth of a millisecond.
    milliseconds = 1000 * report.metrics["eval_runtime"] / 32
    assert milliseconds_per_sample(report.metrics) == pytest.approx(milliseconds, abs=0.06 / 32)


def test_latency_of_one_of_several_evaluation_sets(tmp_path: Path) -> None:
    sets = {"dev": points(32, seed=1), "test": points(16, seed=2)}
    metrics = small_trainer(tmp_path, eval_dataset=sets).evaluate()
    for name in sets:
        expected = 1000 / metrics[f"eval_{name}_samples_per_second"]
        assert value(milliseconds_per_sample_of(name), "minimize", metrics) == expected
    with pytest.raises(MissingMetricError, match="eval_samples_per_second"):
        value(milliseconds_per_sample, "minimize", metrics)


def test_size_counts_frozen_weights_too(tmp_path: Path) -> None:
    def half_frozen() -> TwoLayers:
        model = TwoLayers(8)
        model.hidden.requires_grad_(False)
        return model

    best = small_trainer(tmp_path, model_init=half_frozen).hyperparameter_search(
        n_trials=1, compute_objective=millions_of_parameters, direction="minimize", progress=False, storage="journal"
    )
    assert best.objective == (2 * 8 + 8 + 8 * 2 + 2) / 1e6


def test_a_speed_or_cost_that_is_none_is_no_value() -> None:
    assert milliseconds_per_sample({"eval_samples_per_second": 0.0}) == math.inf
    assert math.isnan(priced_per_doubling("loss", 1.0, of="runtime")({"eval_loss": 1.0, "eval_runtime": 0.0}))


@pytest.mark.parametrize(
    ("metric", "direction", "factor"),
    [("loss", None, -1), ("accuracy", None, 1), ("quality", None, 1), ("quality", "minimize", -1)],
)
def test_what_is_to_be_small_is_subtracted_and_made_worse_by_a_price(
    metric: str, direction: str | None, factor: int
) -> None:
    metrics = {f"eval_{metric}": 2.0, "eval_runtime": 10.0}
    directions = {} if direction is None else {metric: direction}
    assert weighted({metric: 3.0}, directions)(metrics) == 3.0 * 2.0 * factor
    assert priced(metric, 0.5, direction=direction)(metrics) == 2.0 - 5.0 * factor


# Names: by them a study on disk knows its objective.


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        (weighted({"loss": 0.1, "accuracy": 1}), "weighted(accuracy - 0.1 loss)"),
        (weighted({"eval_accuracy": 1.0, "eval_loss": 0.1}), "weighted(accuracy - 0.1 loss)"),
        (weighted({"f1": 0.2, "mae": 2}), "weighted(0.2 f1 - 2 mae)"),
        (weighted({"quality": 1.0}, {"quality": "minimize"}), "weighted(- quality)"),
        (priced("accuracy", 0.01), "priced(accuracy - 0.01 runtime)"),
        (priced("eval_accuracy", 0.01, per="eval_runtime"), "priced(accuracy - 0.01 runtime)"),
        (priced("loss", 1e-9, per="num_parameters"), "priced(loss + 1e-09 num_parameters)"),
        (priced_per_doubling("loss", 0.1), "priced_per_doubling(loss + 0.1 log2 num_parameters)"),
        (milliseconds_per_sample, "milliseconds_per_sample"),
        (milliseconds_per_sample_of("dev"), "milliseconds_per_sample_of(dev)"),
        (millions_of_parameters, "millions_of_parameters"),
    ],
)
def test_the_name_says_what_is_computed_however_it_was_written(objective: Any, name: str) -> None:
    assert objective.__name__ == name


def test_a_study_goes_on_with_the_same_objective_and_refuses_one_with_other_weights(tmp_path: Path) -> None:
    options = {"direction": "maximize"}
    search(tmp_path, LARGE, n_trials=1, compute_objective=weighted({"accuracy": 1.0, "loss": 0.1}), **options)
    with pytest.raises(StudyError, match=re.escape("weighted(accuracy - 0.2 loss)")):
        search(tmp_path, n_trials=2, compute_objective=weighted({"accuracy": 1.0, "loss": 0.2}), **options)
    best = search(tmp_path, n_trials=2, compute_objective=weighted({"loss": 0.1, "accuracy": 1.0}), **options)
    assert len(best.run_summary.records) == 2


@pytest.mark.process
def test_all_arrive_whole_in_another_process(report: Report, tmp_path: Path) -> None:
    sent = [objective for objective, _, _ in OBJECTIVES.values()]
    (tmp_path / "sent").write_bytes(cloudpickle.dumps((sent, report.metrics)))
    code = (
        "import cloudpickle, json, sys\n"
        "sent, metrics = cloudpickle.load(open(sys.argv[1], 'rb'))\n"
        "print(json.dumps([[each.__name__, each(metrics)] for each in sent]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "sent")]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == [[each.__name__, each(report.metrics)] for each in sent]


# Several objectives.


def test_a_metric_with_latency_and_size_gives_a_front_of_trials_trained_in_full(tmp_path: Path) -> None:
    front = search(tmp_path, LARGE, SMALL, **metric_latency_and_size("accuracy"), pruner=LADDER_OF_0_8_0)
    records = front[0].run_summary.records
    assert {record.state for record in records} == {TrialState.COMPLETE}
    for record in records:
        metrics = record.reports[-1].metrics
        assert record.values == (
            metrics["eval_accuracy"],
            1000 / metrics["eval_samples_per_second"],
            metrics["num_parameters"],
        )
    assert records[1].values[2] < records[0].values[2]
    assert "1" in [each.run_id for each in front]  # the smallest is on the front, whatever its accuracy
    settings = json.loads((tmp_path / "study" / "study.json").read_text())
    assert settings["objective"] == ["eval_accuracy", "milliseconds_per_sample(metrics)", "num_parameters"]
    assert settings["direction"] == ["maximize", "minimize", "minimize"]
    assert settings["pruning_metric"] is None


@pytest.mark.parametrize("make", [metric_and_latency, metric_and_size, metric_latency_and_size])
@pytest.mark.parametrize(
    ("metric", "asked", "direction"),
    [
        ("loss", None, "minimize"),
        ("f1", None, "maximize"),
        ("quality", None, "maximize"),
        ("q", "minimize", "minimize"),
    ],
)
def test_the_directions_of_a_list_are_that_of_the_metric_and_small_costs(
    make: Any, metric: str, asked: str | None, direction: str
) -> None:
    several = make(metric, asked)
    first, *costs = resolve_objectives(several["compute_objective"], several["direction"], has_metrics=True)
    assert (first.name, first.direction) == (f"eval_{metric}", direction)
    assert {each.direction for each in costs} == {"minimize"}
    expected = {
        metric_and_latency: ["milliseconds_per_sample"],
        metric_and_size: ["num_parameters"],
        metric_latency_and_size: ["milliseconds_per_sample", "num_parameters"],
    }
    assert [each.name for each in costs] == expected[make]


# Mistakes.


@pytest.mark.parametrize(
    ("objective", "missing", "nearest"),
    [
        (weighted({"acuracy": 1.0, "loss": 1.0}), "eval_acuracy", "eval_accuracy"),
        (priced("acuracy", 1.0), "eval_acuracy", "eval_accuracy"),
        (priced("accuracy", 1.0, per="parameter"), "eval_parameter", "num_parameters"),
        (priced_per_doubling("accuracy", 1.0, of="runtme"), "eval_runtme", "eval_runtime"),
    ],
)
def test_a_metric_that_is_not_there_ends_the_search_with_the_nearest_name(
    objective: Any, missing: str, nearest: str, tmp_path: Path
) -> None:
    with pytest.raises(MissingMetricError) as caught:
        search(tmp_path, LARGE, compute_objective=objective, direction="maximize")
    message = str(caught.value)
    assert objective.__name__ in message
    assert f"needs {missing!r}, but evaluation does not produce it" in message
    assert f"Did you mean {nearest!r}?" in message


def test_outside_of_a_search_the_size_is_not_known(tmp_path: Path) -> None:
    metrics = small_trainer(tmp_path).evaluate()
    with pytest.raises(MissingMetricError, match="'num_parameters'"):
        value(millions_of_parameters, "minimize", metrics)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: weighted({}), "weights is empty"),
        (lambda: weighted("accuracy"), "weights must be a mapping with names of metrics, but got 'accuracy'"),
        (lambda: weighted({1: 1.0}), "weights must be a mapping with names of metrics, but got {1: 1.0}"),
        (lambda: weighted({"f1": 0}), "the weight of 'f1' must be a finite number above 0, but got 0"),
        (lambda: weighted({"f1": -1.0}), "got -1.0"),
        (lambda: weighted({"f1": math.nan}), "got nan"),
        (lambda: weighted({"f1": math.inf}), "got inf"),
        (lambda: weighted({"f1": True}), "got True"),
        (lambda: weighted({"f1": "1"}), "got '1'"),
        (lambda: weighted({"f1": 1.0, "eval_f1": 1.0}), "'eval_f1' is given twice"),
        (lambda: weighted({"f1": 1.0}, {"f2": "minimize"}), "directions has 'f2'"),
        (lambda: weighted({"accuracy": 1.0}, {"acuracy": "minimize"}), "Did you mean 'accuracy'?"),
        (lambda: weighted({"f1": 1.0}, ["minimize"]), "directions must be a mapping"),
        (lambda: weighted({"f1": 1.0}, {"f1": "minimize"}), "contradicts the objective 'eval_f1'"),
        (lambda: weighted({"q": 1.0}, {"q": "minimise"}), "Did you mean 'minimize'?"),
        (lambda: priced("f1", 0.0), "priced: the price must be a finite number above 0, but got 0.0"),
        (lambda: priced("f1", "1"), "got '1'"),
        (lambda: priced("f1", 1.0, per=""), "a metric must be named by text, but got ''"),
        (lambda: priced(len, 1.0), "a metric must be named by text"),
        (lambda: priced("runtime", 1.0, per="eval_runtime"), "'runtime' is its own cost"),
        (lambda: priced("f1", 1.0, direction="minimize"), "contradicts the objective 'eval_f1'"),
        (lambda: priced_per_doubling("f1", -1.0), "priced_per_doubling: the price must be a finite number above 0"),
        (lambda: milliseconds_per_sample_of(""), "the name of an evaluation set, but got ''"),
        (lambda: metric_and_latency(None), "must be named by text, but got None"),
        (lambda: metric_and_size("loss", "maximize"), "contradicts the objective 'eval_loss'"),
        (lambda: metric_and_size("num_parameters"), "'num_parameters' is given twice"),
    ],
)
def test_bad_input_is_refused_when_the_objective_is_made(make: Any, told: str) -> None:
    with pytest.raises(ObjectiveError) as caught:
        make()
    assert told in str(caught.value)
