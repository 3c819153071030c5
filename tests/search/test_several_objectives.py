"""Several objectives: the best runs are the Pareto front, and one named metric may prune.

Where trials pause at rungs: `test_rungs_of_several.py`.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from hpsearch import (
    BestRun,
    Float,
    Int,
    ObjectiveError,
    Report,
    SearchInterrupted,
    StudyError,
    TrialRecord,
    TrialState,
)
from hpsearch.reports.console import console_listener
from hpsearch.reports.tables import describe_best, trials_table
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.metrics.selection import best_records, ranking, select_report
from tests.support.pruners import PrunesAt
from tests.support.searching import AtStep, Events, interrupt, states, without_result
from tests.support.small_trainer import TwoLayers, small_trainer

SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True), "model.hidden": Int(1, 12)}
TWO = ["loss", "num_parameters"]
LOSS_AND_ACCURACY = resolve_objectives(["loss", "accuracy"], None, has_metrics=True)


def model_init(trial: Any) -> TwoLayers:
    return TwoLayers(trial.params["model.hidden"])


def search(
    folder: Path, n_trials: int = 3, objectives: Any = TWO, callbacks: Sequence[Any] = (), **options: Any
) -> list[BestRun]:
    """Search the width of the hidden layer and the learning rate."""
    changes = {"model_init": model_init, "num_train_epochs": 1, **options.pop("trainer", {})}
    settings = {"progress": False, "storage": "journal", **options}
    space = settings.pop("space", SPACE)
    best: list[BestRun] = small_trainer(folder, *callbacks, **changes).hyperparameter_search(
        space, objectives, n_trials=n_trials, **settings
    )
    return best


def front_by_brute_force(records: Sequence[TrialRecord], signs: Sequence[int]) -> list[int]:
    """The trials that no other trial equals or beats in every objective and beats in one; smaller is better."""
    points = {each.number: [sign * value for sign, value in zip(signs, each.values, strict=True)] for each in records}
    return [
        number
        for number, point in points.items()
        if not any(
            all(a <= b for a, b in zip(other, point, strict=True)) and other != point for other in points.values()
        )
    ]


def weights_on_disk(study: Path) -> set[str]:
    return {str(path.parent.relative_to(study)) for path in study.glob("*/*/model.safetensors")}


# The front.


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[BestRun]]:
    folder = tmp_path_factory.mktemp("searched")
    changes = {"num_train_epochs": 2, "save_strategy": "epoch"}
    return folder, search(folder, n_trials=12, storage=None, pruner=None, trainer=changes)


@pytest.mark.feature(1)
def test_the_best_runs_are_the_pareto_front(searched: tuple[Path, list[BestRun]]) -> None:
    _, best = searched
    records = best[0].run_summary.records
    assert len(records) == 12
    expected = front_by_brute_force(records, (1, 1))
    assert 1 < len(expected) < 12
    assert [int(each.run_id or -1) for each in best] == expected
    assert [each.objective for each in best] == [list(records[number].values) for number in expected]
    assert [each.number for each in best[0].run_summary.best()] == expected
    assert [each.number for each in best[0].run_summary.ranked()][: len(expected)] == expected


def test_every_model_of_the_front_measures_what_it_says(searched: tuple[Path, list[BestRun]]) -> None:
    folder, best = searched
    for each in best:
        model = each.load_model()
        assert isinstance(each.objective, list)
        loss, parameters = each.objective
        assert sum(weights.numel() for weights in model.parameters()) == parameters
        assert small_trainer(folder / "again", model=model).evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-6)


def test_the_weights_on_disk_are_those_of_the_front(searched: tuple[Path, list[BestRun]]) -> None:
    folder, best = searched
    assert weights_on_disk(folder / "study") == {f"run-{each.run_id}/checkpoint-8" for each in best}
    assert not list(folder.rglob("selected-*"))
    assert {each.checkpoint for each in best} == {folder / "study" / f"run-{each.run_id}/checkpoint-8" for each in best}


def test_the_best_on_disk_is_a_list(searched: tuple[Path, list[BestRun]]) -> None:
    folder, best = searched
    kept = json.loads((folder / "study" / "best.json").read_text())
    assert [each["trial"] for each in kept] == [int(each.run_id or -1) for each in best]
    assert [each["value"] for each in kept] == [each.objective for each in best]
    for each in kept:
        assert (folder / "study" / each["checkpoint"] / "model.safetensors").is_file()


def test_the_study_of_optuna_has_several_objectives_and_the_same_front(searched: tuple[Path, list[BestRun]]) -> None:
    folder, best = searched
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{folder / 'study' / 'study.db'}")
    assert [each.name for each in study.directions] == ["MINIMIZE", "MINIMIZE"]
    assert sorted(each.number for each in study.best_trials) == [int(each.run_id or -1) for each in best]
    assert [list(each.values) for each in study.trials] == [
        list(record.values) for record in best[0].run_summary.records
    ]
    assert best[0].run_summary.engine_study.directions == study.directions


def test_the_importances_are_those_of_the_first_objective(searched: tuple[Path, list[BestRun]]) -> None:
    _, best = searched
    assert set(best[0].run_summary.importances()) == set(SPACE)


@pytest.mark.feature(1)
def test_with_directions_that_differ_the_front_is_right(tmp_path: Path) -> None:
    best = search(tmp_path, 8, ["accuracy", "num_parameters"])
    records = best[0].run_summary.records
    assert [int(each.run_id or -1) for each in best] == front_by_brute_force(records, (-1, 1))
    settings = json.loads((tmp_path / "study" / "study.json").read_text())
    assert (settings["objective"], settings["direction"]) == (
        ["eval_accuracy", "num_parameters"],
        ["maximize", "minimize"],
    )


def test_equal_trials_are_on_the_front_together() -> None:
    points = {0: (0.5, 0.9), 1: (0.4, 0.9), 2: (0.4, 0.9), 3: (0.3, 0.8), 4: (0.3, 0.7), 5: (0.9, 0.95)}
    records = [TrialRecord(number, "", TrialState.COMPLETE, {}, values=values) for number, values in points.items()]
    assert [each.number for each in best_records(records, LOSS_AND_ACCURACY)] == [1, 2, 3, 5]
    assert [each.number for each in ranking(reversed(records), LOSS_AND_ACCURACY)] == [1, 2, 3, 5, 0, 4]


@pytest.mark.parametrize("state", [TrialState.PRUNED, TrialState.FAILED, TrialState.RUNNING, TrialState.INTERRUPTED])
def test_a_trial_without_a_result_beats_nobody(state: TrialState) -> None:
    complete = TrialRecord(0, "", TrialState.COMPLETE, {}, values=(0.5, 0.5))
    better = TrialRecord(1, "", state, {}, values=(0.1, 0.9))
    assert best_records([complete, better], LOSS_AND_ACCURACY) == [complete]


@pytest.mark.parametrize(("keep", "kept"), [(0, "none"), (1, "front"), (None, "all")])
def test_what_is_kept_follows_keep_checkpoints(tmp_path: Path, keep: int | None, kept: str) -> None:
    best = search(tmp_path, 5, keep_checkpoints=keep)
    front = {f"run-{each.run_id}/checkpoint-4" for each in best}
    every = {f"run-{number}/checkpoint-4" for number in range(5)}
    assert front < every
    assert weights_on_disk(tmp_path / "study") == {"none": set(), "front": front, "all": every}[kept]
    assert all((each.checkpoint is None) is (kept == "none") for each in best)


# Values.


def reports(*rows: Sequence[float]) -> tuple[Report, ...]:
    return tuple(Report(tuple(row), step, 10 * step, float(step), {}) for step, row in enumerate(rows, start=1))


@pytest.mark.parametrize(("scope", "values"), [("last", (4.0, 0.5)), ("avg", (4.0, 0.3)), ("last-5-avg", (4.0, 0.3))])
def test_the_scope_holds_for_each_objective(scope: str, values: tuple[float, float]) -> None:
    selected = select_report(reports((6.0, 0.1), (2.0, 0.3), (4.0, 0.5)), scope, LOSS_AND_ACCURACY)
    assert selected is not None
    assert selected.values == pytest.approx(values)
    assert selected.report.step == 30


@pytest.mark.parametrize("scope", ["last", "avg", "last-5-avg", "last-10-avg"])
def test_a_report_with_one_objective_that_is_not_finite_is_left_out(scope: str) -> None:
    with_gaps = reports((6.0, 0.1), (2.0, math.nan), (4.0, 0.5), (math.inf, 0.9))
    without = (with_gaps[0], with_gaps[2])
    assert select_report(with_gaps, scope, LOSS_AND_ACCURACY) == select_report(without, scope, LOSS_AND_ACCURACY)
    assert select_report(with_gaps[1:2], scope, LOSS_AND_ACCURACY) is None


def test_a_search_averages_every_objective_and_leaves_nan_out(tmp_path: Path) -> None:
    def loss(metrics: dict[str, float]) -> float:
        return math.nan if metrics["epoch"] == 3.0 else metrics["eval_loss"]

    best = search(
        tmp_path,
        2,
        [loss, "accuracy"],
        direction=["minimize", None],
        scope="avg",
        trainer={"num_train_epochs": 3},
    )
    for record in best[0].run_summary.records:
        counted = record.reports[:2]
        assert math.isnan(record.reports[2].value)
        assert record.values == pytest.approx(
            [math.fsum(report.values[place] for report in counted) / 2 for place in (0, 1)]
        )
    assert {each.checkpoint.name for each in best if each.checkpoint} == {"checkpoint-8"}


def test_a_trial_with_an_objective_that_is_never_finite_fails_and_says_so(tmp_path: Path) -> None:
    objectives = [lambda metrics: math.nan, "loss"]
    error = without_result(search, tmp_path, 1, objectives, direction=["minimize", None])
    [record] = error.run_summary.records
    assert record.state is TrialState.FAILED
    assert "never finite" in (record.reason or "")
    assert not (tmp_path / "study" / "best.json").exists()


# Pruning.


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna.pruners.MedianPruner(n_startup_trials=2),
        lambda: optuna.pruners.PercentilePruner(30.0, n_startup_trials=2, n_warmup_steps=1),
        lambda: optuna.pruners.SuccessiveHalvingPruner(),
        lambda: optuna.pruners.HyperbandPruner(min_resource=1, max_resource=3, reduction_factor=2),
    ],
    ids=["median", "percentile", "successive_halving", "hyperband"],
)
def test_the_pruning_metric_prunes_as_a_single_objective_does(
    tmp_path: Path, make: Callable[[], optuna.pruners.BasePruner]
) -> None:
    def ended(name: str, objectives: Any, sessions: list[int], **options: Any) -> list[tuple[str, int]]:
        for n_trials in sessions:
            best: Any = search(
                tmp_path / name,
                n_trials,
                objectives,
                space={"learning_rate": Float(1e-3, 1.0, log=True)},
                pruner=make(),
                sampler=optuna.samplers.RandomSampler(seed=1),
                trainer={"model_init": None, "num_train_epochs": 4},
                **options,
            )
        summary = (best[0] if isinstance(best, list) else best).run_summary
        return [(record.state.value, len(record.reports)) for record in summary.records]

    single = ended("single", "loss", [8])
    assert {state for state, _ in single} == {"complete", "pruned"}
    assert ended("several", TWO, [8], pruning_metric="loss") == single
    assert ended("sessions", TWO, [2, 5, 8], pruning_metric="loss") == single


def test_the_pruning_metric_need_not_be_an_objective_and_is_said(tmp_path: Path) -> None:
    events = Events()
    error = without_result(
        search,
        tmp_path,
        2,
        pruning_metric="accuracy",
        pruner=PrunesAt(1),
        trainer={"num_train_epochs": 2},
        progress=events,
    )
    assert states(error) == ["pruned", "pruned"]
    assert any("PrunesAt by eval_accuracy" in note for note in events.notes)
    assert "2 pruned" in str(error)


def test_a_pruning_metric_that_is_an_objective_has_its_direction(tmp_path: Path) -> None:
    made = iter([0.1, 0.1, 0.1, 0.1, 0.9, 0.9])
    best = search(
        tmp_path,
        3,
        ["quality", "num_parameters"],
        direction=["minimize", None],
        pruning_metric="quality",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
        trainer={"num_train_epochs": 2, "compute_metrics": lambda prediction: {"quality": next(made)}},
    )
    assert states(best[0]) == ["complete", "complete", "pruned"]


def test_a_pruning_metric_that_evaluation_does_not_produce_is_an_error_in_the_first_trial(tmp_path: Path) -> None:
    events = Events()
    with pytest.raises(ObjectiveError, match=r"lss.*Did you mean 'eval_loss'"):
        search(tmp_path, 3, pruning_metric="lss", progress=events)
    assert [(record.number, record.state) for record in events.ended] == [(0, TrialState.REFUSED)]


@pytest.mark.parametrize("gap", [math.nan, None], ids=["nan", "missing"])
def test_gaps_in_the_pruning_metric_are_no_reports_for_the_pruner(tmp_path: Path, gap: float | None) -> None:
    left = iter([0.5, 0.5, gap, gap, 0.9, gap, gap, 0.1, 0.1])

    def metrics(prediction: Any) -> dict[str, float]:
        value = next(left)
        return {"quality": value} if value is not None else {"other": 1.0}

    best = search(
        tmp_path,
        5,
        pruning_metric="quality",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
        preflight=False,
        trainer={"num_train_epochs": 2, "compute_metrics": metrics},
    )
    assert states(best[0]) == ["complete", "complete", "complete", "complete", "pruned"]


def test_a_trial_that_goes_on_is_judged_by_the_reports_it_made_before(tmp_path: Path) -> None:
    options = {
        "pruning_metric": "loss",
        "pruner": PrunesAt(3),
        "trainer": {"num_train_epochs": 5, "save_strategy": "epoch"},
    }
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, callbacks=[AtStep(interrupt, run=0, step=10)], **options)
    [record] = without_result(search, tmp_path, 1, **options).run_summary.records
    assert (record.state, len(record.reports)) == (TrialState.PRUNED, 3)


def test_the_pruning_metric_shows_nothing_of_optuna(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    search(tmp_path, 1, pruning_metric="loss")
    assert "created in memory" not in capfd.readouterr().err


# What does not fit together.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pruner": "median"}, "MedianPruner.*pruning_metric"),
        ({"pruner": optuna.pruners.HyperbandPruner()}, "HyperbandPruner.*pruning_metric"),
        ({"scope": "all"}, "scope='all'"),
        ({"terminator": True}, "terminator.*several"),
        ({"start_from": "a study"}, "start_from"),
        ({"direction": "minimise"}, "minimise"),
        ({"direction": ["minimize"]}, "list of 2 and direction one of 1"),
        ({"direction": ["maximize", None]}, "maximize.*eval_loss"),
        ({"pruning_metric": ["loss", "accuracy"]}, "pruning_metric"),
    ],
)
def test_what_several_objectives_cannot_have_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    if "start_from" in options:
        options = {"start_from": optuna.create_study()}
    with pytest.raises((StudyError, ObjectiveError), match=said):
        search(tmp_path, **options)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("objectives", "options", "said"),
    [
        ("loss", {"pruning_metric": "loss"}, "pruning_metric='eval_loss' is for several objectives"),
        ("loss", {"direction": ["minimize", "minimize"]}, "compute_objective must be a list"),
        ([], {}, "an empty list"),
        (["loss", None], {}, "but contains None"),
        (["loss", "eval_loss"], {}, "'eval_loss' is given twice"),
        (["loss", len], {}, "direction='minimize' or 'maximize'"),
    ],
)
def test_lists_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, objectives: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((StudyError, ObjectiveError), match=said):
        search(tmp_path, 1, objectives, **options)
    assert not list(tmp_path.rglob("*"))


def test_the_pruner_none_needs_no_pruning_metric(tmp_path: Path) -> None:
    assert states(search(tmp_path, 2, pruner="none")[0]) == ["complete"] * 2


# Going on.


def told(best: Sequence[BestRun]) -> list[Any]:
    return [(record.params, record.values, record.state) for record in best[0].run_summary.records]


def test_sessions_and_an_interruption_end_as_one_session_does(tmp_path: Path) -> None:
    options: dict[str, Any] = {"pruning_metric": "loss", "trainer": {"num_train_epochs": 2, "save_strategy": "epoch"}}
    whole = search(tmp_path / "whole", 8, **options)
    search(tmp_path / "parts", 2, **options)
    with pytest.raises(SearchInterrupted) as caught:
        search(tmp_path / "parts", 6, callbacks=[AtStep(interrupt, run=1, step=6)], **options)
    assert isinstance(caught.value.best_run, list)
    assert all(each.load_model() is not None for each in caught.value.best_run)
    search(tmp_path / "parts", 6, **options)
    parts = search(tmp_path / "parts", 8, **options)
    assert told(parts) == told(whole)
    assert [each.run_id for each in parts] == [each.run_id for each in whole]
    assert weights_on_disk(tmp_path / "parts" / "study") == weights_on_disk(tmp_path / "whole" / "study")


@pytest.mark.parametrize(
    "objectives", ["loss", ["num_parameters", "loss"], ["loss", "accuracy"], ["loss", "num_parameters", "accuracy"]]
)
def test_a_study_cannot_go_on_with_other_objectives(tmp_path: Path, objectives: Any) -> None:
    search(tmp_path, 1)
    with pytest.raises(StudyError, match=r"made with another (objective|direction): .*now"):
        search(tmp_path, 2, objectives)


def test_nsga_ii_may_choose(tmp_path: Path) -> None:
    events = Events()
    best = search(tmp_path, 6, sampler=optuna.samplers.NSGAIISampler(population_size=3, seed=1), progress=events)
    records = best[0].run_summary.records
    assert "sampler NSGAIISampler" in events.notes
    assert len({json.dumps(record.params) for record in records}) >= 3
    assert [int(each.run_id or -1) for each in best] == front_by_brute_force(records, (1, 1))


# What is shown.


def test_lines_and_tables_name_every_objective(tmp_path: Path) -> None:
    stream = io.StringIO()
    listener = console_listener(True, Console(file=stream, width=100, color_system=None))
    best = search(tmp_path, 4, constraints="num_parameters <= 45", preflight=False, progress=listener)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "search 'study': minimize eval_loss and minimize num_parameters, with num_parameters <= 45"
    assert "trials do not pause, as they are evaluated at their end only" in lines[1]
    *each_trial, at_the_end = lines[2:]
    for line, record in zip(each_trial, best[0].run_summary.records, strict=True):
        assert f"trial {record.number} complete" in line
        assert f"{record.values[0]:.4g}" in line
        assert f"{record.values[1]:.4g}" in line
        assert ("breaks num_parameters <= 45" in line) is (record.values[1] > 45)
    assert each_trial[-1].endswith(f"{len(best)} on the Pareto front")
    assert at_the_end.startswith("4 trials: 4 complete.")

    table = io.StringIO()
    Console(file=table, width=100, color_system=None).print(
        trials_table(best[0].run_summary.study, best[0].run_summary.records)
    )
    for name in ("eval_loss", "num_parameters", "num_parameters <= 45", "holds by", "learning_rate"):
        assert name in table.getvalue()
    assert all(len(line) <= 100 for line in table.getvalue().splitlines())
    for each in best:
        assert isinstance(each.objective, list)
        described = describe_best(each)
        assert f"trial {each.run_id}" in described
        assert all(f"{value:.4g}" in described for value in each.objective)


def test_trials_may_be_pruned_by_their_size(tmp_path: Path) -> None:
    best = small_trainer(tmp_path).hyperparameter_search(
        {"learning_rate": Float(1e-3, 1e-1)},
        ["loss", "accuracy"],
        2,
        pruning_metric="num_parameters",
        pruner="median",
        progress=False,
    )
    assert all(record.state is TrialState.COMPLETE for record in best[0].run_summary.records)
