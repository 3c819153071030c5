"""The number of weights, which a search adds to the metrics: functions read it by name, and never sum it."""

from __future__ import annotations

import copy
import functools
import json
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from transformers.trainer_utils import default_compute_objective

from hpsearch import Constraint, ObjectiveError, Report
from hpsearch.search.metrics.added_metrics import Metrics, as_function_sees, recorded, with_num_parameters
from hpsearch.search.metrics.constraints import resolve_constraints
from hpsearch.search.metrics.objective import number_from, resolve_objectives
from hpsearch.search.metrics.older_metric_names import named_as_recorded, notice_of_older_name
from tests.support.searching import RATE, HearsNotices
from tests.support.small_trainer import small_trainer
from tests.support.stored_studies_0_8_0 import SEARCHES, TRAINERS, copy_study, expected

OWN = {"eval_loss": 0.7, "eval_accuracy": 0.5, "eval_runtime": 2.0, "epoch": 1.0}
IN_A_SEARCH = with_num_parameters(OWN, 1000)
AS_RECORDED = recorded(IN_A_SEARCH)
BY_0_8_0 = Report((0.5,), 1.0, 1, 1.0, {**OWN, "parameters": 1000}).metrics


def remaining(metrics: dict[str, float]) -> float:
    """Return the sum of what is left after a few metrics are taken out."""
    for name in ("eval_loss", "eval_runtime", "epoch", "num_parameters"):
        metrics.pop(name, None)
    return math.fsum(metrics.values())


@pytest.mark.parametrize("metrics", [IN_A_SEARCH, AS_RECORDED, BY_0_8_0], ids=["search", "recorded", "0.8.0"])
@pytest.mark.parametrize(
    ("function", "value"),
    [
        (default_compute_objective, 0.5),
        (remaining, 0.5),
        (lambda metrics: sum(metrics.values()), 4.2),
        (lambda metrics: sum(dict(metrics).values()), 4.2),
        (lambda metrics: sum({**metrics}.values()), 4.2),
        (lambda metrics: sum(metrics.copy().values()), 4.2),
        (lambda metrics: sum(copy.copy(metrics).values()), 4.2),
        (lambda metrics: sum(value for _, value in copy.deepcopy(metrics).items()), 4.2),
        (lambda metrics: sum(metrics[name] for name in metrics.keys()), 4.2),  # noqa: SIM118 - keys() too
        (len, 4.0),
        (lambda metrics: metrics["num_parameters"], 1000.0),
        (lambda metrics: metrics["parameters"], 1000.0),
        (lambda metrics: metrics.get("num_parameters"), 1000.0),
        (lambda metrics: metrics.get("eval_f1", -1.0), -1.0),
        (lambda metrics: 1.0 * ("num_parameters" in metrics and "parameters" in metrics), 1.0),
        (lambda metrics: copy.deepcopy(metrics)["num_parameters"], 1000.0),
        ("num_parameters", 1000.0),
        ("parameters", 1000.0),
    ],
)
def test_a_function_has_the_evaluations_own_metrics_as_items_and_reads_the_added_one_by_name(
    metrics: Mapping[str, float], function: Any, value: float
) -> None:
    assert number_from(function, metrics, "The objective") == pytest.approx(value)
    assert number_from(default_compute_objective, metrics, "The objective") == 0.5, "it was not changed"


def test_a_metric_of_the_evaluation_comes_before_an_added_one_of_the_same_name() -> None:
    by_compute_metrics = with_num_parameters({"eval_parameters": 3.0, "eval_num_parameters": 4.0}, 1000)
    assert number_from("parameters", by_compute_metrics, "It") == 3.0
    assert number_from("num_parameters", by_compute_metrics, "It") == 4.0
    assert number_from(sum_of_values, by_compute_metrics, "It") == 7.0
    in_evaluate = with_num_parameters({"num_parameters": 5.0}, 1000)
    assert number_from("num_parameters", in_evaluate, "It") == number_from(sum_of_values, in_evaluate, "It") == 5.0
    assert recorded(in_evaluate)["num_parameters"] == 5.0


class Priced:
    def __call__(self, metrics: dict[str, float]) -> float:
        return metrics["eval_loss"] + metrics["parameters"]


def sum_of_values(metrics: dict[str, float]) -> float:
    return sum(metrics.values())


def test_outside_of_a_search_nothing_is_added() -> None:
    assert "num_parameters" not in as_function_sees(OWN)
    with pytest.raises(ObjectiveError, match=r"needs 'num_parameters', but evaluation does not produce it"):
        number_from("num_parameters", OWN, "The objective")
    with pytest.raises(ObjectiveError, match=r"Did you mean 'num_parameters'"):
        number_from("eval_num_parameter", IN_A_SEARCH, "The objective")


@pytest.mark.parametrize("name", ["num_parameters", "parameters"])
def test_the_error_of_a_copy_that_lacks_the_metric_says_where_to_read_it(name: str) -> None:
    with pytest.raises(ObjectiveError, match=f"reads '{name}' from a copy.*from that mapping") as raised:
        number_from(lambda metrics: dict(metrics)[name], IN_A_SEARCH, "The objective")
    assert "Did you mean" not in str(raised.value)


def test_a_report_records_the_metric_as_an_item_and_both_names_can_be_read_after_every_copy() -> None:
    made = Report((0.5,), 1.0, 1, 1.0, AS_RECORDED)
    through_json = Report.from_json(json.loads(json.dumps(asdict(made))))
    for report in (made, through_json, pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert report == made
        assert dict(report.metrics) == {**OWN, "num_parameters": 1000}
        assert report.metrics["parameters"] == report.metrics["num_parameters"] == 1000
    assert dict(BY_0_8_0) == {**OWN, "parameters": 1000}
    assert BY_0_8_0["num_parameters"] == 1000
    assert "num_parameters" not in Metrics(OWN)


@pytest.mark.parametrize(
    ("given", "on_disk", "kept"),
    [
        ("parameters", "parameters", "parameters"),
        ("num_parameters", "parameters", "parameters"),
        ("parameters", "num_parameters", "num_parameters"),
        ("num_parameters", None, "num_parameters"),
        ("parameters", None, "parameters"),
        ("num_parameters", ["eval_loss", "parameters"], "parameters"),
        ("parameters", "eval_loss", "parameters"),
    ],
)
def test_a_study_keeps_the_name_that_it_was_begun_with(given: str, on_disk: Any, kept: str) -> None:
    [objective] = named_as_recorded(resolve_objectives(given, None, has_metrics=True), on_disk)
    assert (objective.metric, objective.name, objective.identity) == (kept, kept, kept)
    assert objective.description == f"minimize {kept}"
    assert objective.value(IN_A_SEARCH) == 1000.0
    bounds = [f"{each} <= 5" for each in ([on_disk] if isinstance(on_disk, str) else on_disk or [])]
    [constraint] = named_as_recorded(resolve_constraints(f"{given} <= 5"), bounds)
    assert constraint.name == f"{kept} <= 5"
    assert constraint.violation(IN_A_SEARCH) == 995.0


def test_a_function_whose_name_tells_of_the_metric_keeps_its_name_too() -> None:
    def priced(metrics: dict[str, float]) -> float:
        return metrics["num_parameters"]

    priced.__name__ = "priced(accuracy - 0.01 num_parameters)"
    given = resolve_objectives(priced, "maximize", has_metrics=True)
    [kept] = named_as_recorded(given, "priced(accuracy - 0.01 parameters)(metrics)")
    assert kept.identity == "priced(accuracy - 0.01 parameters)(metrics)"
    assert kept.value(IN_A_SEARCH) == 1000.0


@pytest.mark.parametrize(
    ("used", "is_said"),
    [
        (resolve_objectives("parameters", None, has_metrics=True), True),
        ((Constraint("parameters", at_most=5),), True),
        (resolve_objectives("num_parameters", None, has_metrics=True), False),
        ((Constraint("num_parameters", at_most=5), None), False),
        (resolve_objectives(lambda metrics: metrics["parameters"], "minimize", has_metrics=True), True),
        (resolve_objectives(lambda metrics: metrics["num_parameters"], "minimize", has_metrics=True), False),
        (resolve_objectives(functools.partial(lambda name, m: m.get("parameters"), "x"), "minimize", True), True),
        (resolve_objectives(Priced(), "minimize", has_metrics=True), True),
        (resolve_objectives(sum_of_values, "minimize", has_metrics=True), False),
        ((Constraint(lambda metrics: sum(metrics["parameters"] for _ in "a"), at_most=5),), True),
    ],
)
def test_the_older_name_is_noticed(used: Any, is_said: bool) -> None:
    said = notice_of_older_name(used)
    assert bool(said) is is_said
    assert all("'num_parameters'" in each and "if compute_metrics returns 'parameters'" in each for each in said)


def search(folder: Path, objective: str | Callable[[dict[str, float]], float], n_trials: int, **options: Any) -> Any:
    trainer = small_trainer(folder, num_train_epochs=1)
    return trainer.hyperparameter_search(RATE, objective, n_trials, progress=False, storage="journal", **options)


def test_transformers_own_objective_does_not_maximise_the_size_of_the_model(tmp_path: Path) -> None:
    best = search(tmp_path, default_compute_objective, 1, direction="maximize")
    metrics = best.run_summary.records[0].reports[-1].metrics
    own = {name for name in metrics if name not in ("eval_loss", "epoch", "num_parameters")}
    scores = [metrics[name] for name in own if not name.endswith(("_runtime", "_per_second", "_compilation_time"))]
    assert best.objective == pytest.approx(sum(scores) if scores else metrics["eval_loss"])
    assert metrics["num_parameters"] > 0


@pytest.mark.parametrize("name", ["num_parameters", "parameters"])
def test_a_study_of_0_8_0_continues_under_either_name(tmp_path: Path, name: str) -> None:
    folder, notices = copy_study("several_objectives", tmp_path), HearsNotices()
    before = json.loads((folder / "study.json").read_text())
    options = {"compute_objective": ["loss", name], "constraints": f"{name} <= 20", "progress": notices}
    best = SEARCHES["several_objectives"](tmp_path, n_trials=expected("several_objectives")["n_trials"], **options)
    after = json.loads((folder / "study.json").read_text())
    assert [after[each] for each in ("objective", "constraints")] == [
        before[each] for each in ("objective", "constraints")
    ]
    assert any("now called" in each for each in notices.notices) is (name == "parameters")
    replayed = TRAINERS["several_objectives"](tmp_path).replay(
        "several_objectives", compute_objective=["loss", name], progress=False
    )
    assert len(replayed.record.reports) == len(replayed.original.reports)
    records = best[0].run_summary.records
    assert {each for record in records for each in record.violations} == {"parameters <= 20"}
    assert all(report.metrics["num_parameters"] == report.values[1] for each in records for report in each.reports)
