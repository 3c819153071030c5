"""Ranges that a function as space suggests are compared with those of the latest trials that have them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from hpsearch import Categorical, Float, StudyError
from hpsearch.ledger.ranges import RangesOfTrials, check_ranges
from hpsearch.ledger.warm_starts import ORIGIN
from hpsearch.search.study import Study

KIND = CategoricalDistribution(("x", "y"))


def engine_with(*trials: tuple[str, float]) -> optuna.Study:
    """A study whose trials have these branches, with `a` up to these bounds; branch y has `b` besides."""
    engine = optuna.create_study()
    for kind, high in trials:
        distributions: dict[str, BaseDistribution] = {"kind": KIND, "a": FloatDistribution(0.0, high)}
        distributions |= {"b": FloatDistribution(0.0, 1.0)} if kind == "y" else {}
        params = {"kind": kind, **({"a": 0.5, "b": 0.5} if kind == "y" else {"a": 0.5})}
        engine.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=0.0))
    return engine


@pytest.mark.parametrize(
    ("trials", "is_refused"),
    [
        ([("x", 1.0), ("y", 2.0), ("y", 2.0)], False),  # 0.8.0 let the range be widened
        ([("x", 2.0), ("y", 2.0), ("y", 1.0)], True),
        ([("y", 2.0), ("x", 1.0)], True),
        ([("x", 1.0)], True),
    ],
)
def test_a_range_that_agrees_with_the_latest_trial_is_not_refused_for_an_older_one(
    tmp_path: Path, trials: list[tuple[str, float]], is_refused: bool
) -> None:
    def function(trial: Any) -> None:
        kind = trial.suggest_categorical("kind", ["x", "y"])
        trial.suggest_float("a", 0.0, 2.0)
        if kind == "y":
            trial.suggest_float("b", 0.0, 1.0)

    study = Study("study", tmp_path, function, objectives=(), n_trials=9)
    if is_refused:
        with pytest.raises(StudyError, match="another space of 'a'"):
            check_ranges(engine_with(*trials), study)
    else:
        check_ranges(engine_with(*trials), study)


def test_a_range_of_a_branch_is_refused_that_the_latest_trial_did_not_take(tmp_path: Path) -> None:
    def function(trial: Any) -> None:
        if trial.suggest_categorical("kind", ["x", "y"]) == "y":
            trial.suggest_float("b", 0.0, 3.0)
        trial.suggest_float("a", 0.0, 2.0)

    study = Study("study", tmp_path, function, objectives=(), n_trials=9)
    with pytest.raises(StudyError, match="another space of 'b'"):
        check_ranges(engine_with(("y", 2.0), ("x", 2.0)), study)


def test_trials_of_another_study_and_errors_of_the_function_refuse_nothing(tmp_path: Path) -> None:
    def function(trial: Any) -> None:
        trial.suggest_float("a", 0.0, 2.0)
        raise ValueError("for the next trial to show")

    study = Study("study", tmp_path, function, objectives=(), n_trials=9)
    engine = engine_with(("x", 2.0))
    distributions = {"a": FloatDistribution(0.0, 9.0)}
    learned = optuna.trial.create_trial(
        params={"a": 0.5}, distributions=distributions, value=0.0, user_attrs={ORIGIN: "another"}
    )
    engine.add_trial(learned)
    check_ranges(engine, study)


@pytest.mark.parametrize(
    ("trials", "name", "now", "before", "outcome"),
    [
        ([("x", 1.0)], "a", Float(0.0, 1.0), {}, "accepted"),
        ([("x", 1.0)], "a", Float(0.0, 2.0), {}, "refused"),
        ([("x", 1.0)], "a", Float(0.0, 2.0), {"kind": "x"}, "refused"),
        ([("x", 1.0)], "a", Float(0.0, 2.0), {"kind": "y"}, "warned"),
        ([("x", 1.0)], "a", Float(0.0, 2.0), {"new": 1}, "warned"),
        ([("x", 1.0), ("x", 2.0)], "a", Float(0.0, 3.0), {"kind": "x"}, "accepted"),  # it depends on something else
        ([("x", 1.0), ("y", 2.0)], "a", Float(0.0, 1.0), {"kind": "x"}, "accepted"),
        ([("x", 1.0)], "kind", Categorical(("x", "y", "z")), {"a": 0.0}, "refused"),
        ([("x", 1.0)], "kind", Categorical(("x", "y")), {"a": 0.0}, "accepted"),
        ([("x", 1.0)], "c", Float(0.0, 2.0), {}, "accepted"),
        ([], "a", Float(0.0, 2.0), {}, "accepted"),
    ],
)
def test_a_range_that_a_trial_suggests_itself_is_refused_where_it_cannot_depend_on_other_parameters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trials: Any, name: str, now: Any, before: Any, outcome: str
) -> None:
    study = Study("study", tmp_path, lambda trial: None, objectives=(), n_trials=9)
    ranges = RangesOfTrials(study, engine_with(*trials).get_trials())
    with caplog.at_level(logging.WARNING, logger="hpsearch"):
        if outcome == "refused":
            with pytest.raises(StudyError, match=f"another space of '{name}'"):
                ranges.check(name, now, before)
        else:
            for _ in range(2):
                ranges.check(name, now, before)
    said = [each.getMessage() for each in caplog.records if each.name.startswith("hpsearch")]
    assert len(said) == (outcome == "warned")
    assert all(f"another space of '{name}'" in each and "depends on other parameters" in each for each in said)
