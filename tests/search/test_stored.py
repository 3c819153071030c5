"""What a search returned can be read from its folder, by anybody, at any time."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import pickle
import platform
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pandas
import pytest

from hpsearch import (
    BestRun,
    Categorical,
    CheckpointError,
    Float,
    Int,
    SearchPlan,
    SearchSpace,
    SearchSummary,
    SpaceError,
    StorageError,
    StudyError,
    Trainer,
    TrialState,
    open_study,
)
from tests.support.searching import without_result
from tests.support.small_trainer import small_trainer

SPACE = SearchSpace(
    {
        "learning_rate": Float(1e-4, 1e-1, log=True),
        "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.99)}}),
        "seed": Int(1, 9),
    }
)


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> BestRun:
    trainer = small_trainer(tmp_path_factory.mktemp("stored"), num_train_epochs=2)
    found: BestRun = trainer.hyperparameter_search(
        SPACE, n_trials=8, pruner=None, constraints="num_parameters <= 1e9", progress=False
    )
    return found


def folder_of(best: BestRun) -> Path:
    return Path(best.run_summary.study.folder)


def test_a_study_read_from_its_folder_is_the_one_that_was_searched(best: BestRun) -> None:
    searched, read = best.run_summary, open_study(folder_of(best))
    assert isinstance(read, SearchSummary)
    assert [each.to_json() for each in read.records] == [each.to_json() for each in searched.records]
    assert [each.number for each in read.ranked()] == [each.number for each in searched.ranked()]
    assert read.best()[0].checkpoint == best.checkpoint
    for name in ("name", "scope", "n_trials"):
        assert getattr(read.study, name) == getattr(searched.study, name)
    assert read.study.described_space() == SPACE.describe()


def test_importances_from_the_folder_are_those_of_the_search(best: BestRun) -> None:
    searched, read = best.run_summary.importances(), open_study(folder_of(best)).importances()
    assert searched
    assert read == pytest.approx(searched)


def test_the_storage_and_the_dashboard_move_with_the_folder(best: BestRun, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(folder_of(best), moved)
    read = open_study(moved)
    engine = read.engine_study
    assert isinstance(engine, optuna.Study)
    assert len(engine.trials) == 8
    assert str(moved) in (read.dashboard_command() or "")
    settings = (moved / "study.json").read_text()
    (moved / "study.json").write_text(settings.replace(str(folder_of(best)), str(tmp_path / "nowhere")))
    (moved / "study.db").unlink()
    with pytest.raises(StorageError, match="does not exist"):
        open_study(moved, trust=True).engine_study  # noqa: B018


def with_storage(best: BestRun, folder: Path, database: Path) -> Path:
    """Copy a study to a folder, as one whose storage is a database of another name."""
    shutil.copytree(folder_of(best), folder)
    with contextlib.closing(sqlite3.connect(folder / "study.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    (folder / "study.db").rename(database)
    settings = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**settings, "storage": f"sqlite:///{database}"}))
    return database


def test_a_storage_outside_of_the_folder_is_opened_if_it_is_given_or_trusted(best: BestRun, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    database = with_storage(best, moved, tmp_path / "elsewhere.db")
    read = open_study(moved)
    assert len(read.records) == 8
    assert read.importances()
    for ask in (lambda: read.engine_study, read.dashboard_command):
        with pytest.raises(StudyError, match=r"lies outside of the study's folder.*storage=URL or trust=True"):
            ask()
    for opened in (open_study(moved, storage=f"sqlite:///{database}"), open_study(moved, trust=True)):
        assert len(opened.engine_study.trials) == 8
        assert str(database) in (opened.dashboard_command() or "")
    storage = optuna.storages.RDBStorage(f"sqlite:///{database}")
    assert len(open_study(moved, storage=storage).engine_study.trials) == 8


def test_a_storage_of_another_name_in_the_folder_is_opened(best: BestRun, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    with_storage(best, moved, moved / "books.db")
    assert len(open_study(moved).engine_study.trials) == 8


@pytest.mark.process
def test_reading_a_study_writes_nothing_and_loads_no_torch(best: BestRun) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder_of(best).rglob("*")}
    code = "import sys, hpsearch; hpsearch.open_study(sys.argv[1]).trials_dataframe(); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code, folder_of(best)], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
    assert {path: path.stat().st_mtime_ns for path in folder_of(best).rglob("*")} == before


@pytest.mark.parametrize("keep", [0, 300, -1])
def test_weights_that_are_cut_off_are_an_error_that_names_the_file(best: BestRun, tmp_path: Path, keep: int) -> None:
    copied = best._replace(checkpoint=shutil.copytree(str(best.checkpoint), tmp_path / "checkpoint"))
    assert copied.load_model() is not None
    weights = tmp_path / "checkpoint/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"checkpoint/model.safetensors' cannot be loaded"):
        copied.load_model()


def test_a_data_frame_has_a_row_for_every_trial_and_a_column_for_every_parameter(best: BestRun) -> None:
    table = open_study(folder_of(best)).trials_dataframe()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.index) == list(range(8))
    for record in best.run_summary.records:
        row = table.loc[record.number]
        assert row["state"] == record.state.value
        assert row[best.run_summary.objective.name] == record.value
        for name in SPACE.all_parameters():
            value = row[f"params.{name}"]
            assert pandas.isna(value) if name not in record.params else value == record.params[name]


def test_importances_leave_out_what_is_beyond_the_space_and_lists(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=1)
    found = trainer.hyperparameter_search(SPACE, n_trials=6, pruner=None, progress=False)
    folder = folder_of(found)
    for number, value in ((0, 5.0), (1, [1, 2])):
        path = folder / f"run-{number}" / "trial.json"
        record = json.loads(path.read_text())
        record["params"]["learning_rate"] = value
        path.write_text(json.dumps(record))
    assert open_study(folder).importances()


@pytest.mark.parametrize("name", ["a?b", "a{b}", "100%41", "a b'c"])
def test_a_study_in_a_folder_of_any_name_is_opened_and_nothing_is_made(
    best: BestRun, tmp_path: Path, name: str
) -> None:
    moved = tmp_path / name
    shutil.copytree(folder_of(best), moved)
    assert len(open_study(moved).engine_study.trials) == 8
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["eval_acc@5 >= 0.9", "my metric <= 3", "f <= 1e-05"])
def test_a_constraint_of_any_name_is_read(best: BestRun, tmp_path: Path, name: str) -> None:
    shutil.copytree(folder_of(best), tmp_path / "study")
    settings = json.loads((tmp_path / "study/study.json").read_text())
    (tmp_path / "study/study.json").write_text(json.dumps({**settings, "constraints": [name]}))
    assert [each.name for each in open_study(tmp_path / "study").study.constraints] == [name]


def test_a_data_frame_of_trials_without_a_result_has_nan(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=1)
    failing = without_result(
        trainer.hyperparameter_search,
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-2)},
        n_trials=1,
        compute_objective=lambda metrics: float("nan"),
        direction="minimize",
        progress=False,
    )
    table = failing.run_summary.trials_dataframe()
    assert table["state"].tolist() == [TrialState.FAILED.value]
    assert math.isnan(table.iloc[0, 1])


def test_a_table_for_a_paper_has_the_best_trials_first(best: BestRun) -> None:
    head, _, *rows = best.run_summary.trials_markdown(limit=3).splitlines()
    assert head.startswith("| trial | sum of metrics |")
    assert [int(row.split("|")[1]) for row in rows] == [each.number for each in best.run_summary.ranked()[:3]]


def test_a_space_survives_its_description() -> None:
    assert SearchSpace.from_description(json.loads(json.dumps(SPACE.describe()))) == SPACE


@pytest.mark.parametrize(
    ("described", "parts"),
    [
        ({"x": {"kind": "Flaot", "low": 0, "high": 1}}, ["'x'", "Float"]),
        ({"x": 3}, ["'x'", "kind"]),
        ({"x": {"kind": "Float", "lwo": 0, "high": 1}}, ["lwo", "'low'"]),
        ({"x": {"kind": "Float", "low": 0}}, ["high"]),
        ({"x": {"kind": "Float", "low": 1, "high": 0}}, ["low must not be above high"]),
    ],
)
def test_a_description_that_is_none_says_what_is_wrong(described: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        SearchSpace.from_description(described)
    for part in parts:
        assert part in str(caught.value)


def test_a_plan_searches_with_its_own_settings_unless_others_are_given(tmp_path: Path) -> None:
    made: list[Trainer] = []

    def make_trainer() -> Trainer:
        made.append(small_trainer(tmp_path, num_train_epochs=1))
        return made[-1]

    plan = SearchPlan(make_trainer, {"learning_rate": Float(1e-3, 1e-1, log=True)}, n_trials=3, progress=False)
    assert not made
    found = plan.run({"num_train_epochs": 2}, n_trials=2, pruner=None)
    assert [each.epochs for each in found.run_summary.records] == [2.0, 2.0]
    assert repr(plan).endswith("make_trainer, n_trials=3, progress=False)")


@pytest.mark.parametrize("wrong", [None, "trainer", 3])
def test_a_plan_without_a_function_is_refused(wrong: Any) -> None:
    with pytest.raises(StudyError, match="make_trainer must be a function"):
        SearchPlan(wrong)


@pytest.mark.slow
def test_when_a_trial_trained_is_recorded_over_all_its_pauses(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=9, eval_strategy="epoch")
    found = trainer.hyperparameter_search({"learning_rate": Float(1e-4, 1e-1, log=True)}, n_trials=8, progress=False)
    records = found.run_summary.records
    assert all(each.spans for each in records)
    assert any(len(each.spans) > 1 for each in records)  # some have waited at a rung
    spans = sorted(span for each in records for span in each.spans)
    assert all(each.begin <= each.end for each in spans)
    assert all(before.end <= after.begin for before, after in itertools.pairwise(spans))  # one at a time
    assert {each.where for each in spans} == {platform.node()}
    again = open_study(tmp_path / "study")
    assert [each.spans for each in again.records] == [each.spans for each in records]


@pytest.mark.process
def test_in_which_worker_a_trial_trained_is_recorded(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=2)
    found = trainer.hyperparameter_search({"weight_decay": Float(0.0, 0.1)}, n_trials=6, n_jobs=2, progress=False)
    places = [span.where for each in found.run_summary.records for span in each.spans]
    assert set(places) <= {f"{platform.node()}, worker {number}" for number in (0, 1)}
    assert len(places) >= 6


def test_the_summary_of_a_search_can_be_pickled(tmp_path: Path) -> None:
    best = small_trainer(tmp_path).hyperparameter_search(
        {"learning_rate": Float(1e-4, 1e-1)}, "loss", n_trials=1, progress=False
    )
    assert isinstance(best, BestRun)
    summary = pickle.loads(pickle.dumps(best.run_summary))
    assert [each.to_json() for each in summary.records] == [each.to_json() for each in best.run_summary.records]
