"""A state of a sampler in a storage, which may come from someone else, runs nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sqlite3
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from hpsearch import StudyError
from hpsearch.ledger.sampler_states import check_sampler_states
from tests.support.small_search import records_of, search


class Acts:
    """Makes a folder when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


class CMA:
    """In place of the optimizer of cmaes."""

    def __init__(self) -> None:
        self.mean, self.scale, self.kind = np.arange(300.0), np.float64(0.5), np.dtype("int8")
        self.stream = np.random.RandomState(3)


@pytest.fixture
def cmaes(monkeypatch: pytest.MonkeyPatch) -> type[CMA]:
    module = types.ModuleType("cmaes._cma")
    module.CMA, module.np, module.mkdir = CMA, np, os.mkdir  # type: ignore[attr-defined]
    monkeypatch.setattr(CMA, "__module__", "cmaes._cma")
    monkeypatch.setitem(sys.modules, "cmaes", types.ModuleType("cmaes"))
    monkeypatch.setitem(sys.modules, "cmaes._cma", module)
    return CMA


def trial_with(pickled: bytes, piece: int = 2045) -> optuna.trial.FrozenTrial:
    text = pickled.hex()
    pieces = {f"cma:optimizer:{at // piece}": text[at : at + piece] for at in range(0, len(text), piece)}
    return optuna.trial.create_trial(value=1.0, system_attrs={**pieces, "cma:generation": 3, "grid_id": 0})


def test_a_state_that_the_sampler_has_written_is_taken(cmaes: type[CMA]) -> None:
    trial = trial_with(pickle.dumps(cmaes()))
    assert "cma:optimizer:1" in trial.system_attrs
    check_sampler_states([trial, optuna.trial.create_trial(value=1.0)], "study.db")


@pytest.mark.parametrize(
    "pickled",
    [
        b"cposix\nmkdir\n(S'canary'\ntR.",
        b"ccmaes._cma\nmkdir\n(S'canary'\ntR.",
        b"\x80\x04\x8c\x0bcmaes._cma\x8c\x07np.load\x93.",
        b"cnumpy\nload\n.",
        b"cbuiltins\neval\n.",
        b"",
        b"no pickle",
    ],
    ids=["function", "function of its module", "part of its module", "function of numpy", "builtin", "cut off", "text"],
)
@pytest.mark.usefixtures("cmaes")
def test_a_state_that_could_do_more_is_refused(pickled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trials = [trial_with(pickled or b"\x80")]
    with pytest.raises(StudyError, match=r"study\.db is not used: trial .* has a state of CmaEsSampler"):
        check_sampler_states(trials, "study.db")
    assert list(tmp_path.iterdir()) == []


def test_a_search_in_a_crafted_study_runs_nothing_and_goes_on_without_the_storage(tmp_path: Path) -> None:
    search(tmp_path / "out", 2)
    file, state = tmp_path / "out" / "study" / "study.db", pickle.dumps(Acts(tmp_path / "canary")).hex()
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute(
            "INSERT INTO trial_system_attributes (trial_id, key, value_json) SELECT trial_id, ?, ? FROM trials",
            ("cma:optimizer:0", json.dumps(state)),
        )
        database.commit()
    with pytest.raises(StudyError, match=r"it asks for posix\.mkdir.*delete the storage's file"):
        search(tmp_path / "out", 3, sampler=optuna.samplers.RandomSampler(seed=1))
    assert not (tmp_path / "canary").exists()
    for each in file.parent.glob("study.db*"):
        each.unlink()
    assert [each.number for each in records_of(search(tmp_path / "out", 3))] == [0, 1, 2]
