"""Budgets of time and epochs: what is left, what ends a trial, and what ends the search."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.peer_summary import PeerTrials
from hpsearch.search.space.search_space import default_space
from hpsearch.search.study import Study
from hpsearch.search.time_and_epoch_limits import SearchBudget, Stop, TrialBudget
from hpsearch.search.trial import FixedTrial, Verdict
from hpsearch.search.trial_record import TrialState
from hpsearch.system.interruption import Interruption
from hpsearch.trainer.searchable_trainer import SearchableTrainer
from hpsearch.trial.assignment import Assignment
from hpsearch.trial.remote_trial import Line, train_remotely
from tests.support.clock import Clock
from tests.support.small_trainer import small_trainer

STUDY_TIME = Stop("the study's timeout of 10.0 s is over", ends_study=True)
STUDY_EPOCHS = Stop("the study's 5.5 epochs are exhausted", ends_study=True)
TRIAL_TIME = Stop("the trial's timeout of 3.0 s is over", ends_study=False)
TRIAL_EPOCHS = Stop("the trial's 1.25 epochs are exhausted", ends_study=False)


def study_with(**budgets: Any) -> Study:
    objectives = resolve_objectives("loss", None, has_metrics=False, eval_sets=1)
    return Study("study", Path("out/study"), default_space(), objectives, n_trials=9, **budgets)


@pytest.mark.parametrize(
    ("budgets", "seconds", "epochs", "expected"),
    [
        ({}, 1e9, 1e9, None),
        ({"timeout": 10.0}, 9.9, 1e9, None),
        ({"timeout": 10.0}, 10.0, 0.0, STUDY_TIME),
        ({"timeout": 10.0}, 11.0, 0.0, STUDY_TIME),
        ({"max_epochs": 5.5}, 1e9, 5.49, None),
        ({"max_epochs": 5.5}, 0.0, 5.5, STUDY_EPOCHS),
        ({"max_epochs": 5.5}, 0.0, 55 * 0.1 - 1e-9, STUDY_EPOCHS),  # a sum of fractions
        ({"timeout": 10.0, "max_epochs": 5.5}, 10.0, 5.5, STUDY_TIME),
    ],
)
def test_a_search_ends_when_its_time_or_the_epochs_of_its_study_are_used_up(
    budgets: dict[str, float], seconds: float, epochs: float, expected: Stop | None
) -> None:
    clock = Clock()
    budget = SearchBudget(study_with(**budgets), clock=clock)
    clock.move(seconds)()
    assert budget.passed(epochs) == expected


def test_what_is_left_of_the_time_of_a_search_is_never_less_than_nothing() -> None:
    clock = Clock()
    whole, rest, unlimited = (
        SearchBudget(study_with(timeout=10.0), clock=clock),
        SearchBudget(study_with(timeout=10.0), seconds=4.0, clock=clock),
        SearchBudget(study_with(), clock=clock),
    )
    assert (whole.seconds, rest.seconds, unlimited.seconds) == (10.0, 4.0, None)
    clock.move(6.0)()
    assert (whole.seconds, rest.seconds, unlimited.seconds) == (4.0, 0.0, None)
    assert rest.passed(0.0) == STUDY_TIME


@pytest.mark.parametrize(
    ("budgets", "seconds", "epochs", "expected"),
    [
        ({}, 1e9, 1e9, None),
        ({"trial_timeout": 3.0}, 2.9, 1e9, None),
        ({"trial_timeout": 3.0}, 3.0, 0.0, TRIAL_TIME),
        ({"trial_max_epochs": 1.25}, 1e9, 1.24, None),
        ({"trial_max_epochs": 1.25}, 0.0, 1.25, TRIAL_EPOCHS),
        ({"trial_max_epochs": 1.25}, 0.0, 1.25 - 1e-9, TRIAL_EPOCHS),
        ({"trial_timeout": 3.0, "trial_max_epochs": 1.25}, 3.0, 1.25, TRIAL_TIME),
        ({"timeout": 10.0, "trial_timeout": 3.0}, 10.0, 0.0, STUDY_TIME),
        ({"max_epochs": 5.5}, 0.0, 1.4, None),  # beside the other trials' four
        ({"max_epochs": 5.5}, 0.0, 1.5, STUDY_EPOCHS),
        ({"max_epochs": 5.5, "trial_max_epochs": 1.25}, 0.0, 1.5, STUDY_EPOCHS),
    ],
)
def test_a_trial_stops_when_its_own_budget_or_that_of_the_search_is_used_up(
    budgets: dict[str, float], seconds: float, epochs: float, expected: Stop | None
) -> None:
    clock, study = Clock(), study_with(**budgets)
    budget = TrialBudget(study, SearchBudget(study, clock=clock), PeerTrials(epochs=4.0))
    clock.move(seconds)()
    assert budget.passed(epochs) == expected
    assert budget.is_limited == bool(budgets)


def test_the_time_of_a_trial_begins_with_the_trial_and_that_of_a_search_before() -> None:
    clock, study = Clock(), study_with(timeout=10.0, trial_timeout=3.0)
    search = SearchBudget(study, clock=clock)
    clock.move(8.0)()
    trial = TrialBudget(study, search, PeerTrials())
    assert (trial.seconds, trial.passed(0.0)) == (0.0, None)
    clock.move(2.0)()
    assert (trial.seconds, trial.passed(0.0)) == (2.0, STUDY_TIME)


def test_the_time_of_a_trial_counts_over_all_sessions_and_once() -> None:
    clock, study = Clock(), study_with(trial_timeout=3.0)
    trial = TrialBudget(study, SearchBudget(study, clock=clock), PeerTrials())
    clock.move(0.5)()
    trial.continue_after(1.5)  # a checkpoint of an earlier session
    clock.move(0.5)()
    assert trial.seconds == 2.5  # if it fails now
    trial.begin_training()
    assert trial.seconds == 1.5
    clock.move(1.0)()
    trial.begin_training()  # after an error for want of memory
    assert trial.seconds == 2.5
    trial.continue_after(2.5)  # one of this session, as after an error for want of memory
    assert (trial.seconds, trial.passed(0.0)) == (2.5, None)
    clock.move(0.5)()
    assert (trial.seconds, trial.passed(0.0)) == (3.0, TRIAL_TIME)


class Agrees(Line):
    """Leads to a search that lets every trial continue."""

    def __init__(self) -> None:
        self.interruption = Interruption()

    def ask(self, message: Any) -> Any:
        return Verdict()

    def look(self) -> None:
        pass


@pytest.mark.parametrize("off_by", [-7200.0, 7200.0])
@pytest.mark.parametrize(("seconds", "expected"), [(60.0, TrialState.COMPLETE), (0.0, TrialState.INTERRUPTED)])
def test_a_process_whose_clock_is_hours_off_trains_for_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_by: float, seconds: float, expected: TrialState
) -> None:
    study = replace(study_with(timeout=60.0), folder=tmp_path)
    sent = cloudpickle.dumps(Assignment.of(FixedTrial({}), PeerTrials(), seconds))
    here = time.time()
    monkeypatch.setattr(time, "time", lambda: here + off_by)
    ended = train_remotely(SearchableTrainer(small_trainer(tmp_path)), study, pickle.loads(sent), Agrees())
    assert ended.record.state is expected, ended.record.reason


@pytest.mark.parametrize(("seconds", "later", "left"), [(None, 5.0, None), (8.0, 5.0, 3.0), (8.0, 9.0, 0.0)])
def test_a_worker_counts_the_time_of_the_search_from_when_it_was_told(
    seconds: float | None, later: float, left: float | None
) -> None:
    assert Assignment.of(FixedTrial({}), PeerTrials(), seconds).after(later).seconds == left


@pytest.mark.parametrize("timeout", [None, 10.0])
def test_a_trial_obeys_a_time_limit_that_is_set_while_it_runs(timeout: float | None) -> None:
    clock = Clock()
    trial = TrialBudget(
        study_with(timeout=timeout), SearchBudget(study_with(timeout=timeout), clock=clock), PeerTrials()
    )
    clock.move(9.0)()
    trial.set_seconds_left(5.0)
    assert trial.is_limited
    clock.move(4.0)()
    assert trial.passed(1.0) is None
    clock.move(1.0)()
    assert trial.passed(1.0) == Stop("the study's timeout, as set by hand, is over", ends_study=True)
