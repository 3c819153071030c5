"""Constraints decide which trial may be the best, are shown, and are part of what makes a study."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import torch
import transformers
from rich.console import Console

import hpsearch
from hpsearch import (
    Categorical,
    Constraint,
    Float,
    Int,
    ObjectiveError,
    SearchInterrupted,
    StudyError,
    TrialState,
)
from hpsearch.reports.console import console_listener
from hpsearch.reports.tables import trials_table
from hpsearch.search.metrics.constraints import resolve_constraints
from tests.support.clock import Clock
from tests.support.searching import RATE, AtStep, Events, interrupt, states, without_result
from tests.support.small_trainer import TwoLayers, small_trainer

# A hidden layer of h units has 5 h + 2 weights.
WIDTHS = {"model.hidden": Categorical([2, 4, 8, 16]), **RATE}
EACH_WIDTH = [{"model.hidden": hidden, "learning_rate": 0.03} for hidden in (16, 4, 2, 8)]


def model_init(trial: Any) -> TwoLayers:
    return TwoLayers(trial.params["model.hidden"])


def more_is_better(metrics: dict[str, float]) -> float:
    return metrics["num_parameters"]


def search(folder: Path, constraints: Any, n_trials: int = 4, objective: Any = more_is_better, **options: Any) -> Any:
    """Search over four widths, one after the other; without constraints the widest is the best."""
    changes = {"model_init": model_init, "num_train_epochs": 1, **options.pop("trainer", {})}
    callbacks = options.pop("callbacks", ())
    settings = {"direction": "maximize", "start_with": EACH_WIDTH, "storage": "journal", "progress": False, **options}
    return small_trainer(folder, *callbacks, **changes).hyperparameter_search(
        settings.pop("space", WIDTHS), objective, n_trials=n_trials, constraints=constraints, **settings
    )


def weights_on_disk(study: Path) -> set[str]:
    return {path.parent.parent.name for path in study.glob("*/*/model.safetensors")}


# One bound.


@pytest.mark.parametrize(
    ("text", "metric", "at_most", "at_least"),
    [
        ("num_parameters <= 1e6", "num_parameters", 1e6, None),
        ("runtime<=2", "eval_runtime", 2.0, None),
        ("  eval_f1   >=  0.5 ", "eval_f1", None, 0.5),
        ("loss <= -1.5", "eval_loss", -1.5, None),
        ("small_set/top-1.acc >= .25", "eval_small_set/top-1.acc", None, 0.25),
        ("num_parameters <= 1234567", "num_parameters", 1234567.0, None),
    ],
)
def test_a_text_is_read_as_it_is_written(text: str, metric: str, at_most: float | None, at_least: float | None) -> None:
    constraint = Constraint.parse(text)
    assert (constraint.metric, constraint.at_most, constraint.at_least) == (metric, at_most, at_least)
    assert Constraint.parse(constraint.name) == constraint


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("num_parameters < 100", "'num_parameters < 100' cannot be read"),
        ("num_parameters", "cannot be read"),
        ("", "cannot be read"),
        ("num_parameters <= 1e6 and loss <= 2", "cannot be read"),
        ("1 <= num_parameters <= 5", "cannot be read"),
        ("num_parameters == 5", "cannot be read"),
        ("num_parameters <= a-lot", "'a-lot', which is not a number"),
        ("num_parameters <= 1.2.3", "'1.2.3', which is not a number"),
        ("num_parameters <= nan", "finite"),
        ("num_parameters <= inf", "finite"),
    ],
)
def test_a_text_that_is_no_constraint_is_refused_with_what_is_wrong(tmp_path: Path, text: str, culprit: str) -> None:
    with pytest.raises(ObjectiveError) as caught:
        search(tmp_path, text)
    assert culprit in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: Constraint("loss"), "at_most=None"),
        (lambda: Constraint("loss", at_most=1, at_least=0), "at_least=0"),
        (lambda: Constraint("loss", at_most=math.nan), "nan"),
        (lambda: Constraint("loss", at_most=True), "True"),
        (lambda: Constraint("loss", at_most="1"), "'1'"),
        (lambda: Constraint("", at_most=1), "''"),
        (lambda: Constraint(3, at_most=1), "3"),
        (lambda: resolve_constraints(5), "5"),
        (lambda: resolve_constraints([["loss <= 1"]]), "loss <= 1"),
        (lambda: resolve_constraints([None]), "None"),
        (lambda: resolve_constraints({"loss": 1}), "loss"),
        (lambda: resolve_constraints(["loss <= 1", "eval_loss <= 1.0"]), "'eval_loss <= 1' is given twice"),
    ],
)
def test_what_is_no_constraint_is_refused(make: Callable[[], Any], culprit: str) -> None:
    with pytest.raises(ObjectiveError) as caught:
        make()
    assert culprit in str(caught.value)


def test_bounds_that_differ_in_the_last_digit_are_different_constraints() -> None:
    names = [each.name for each in resolve_constraints(["num_parameters <= 1234567", "num_parameters <= 1234568"])]
    assert names == ["num_parameters <= 1234567", "num_parameters <= 1234568"]
    assert Constraint.parse("loss <= 0.123456789").name == "eval_loss <= 0.123456789"
    assert Constraint.parse("num_parameters <= 1e6").name == "num_parameters <= 1000000"


@pytest.mark.parametrize(
    ("constraint", "value", "violation"),
    [
        ("x <= 2", 2.5, 0.5),
        ("x <= 2", 2.0, 0.0),
        ("x >= 2", 0.5, 1.5),
        ("x >= 2", 3, -1.0),
        ("x <= 2", math.nan, math.inf),
        ("x >= 2", math.nan, math.inf),
        ("x >= 2", math.inf, -math.inf),
    ],
)
def test_the_violation_is_by_how_much_the_bound_is_passed(constraint: str, value: float, violation: float) -> None:
    assert Constraint.parse(constraint).violation({"eval_x": value}) == violation


# The best.


def test_without_constraints_the_widest_is_the_best(tmp_path: Path) -> None:
    best = search(tmp_path, None)
    assert best.hyperparameters["model.hidden"] == 16
    assert best.run_summary.study.constraints == ()


def latency(metrics: dict[str, float]) -> float:
    return 1000.0 * metrics["eval_runtime"]


class Slow(TwoLayers):
    """Takes 20 ms for a batch if it is wide, else 5 ms."""

    def __init__(self, hidden: int, clock: Clock) -> None:
        super().__init__(hidden)
        self._clock = clock

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self._clock.move(0.02 if self.hidden.out_features > 4 else 0.005)()
        return super().forward(x, labels)


@pytest.mark.parametrize(
    ("constraints", "hidden"),
    [
        ("num_parameters <= 42", 8),
        ("num_parameters <= 41", 4),
        (["num_parameters <= 60", "num_parameters >= 15"], 8),
        ((Constraint("num_parameters", at_most=25),), 4),
        (Constraint(lambda metrics: metrics["num_parameters"] / 5, at_most=5), 4),
        ("runtime <= 0.015", 4),
        (Constraint(latency, at_most=15), 4),
    ],
)
def test_the_best_is_the_best_of_those_that_hold_the_constraints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constraints: Any, hidden: int
) -> None:
    clock = Clock()
    for module in (hpsearch.trainer.trainer, transformers.trainer_utils):  # they measure the runtime of evaluations
        monkeypatch.setattr(module, "time", SimpleNamespace(time=clock))

    def slow_init(trial: Any) -> TwoLayers:
        return Slow(trial.params["model.hidden"], clock)

    best = search(tmp_path, constraints, trainer={"model_init": slow_init})
    assert best.hyperparameters["model.hidden"] == hidden
    assert best.objective == 5 * hidden + 2
    assert best.load_model().hidden.out_features == hidden
    assert weights_on_disk(tmp_path / "study") == {f"run-{best.run_id}"}
    assert json.loads((tmp_path / "study" / "best.json").read_text())["trial"] == int(best.run_id)


def test_trials_that_break_a_constraint_are_shown_as_such_and_keep_no_weights(tmp_path: Path) -> None:
    stream = io.StringIO()
    listener = console_listener(True, Console(file=stream, width=120, color_system=None))
    best = search(
        tmp_path,
        ["num_parameters <= 41", "num_parameters >= 15"],
        keep_checkpoints=4,
        preflight=False,
        progress=listener,
        trainer={"save_strategy": "epoch"},
    )
    records = best.run_summary.records
    assert [record.violations for record in records] == [
        {"num_parameters <= 41": 41.0, "num_parameters >= 15": -67.0},
        {"num_parameters <= 41": -19.0, "num_parameters >= 15": -7.0},
        {"num_parameters <= 41": -29.0, "num_parameters >= 15": 3.0},
        {"num_parameters <= 41": 1.0, "num_parameters >= 15": -27.0},
    ]
    assert [record.is_eligible for record in records] == [False, True, False, False]
    assert [record.state for record in records] == [TrialState.COMPLETE] * 4
    assert best.run_summary.ranked() == [records[1]]
    assert weights_on_disk(tmp_path / "study") == {"run-1"}
    lines = stream.getvalue().splitlines()
    assert "num_parameters <= 41" in lines[0]
    assert "trial 0 complete 82" in lines[2]
    assert "(breaks num_parameters <= 41); no trial satisfies the constraints yet" in lines[2]
    assert "breaks" not in lines[3]
    assert "(breaks num_parameters >= 15); best 22 (trial 1)" in lines[4]
    table = io.StringIO()
    Console(file=table, width=100, color_system=None).print(trials_table(best.run_summary.study, records))
    assert "holds by 19" in table.getvalue()


def test_if_no_trial_holds_them_there_is_no_best_and_it_says_which_is_broken(tmp_path: Path) -> None:
    error = without_result(search, tmp_path, ["num_parameters <= 5", "loss <= 100"])
    assert "None of the 4 trials with a result satisfies the constraints" in str(error)
    assert str(error).endswith("trial 2 comes closest and breaks num_parameters <= 5.")
    assert weights_on_disk(tmp_path / "study") == set()
    assert not (tmp_path / "study" / "best.json").exists()
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(
        trials_table(error.run_summary.study, error.run_summary.records)
    )
    assert "num_parameters <= 5" in text.getvalue()


def test_a_metric_that_is_nan_breaks_its_constraint(tmp_path: Path) -> None:
    wide_only = Constraint(lambda metrics: math.nan if metrics["num_parameters"] > 30 else 0.0, at_most=1.0)
    best = search(tmp_path, wide_only)
    assert best.hyperparameters["model.hidden"] == 4
    assert [list(record.violations.values()) for record in best.run_summary.records] == [
        [math.inf],
        [-1.0],
        [-1.0],
        [math.inf],
    ]
    again = search(tmp_path, wide_only)
    assert again.run_summary.records[0].violations == best.run_summary.records[0].violations
    assert again.run_id == best.run_id


def test_a_constraint_counts_where_the_value_is_from(tmp_path: Path) -> None:
    # The second epoch has the best report, which breaks the bound; the others hold it.
    error = without_result(
        search,
        tmp_path,
        Constraint(lambda metrics: metrics["epoch"], at_most=1.5),
        1,
        lambda metrics: 1.0 if metrics["epoch"] == 2.0 else 0.5,
        scope="all",
        trainer={"num_train_epochs": 3},
    )
    [record] = error.run_summary.records
    assert record.value == 1.0
    assert list(record.violations.values()) == [0.5]
    assert [list(report.violations.values()) for report in record.reports] == [[-0.5], [0.5], [1.5]]


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ("parmeters <= 5", "eval_parmeters"),
        ("f1 >= 0.5", "eval_accuracy"),
        (Constraint(lambda metrics: metrics["eval_los"], at_most=1), "Did you mean 'eval_loss'"),
        (Constraint(lambda metrics: "five", at_most=1), "'five'"),
    ],
)
def test_a_constraint_on_what_evaluation_does_not_produce_ends_the_search_in_the_first_trial(
    tmp_path: Path, constraint: Any, said: str
) -> None:
    events = Events()
    with pytest.raises(ObjectiveError) as caught:
        search(tmp_path, constraint, progress=events)
    assert said in str(caught.value)
    assert "constraint" in str(caught.value).lower()
    assert [record.state for record in events.ended] == [TrialState.REFUSED]
    # What was written so far is no obstacle once the mistake is mended.
    assert states(search(tmp_path, "num_parameters <= 82", 1)) == ["complete"]


def test_of_several_objectives_the_front_holds_the_constraints(tmp_path: Path) -> None:
    best = search(
        tmp_path,
        "num_parameters <= 42",
        objective=["loss", more_is_better],
        direction=["minimize", "maximize"],
    )
    records = best[0].run_summary.records
    assert "0" not in {each.run_id for each in best}
    assert {int(each.run_id) for each in best} <= {record.number for record in records if record.values[1] <= 42}
    assert weights_on_disk(tmp_path / "study") == {f"run-{each.run_id}" for each in best}
    engine = best[0].run_summary.engine_study
    assert sorted(trial.number for trial in engine.best_trials) == [int(each.run_id) for each in best]


# Optuna knows.


def test_optuna_has_the_constraints_and_the_same_best(tmp_path: Path) -> None:
    best = search(tmp_path, ["num_parameters <= 41", "loss <= 100"], storage=None)
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path / 'study' / 'study.db'}")
    assert study.best_trial.number == int(best.run_id)
    assert [trial.constraints for trial in study.trials] == [record.violations for record in best.run_summary.records]
    assert set(study.trials[0].constraints) == {"num_parameters <= 41", "eval_loss <= 100"}


def test_a_pruned_trial_has_its_constraints_too(tmp_path: Path) -> None:
    best = search(
        tmp_path,
        "num_parameters <= 41",
        2,
        pruner=optuna.pruners.ThresholdPruner(upper=50.0),
        trainer={"num_train_epochs": 2},
    )
    assert states(best) == ["pruned", "complete"]
    assert [trial.constraints for trial in best.run_summary.engine_study.trials] == [
        {"num_parameters <= 41": 41.0},
        {"num_parameters <= 41": -19.0},
    ]


def test_the_sampler_learns_what_holds_the_constraints(tmp_path: Path) -> None:
    best = search(
        tmp_path,
        "num_parameters <= 100",
        24,
        start_with=None,
        space={"model.hidden": Int(1, 200)},
        trainer={"train_dataset": [{"x": torch.zeros(2), "labels": 0}] * 2},
    )
    holds = [record.is_eligible for record in best.run_summary.records]
    assert sum(holds[10:]) > sum(holds[:10])
    assert best.objective > 52


# Going on.


def test_sessions_end_as_one_session_does(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trainer": {"num_train_epochs": 2, "save_strategy": "epoch"}, "pruner": None}
    whole = search(tmp_path / "whole", "num_parameters <= 41", 6, **options)
    with pytest.raises(SearchInterrupted) as caught:
        search(tmp_path / "parts", "num_parameters <= 41", 6, callbacks=[AtStep(interrupt, run=1, step=6)], **options)
    assert caught.value.best_run.run_id is None
    assert "breaks num_parameters <= 41" in caught.value.best_run.run_summary.explain_absence()
    search(tmp_path / "parts", "num_parameters <= 41", 3, **options)
    parts = search(tmp_path / "parts", "num_parameters <= 41", 6, **options)
    for name in ("params", "values", "violations", "state"):
        found = [[getattr(record, name) for record in each.run_summary.records] for each in (parts, whole)]
        assert found[0] == found[1]
    assert (parts.run_id, parts.objective) == (whole.run_id, whole.objective)
    assert weights_on_disk(tmp_path / "parts" / "study") == weights_on_disk(tmp_path / "whole" / "study")


@pytest.mark.parametrize(
    "now",
    [None, "num_parameters <= 83", "num_parameters >= 82", "loss <= 82", ["num_parameters <= 82", "loss <= 9"]],
    ids=str,
)
def test_a_study_cannot_go_on_with_other_constraints(tmp_path: Path, now: Any) -> None:
    search(tmp_path, "num_parameters <= 82", 1)
    before = (tmp_path / "study" / "study.json").read_bytes()
    with pytest.raises(StudyError, match=r"made with another constraints?: \['num_parameters <= 82'\], now") as caught:
        search(tmp_path, now, 2)
    assert str(tmp_path / "study") in str(caught.value)
    assert (tmp_path / "study" / "study.json").read_bytes() == before
    assert states(search(tmp_path, "num_parameters <= 82", 1)) == ["complete"]


def test_a_study_of_floats_holds_a_constraint_exactly_at_its_bound(tmp_path: Path) -> None:
    best = search(tmp_path, "num_parameters <= 82", 1, space={**WIDTHS, "weight_decay": Float(0.0, 0.1)})
    assert best.run_summary.records[0].violations == {"num_parameters <= 82": 0.0}
    assert best.run_id == "0"
