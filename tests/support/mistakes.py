"""Mistakes that a preflight finds where trials run, and how their searches end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Categorical, MissingMetricError, PreflightError, StudyError, UnknownParameterError
from tests.support.search_processes import records_on_disk
from tests.support.searching import Diary, HearsNotices, states
from tests.support.small_trainer import TwoLayers


def of_misspelt_width(trial: Any) -> TwoLayers:
    return TwoLayers(trial.params["model.widht"])


def of_no_layers(trial: Any) -> TwoLayers:
    raise RuntimeError("no such layer")


ONE_MODEL = TwoLayers()


def of_one_model(trial: Any) -> TwoLayers:
    return ONE_MODEL


MISTAKES = [
    ({"compute_objective": "acuracy"}, MissingMetricError, "Did you mean 'eval_accuracy'"),
    (
        {"trainer": {"model_init": of_misspelt_width}, "hp_space": {"model.width": Categorical([4, 8])}},
        UnknownParameterError,
        "Did you mean 'model.width'",
    ),
    ({"trainer": {"model_init": of_one_model}}, StudyError, "returned the same model as for an earlier trial"),
    ({"trainer": {"model_init": of_no_layers}}, PreflightError, "RuntimeError: no such layer"),
]


def check_that_it_ends_the_search(
    search: Callable[..., Any], folder: Path, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    """Check that a mistake is the error of the search, and that no trial has failed."""
    with pytest.raises(error, match=match):
        search(folder, 4, **options)
    states_on_disk = {record["state"] for record in records_on_disk(folder / "study")}
    assert states_on_disk == {"refused"}


def check_that_it_runs_once_elsewhere(search: Callable[..., Any], folder: Path) -> None:
    """Check that one model more than those of the trials is built, not in this process, and that it is said."""
    diary, hears = Diary(folder / "built"), HearsNotices()

    def model_init(trial: Any) -> TwoLayers:
        diary.write((trial.number, os.getpid()))
        return TwoLayers()

    best = search(folder, 3, trainer={"model_init": model_init}, progress=hears)
    assert states(best) == ["complete"] * 3
    built = [tuple(each) for each in diary.read()]
    assert sorted(number for number, _ in built) == [0, 0, 1, 2]
    assert os.getpid() not in {process for _, process in built}
    [notice] = [each for each in hears.notices if each.startswith("Preflight in")]
    assert "one step and an evaluation of 2 batches work" in notice
