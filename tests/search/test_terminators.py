"""Searches that end before all of their trials have run, as nothing better is to be expected."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.terminator import BaseTerminator

from hpsearch import StudyError
from tests.support.searching import HearsNotices
from tests.support.short_searches import params_of, search, search_for_70, weight_is_measured


def stagnation(after: int) -> BaseTerminator:
    """A terminator for when so many trials have found nothing better."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.terminator.Terminator(
            optuna.terminator.BestValueStagnationEvaluator(max_stagnation_trials=after),
            optuna.terminator.StaticErrorEvaluator(0.0),
            min_n_trials=2,
        )


def test_a_terminator_ends_the_search_says_so_and_the_same_command_ends_at_once(tmp_path: Path) -> None:
    given = [{"weight_decay": value} for value in (60.0, 71.0, 10.0, 20.0, 30.0, 40.0, 50.0)]
    options = {"start_with": given, "terminator": stagnation(2), "preflight": False}
    events = HearsNotices()
    best = search_for_70(tmp_path, 20, **options, progress=events)
    ran = len(best.run_summary.records)
    assert ran < 7
    assert best.run_id == "1"
    assert events.notices == ["the search ends early: the terminator expects no further improvement"]
    events = HearsNotices()
    again = search_for_70(tmp_path, 20, **options, progress=events)
    assert not events.begun
    assert len(events.notices) == 1
    assert len(again.run_summary.records) == ran
    assert (again.run_id, again.objective) == (best.run_id, best.objective)
    assert "terminator Terminator" in events.notes
    more = search_for_70(tmp_path, ran + 1, start_with=given)
    assert len(more.run_summary.records) == ran + 1


def test_the_terminator_by_default_ends_after_thirty_trials_without_anything_better(tmp_path: Path) -> None:
    given = [{"weight_decay": 70.0}]
    best = search_for_70(
        tmp_path,
        60,
        start_with=given,
        terminator=True,
        sampler=optuna.samplers.RandomSampler(seed=1),
        storage=optuna.storages.InMemoryStorage(),
    )
    assert 30 <= len(best.run_summary.records) <= 33
    assert best.run_id == "0"


@pytest.mark.slow
def test_with_rungs_it_ends_after_thirty_trials_that_were_the_best_so_far_at_no_rung(tmp_path: Path) -> None:
    events = HearsNotices()
    settings = {**weight_is_measured(), "objective": "one", "direction": "maximize"}
    best = search(tmp_path, 90, pruner="rungs", terminator=True, preflight=False, progress=events, **settings)
    assert len(best.run_summary.records) == 31
    assert "terminator: ends after 30 trials in a row without a new best at any rung, or sooner" in events.notes
    assert events.notices == ["the search ends early: the terminator expects no further improvement"]


@pytest.mark.slow
def test_with_rungs_it_ends_sooner_where_the_model_expects_no_more(tmp_path: Path) -> None:
    settings = weight_is_measured()
    best = search(tmp_path, 90, pruner="rungs", terminator=True, preflight=False, **settings)
    tried = [params["weight_decay"] for params in params_of(best)]
    last_best = min(range(len(tried)), key=lambda each: abs(tried[each] - 70.0))
    assert 15 <= len(tried) - 1 - last_best < 30


@pytest.mark.parametrize(
    ("given", "said"),
    [("yes", "'yes'"), (3, "3"), (BaseTerminator, "BaseTerminator")],
)
def test_what_is_no_terminator_is_refused(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        search(tmp_path, terminator=given)
    assert not list(tmp_path.iterdir())


def test_a_terminator_that_needs_a_cross_validation_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = optuna.terminator.Terminator()
    with pytest.raises(StudyError, match="cross-validation"):
        search(tmp_path, terminator=default)
    assert not list(tmp_path.iterdir())
