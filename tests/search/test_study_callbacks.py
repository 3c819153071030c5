"""Functions called after each trial, and what trials note about themselves, as Optuna has both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from transformers import EarlyStoppingCallback

from hpsearch import StudyError, open_study
from hpsearch.search.trial import FixedTrial
from tests.support.searching import Events, HearsNotices, states
from tests.support.small_search import search
from tests.support.small_trainer import CountsModels, TwoLayers, small_trainer


def test_functions_are_called_with_the_study_and_the_trial_of_optuna_after_each_trial(tmp_path: Path) -> None:
    called: list[tuple[int, str, int]] = []

    def callback(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        assert isinstance(study, optuna.Study)
        called.append((trial.number, trial.state.name, len(study.trials)))

    def fail(trial: Any) -> None:
        if trial.number == 1:
            raise RuntimeError("out of luck")

    search(tmp_path, 3, callbacks=[callback], trainer={"model_init": CountsModels(fail)})
    assert called == [(0, "COMPLETE", 1), (1, "FAIL", 2), (2, "COMPLETE", 3)]


@pytest.mark.parametrize(
    "jobs", [pytest.param({}, id="inline"), pytest.param({"n_jobs": 1}, marks=pytest.mark.process)]
)
def test_a_callback_may_stop_the_search_and_the_same_call_continues_it(tmp_path: Path, jobs: dict[str, Any]) -> None:
    def stop(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        if trial.number == 1:
            study.stop()

    hears = HearsNotices()
    assert states(search(tmp_path, 4, callbacks=[stop], progress=hears, **jobs)) == ["complete"] * 2
    assert [each for each in hears.notices if "callback" in each] == [
        "the search ends early: a callback has stopped it"
    ]
    assert states(search(tmp_path, 4, **jobs)) == ["complete"] * 4


def test_an_error_of_a_callback_ends_the_search_and_keeps_the_trial(tmp_path: Path) -> None:
    def callback(study: Any, trial: Any) -> None:
        raise ZeroDivisionError("in a callback")

    with pytest.raises(ZeroDivisionError, match="in a callback"):
        search(tmp_path, 3, callbacks=[callback])
    assert states(search(tmp_path, 2)) == ["complete"] * 2
    assert len(open_study(tmp_path / "study").records) == 2


@pytest.mark.parametrize(
    ("callbacks", "said"),
    [
        (print, "must be a list of functions"),
        (["stop"], r"must hold functions \(study, trial\), but got 'stop'"),
        ([EarlyStoppingCallback()], r"pass it to the trainer, Trainer\(callbacks=...\)"),
        ([EarlyStoppingCallback], r"pass it to the trainer, Trainer\(callbacks=...\)"),
        ([Events()], "pass it as progress="),
    ],
)
def test_what_is_no_function_of_a_study_is_refused_with_its_place(tmp_path: Path, callbacks: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        search(tmp_path, 1, callbacks=callbacks)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "jobs", [pytest.param({}, id="inline"), pytest.param({"n_jobs": 1}, marks=pytest.mark.process)]
)
def test_attributes_that_a_trial_notes_are_in_its_record_and_in_optuna(tmp_path: Path, jobs: dict[str, Any]) -> None:
    def model_init(trial: Any) -> TwoLayers:
        trial.set_user_attr("host", {"name": "a", "cores": [1, 2]})
        return TwoLayers()

    search(tmp_path, 1, trainer={"model_init": model_init}, **jobs)
    summary = open_study(tmp_path / "study")
    assert summary.records[0].user_attrs == {"host": {"name": "a", "cores": [1, 2]}}
    [stored] = summary.engine_study.trials
    assert stored.user_attrs["host"] == {"name": "a", "cores": [1, 2]}


@pytest.mark.process
def test_attributes_that_the_space_notes_stay_with_a_trial_of_a_worker(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        trial.set_user_attr("kind", "a")
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1)}

    trainer = small_trainer(tmp_path)
    best = trainer.hyperparameter_search(space, "loss", 1, n_jobs=1, trials_per_worker=1, progress=False)
    assert best.run_summary.records[0].user_attrs == {"kind": "a"}


def test_attributes_stay_while_a_trial_is_interrupted_and_when_the_storage_is_built_again(tmp_path: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        trial.set_user_attr("builds", trial.user_attrs.get("builds", 0) + 1)
        if trial.user_attrs["builds"] == 1:
            raise KeyboardInterrupt
        return TwoLayers()

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, 1, trainer={"model_init": model_init})
    best = search(tmp_path, 1, trainer={"model_init": model_init})
    assert best.run_summary.records[0].user_attrs == {"builds": 2}
    (tmp_path / "study" / "study.db").unlink()
    search(tmp_path, 2, trainer={"model_init": lambda: TwoLayers()})
    assert open_study(tmp_path / "study").engine_study.trials[0].user_attrs["builds"] == 2


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("digest", 2**128, "at most 64 bits"),
        ("hpsearch:state", 1, "does not begin with 'hpsearch'"),
        ("", 1, "name"),
        (3, 1, "name"),
        ("a", object(), "a=<"),
    ],
)
def test_an_attribute_that_cannot_be_stored_is_refused(key: Any, value: Any, said: str) -> None:
    trial = FixedTrial({})
    with pytest.raises(StudyError, match=said):
        trial.set_user_attr(key, value)
    assert trial.user_attrs == {}
