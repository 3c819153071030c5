"""Rungs on a cluster: trials pause in one worker and go on in another, and nothing else about them changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

import optuna
from ray.tune.search.optuna import OptunaSearch

from hpsearch import Float, StudyError, TrialState
from hpsearch.executors.ray_executor.run_folders import TUNE_FOLDER
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.search.decisions.training_budget import full_runs_of
from tests.support.on_ray import ON_RAY
from tests.support.searching import Events
from tests.support.small_trainer import points, small_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]

EPOCHS = 6  # pauses after 1 and 3 of them
RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}


def search(folder: Path, n_trials: int | None = 9, **options: Any) -> Any:
    return small_trainer(folder / "runs", num_train_epochs=EPOCHS).hyperparameter_search(
        RATE, "loss", n_trials=n_trials, **{**ON_RAY, "pruner": LADDER_OF_0_8_0, **options}
    )


@pytest.mark.parametrize("is_distant", [False, True], ids=["one folder", "storage_path"])
def test_trials_that_wait_on_a_cluster_go_on_from_exactly_where_they_were(tmp_path: Path, is_distant: bool) -> None:
    events = Events()
    options = {"storage_path": str(tmp_path / "place")} if is_distant else {}
    best = search(tmp_path, 12, progress=events, **options)
    records = best.run_summary.records
    assert [each.number for each in records] == list(range(12))
    assert {each.state for each in records} == {TrialState.COMPLETE, TrialState.PRUNED}
    paused = {each.number for each in events.ended if each.state is TrialState.PAUSED}
    complete = [each for each in records if each.state is TrialState.COMPLETE]
    assert paused & {each.number for each in complete}
    for record in complete:
        again = small_trainer(tmp_path / "runs", num_train_epochs=EPOCHS).replay(number=record.number, progress=False)
        assert again.is_equal, again.first_difference
    assert best.objective == min(each.value for each in complete)
    assert best.load_model() is not None
    left = [path.parent.name for path in (tmp_path / "runs" / "study").glob("*/checkpoint-*")]
    assert left == [f"run-{best.run_id}"]
    assert not list((tmp_path / "runs" / "study").glob(f"{TUNE_FOLDER}*"))
    assert not is_distant or not list((tmp_path / "place").rglob("*.safetensors"))


@pytest.mark.parametrize("several", [{"repeats": 3}, {"folds": 3, "refit": True}], ids=["repeats", "folds"])
def test_the_further_runs_of_trials_are_trained_on_a_cluster(tmp_path: Path, several: dict[str, Any]) -> None:
    data = {"eval_dataset": None, "eval_strategy": "no", "train_dataset": points(18, 0)} if "folds" in several else {}
    trainer = small_trainer(tmp_path / "runs", num_train_epochs=EPOCHS, **data)
    best = trainer.hyperparameter_search(RATE, "loss", n_trials=6, **ON_RAY, **several)
    assert list(best.values) == ([0, 1, 2] if "folds" in several else [42, 43, 44])
    further = [each for each in best.run_summary.records if each.replica is not None]
    assert len({each.replica for each in further}) == len(further) >= 2
    for each in further:
        again = trainer.replay(number=each.number, progress=False)
        assert again.is_equal, again.first_difference
    assert best.load_model() is not None


@pytest.mark.parametrize("several", [{"repeats": 3}, {"folds": 3}], ids=["repeats", "folds"])
def test_a_scheduler_of_tune_and_further_runs_are_refused_together(tmp_path: Path, several: dict[str, Any]) -> None:
    data = {"eval_dataset": None, "eval_strategy": "no"} if "folds" in several else {}
    trainer, name = small_trainer(tmp_path / "runs", **data), next(iter(several))
    with pytest.raises(StudyError, match=f"{name}=3 trains trials again .*: leave {name} or scheduler out"):
        trainer.hyperparameter_search(RATE, "loss", n_trials=6, **ON_RAY, pruner=None, scheduler="asha", **several)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "least"), [({}, 4), ({"pruner": None, "scheduler": "asha"}, 3)], ids=["rungs", "asha"]
)
def test_a_budget_in_full_training_runs_ends_a_search_on_a_cluster(
    tmp_path: Path, options: dict[str, Any], least: int
) -> None:
    records = search(tmp_path, None, budget=3, **options).run_summary.records
    assert len(records) >= least
    assert 2.0 < full_runs_of(records) <= 3.0 + 1e-6


def loss_or_nothing(metrics: dict[str, float]) -> float:
    """The loss, as long as it is one."""
    return metrics["eval_loss"] if metrics["eval_loss"] < 1e3 else math.nan


@pytest.mark.parametrize("backend", [{}, {"backend": "optuna"}], ids=["Ray", "Optuna"])
def test_a_trial_that_diverges_trains_no_further_than_the_first_rung(tmp_path: Path, backend: dict[str, Any]) -> None:
    options: dict[str, Any] = {"n_trials": 9, "progress": False, **(backend or ON_RAY)}
    trainer = small_trainer(tmp_path / "runs", num_train_epochs=EPOCHS)
    space = {"learning_rate": Float(1e-3, 1e30, log=True)}
    start = {"learning_rate": 0.01}
    best = trainer.hyperparameter_search(space, loss_or_nothing, direction="minimize", start_with=start, **options)
    records = best.run_summary.records
    diverged = [each for each in records if not math.isfinite(each.reports[0].value)]
    assert len(diverged) >= 3
    assert {len(each.reports) for each in diverged} == {1}
    assert TrialState.COMPLETE in {each.state for each in records}


def test_a_budget_ends_a_search_on_a_cluster_with_the_best_of_those_that_wait(tmp_path: Path) -> None:
    best = search(tmp_path, 18, max_epochs=6, storage_path=str(tmp_path / "place"))
    records = best.run_summary.records
    assert TrialState.PAUSED in {each.state for each in records}
    assert best.objective == min(each.reports[-1].value for each in records if each.reports)
    assert best.load_model() is not None
    goes_on = search(tmp_path, 18)
    assert len(goes_on.run_summary.records) == 18
    assert TrialState.COMPLETE in {each.state for each in goes_on.run_summary.records}


def test_on_a_cluster_a_search_learns_from_another_study_from_the_start(tmp_path: Path) -> None:
    other = optuna.create_study(study_name="about a hundredth")
    between = {"learning_rate": optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)}
    for number in range(30):
        exponent = -4 * (number + 0.5) / 30
        params = {"learning_rate": 10**exponent}
        other.add_trial(optuna.trial.create_trial(params=params, distributions=between, value=abs(exponent + 2)))
    events = Events()
    best = search(tmp_path, 6, start_from=other, progress=events)
    assert "learns from 30 trials of 'about a hundredth'" in events.notes
    assert len(best.run_summary.records) == 6
    near = [abs(math.log10(each.params["learning_rate"]) + 2) < 0.6 for each in best.run_summary.records]
    assert sum(near) >= 4


def test_what_waits_in_a_search_of_one_backend_goes_on_in_another(tmp_path: Path) -> None:
    waiting = {
        each.number
        for each in search(tmp_path, 12, max_epochs=6).run_summary.records
        if each.state is TrialState.PAUSED
    }
    assert waiting
    trainer = small_trainer(tmp_path / "runs", num_train_epochs=EPOCHS)
    best = trainer.hyperparameter_search(RATE, "loss", n_trials=12, pruner=LADDER_OF_0_8_0, progress=False)
    records = best.run_summary.records
    assert len(records) == 12
    assert {each.state for each in records} == {TrialState.COMPLETE, TrialState.PRUNED, TrialState.STOPPED}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pruner": "rungs"}, "every 8th to completion (default; pruner=None trains every trial to completion)"),
        ({"pruner": None}, "pruner none: every trial runs to completion"),
        ({"search_alg": OptunaSearch()}, "pruner MedianPruner"),
        ({"scheduler": "asha"}, "scheduler AsyncHyperBandScheduler"),
    ],
    ids=["default", "None", "searcher", "scheduler"],
)
def test_what_happens_to_trials_on_a_cluster_is_said(tmp_path: Path, options: Any, said: str) -> None:
    events = Events()
    search(tmp_path, 4, progress=events, **options)  # with fewer there are no rungs
    assert said in "; ".join(events.notes)
