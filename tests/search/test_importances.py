"""Importances say how many trials they rest on, and at which point those were compared."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState as EngineState

from hpsearch.ledger.importances import importances
from hpsearch.ledger.ledger import REQUEST
from hpsearch.ledger.study_from_records import StudyFromRecords
from hpsearch.search.metrics.objective import Objective
from hpsearch.search.store.stored_study import StoredStudy
from hpsearch.search.trial_record import Replica, Report, TrialRecord, TrialState


@pytest.mark.parametrize(
    ("complete", "trials", "resource"),
    [(12, 12, None), (6, 6, None), (5, 12, 2), (2, 12, 2)],
    ids=["all", "half of them", "fewer than half", "fewer than four"],
)
def test_importances_rest_on_the_results_or_on_the_reports_where_most_trials_had_come_to(
    complete: int, trials: int, resource: int | None
) -> None:
    study = optuna.create_study()
    for number in range(12):
        is_complete = number < complete
        study.add_trial(
            optuna.trial.create_trial(
                params={"x": number / 11},
                distributions={"x": optuna.distributions.FloatDistribution(0.0, 1.0)},
                state=EngineState.COMPLETE if is_complete else EngineState.PRUNED,
                value=float(number) if is_complete else None,
                intermediate_values={2: 2.0 * number, **({9: float(number)} if is_complete else {})},
            )
        )
    found = importances(study)
    assert found == {"x": 1.0}
    assert (found.trials, found.resource) == (trials, resource)


def test_runs_of_a_trial_with_other_seeds_count_as_no_trials() -> None:
    study = optuna.create_study()
    for number in range(8):
        study.add_trial(
            optuna.trial.create_trial(
                params={"x": number / 7},
                distributions={"x": optuna.distributions.FloatDistribution(0.0, 1.0)},
                value=float(number),
                user_attrs={REQUEST: Replica(0, number).id} if number > 4 else {},
            )
        )
    assert importances(study).trials == 5


def test_importances_of_too_few_trials_rest_on_none() -> None:
    found = importances(optuna.create_study())
    assert (found, found.trials, found.resource) == ({}, 0, None)


def test_runs_of_a_trial_with_other_seeds_count_as_no_trials_in_an_opened_study() -> None:
    def trial(number: int, of: int | None = None) -> TrialRecord:
        origin = None if of is None else Replica(of, number).origin
        reports = (Report((float(number),), 1.0, 4, 1.0, {}, horizon=1.0),)
        params, values = {"x": (number if of is None else of) / 7}, (float(number),)
        state = TrialState.COMPLETE
        return TrialRecord(number, f"run-{number}", state, params, values=values, reports=reports, origin=origin)

    settings = {"study_name": "study", "space": "define-by-run"}
    objective = Objective(lambda metrics: 0.0, "maximize", "maximize value", "value")
    study = StoredStudy(Path("study"), settings, (objective,), ())
    records = [*map(trial, range(5)), *(trial(number, of=4) for number in range(5, 9))]
    found = StudyFromRecords(study, records).importances()
    assert (found, found.trials) == ({"x": 1.0}, 5)
