"""A relative `output_dir` is where the search began, or the study was opened, even if the working folder changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpsearch import open_study, tune
from hpsearch.search.store.study_folder import read_records
from tests.support.small_search import search
from tests.support.small_trainer import TwoLayers, small_trainer
from tests.support.small_tune import RATE

REL, STUDY = Path("rel"), Path("rel/study")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return another folder than the working one, which the test may change."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "elsewhere"


def test_the_best_model_loads_from_another_working_folder(elsewhere: Path) -> None:
    best = search(REL, 1)

    os.chdir(elsewhere)

    assert sum(each.numel() for each in best.load_model().parameters()) > 0
    assert best.run_summary.study.folder == elsewhere.parent / "here/rel/study"
    assert len(best.run_summary.trials_dataframe()) == len(best.run_summary.engine_study.trials) == 1


def test_a_request_reaches_the_study_that_was_opened_from_another_working_folder(elsewhere: Path) -> None:
    search(REL, 1)
    opened = open_study(STUDY)

    os.chdir(elsewhere)
    opened.add({"learning_rate": 0.01})

    assert not any(elsewhere.iterdir())
    os.chdir(elsewhere.parent / "here")
    assert len(search(REL, 1).run_summary.records) == 2


def test_all_trials_are_in_one_study_though_model_init_changes_the_working_folder(elsewhere: Path) -> None:
    def model_init(trial: Any) -> TwoLayers:
        os.chdir(elsewhere)
        return TwoLayers(2)

    best = search(REL, 3, trainer={"model_init": model_init})

    assert not any(elsewhere.iterdir())
    assert best.load_model() is not None
    assert len(read_records(elsewhere.parent / "here" / STUDY)) == 3


def test_a_study_of_a_function_that_changes_the_working_folder_continues(elsewhere: Path) -> None:
    def train(trial: Any) -> float:
        os.chdir(elsewhere)
        return float(trial.params["learning_rate"])

    tune(train, RATE, n_trials=3, direction="minimize", output_dir=REL, progress=False)

    here = elsewhere.parent / "here"
    assert len(read_records(here / STUDY)) == 3
    os.chdir(here)
    again = tune(train, RATE, n_trials=4, direction="minimize", output_dir=REL, progress=False)
    assert [each.number for each in again.run_summary.records] == [0, 1, 2, 3]
    assert not any(elsewhere.iterdir())


def test_a_trial_is_replayed_though_model_init_changes_the_working_folder(elsewhere: Path) -> None:
    search(REL, 1)

    def model_init(trial: Any) -> TwoLayers:
        os.chdir(elsewhere)
        return TwoLayers(2)

    trainer = small_trainer(REL, model_init=model_init)
    assert trainer.replay(progress=False).record.number == 0
    assert not any(elsewhere.iterdir())


def test_a_moved_study_opens(elsewhere: Path) -> None:
    search(REL, 1)
    moved = elsewhere / "moved"
    (REL / "study").rename(moved)

    [best] = open_study(moved).best()

    assert best.checkpoint.is_dir()
    assert best.checkpoint.is_relative_to(moved)
    assert not [each for each in moved.rglob("*.json") if str(elsewhere.parent).encode() in each.read_bytes()]
