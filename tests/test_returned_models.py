"""The benchmark of returned models: what a search returns at a time, its file of results, and a small race of it."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

pytest.importorskip("sklearn")

from studies.benchmarks.retraining_results import (
    Race,
    Results,
    Retraining,
    TrialEvents,
    median_with_interval,
    returned_at,
    values_on_test_set,
)
from studies.benchmarks.returned_models import main, new_seeds
from studies.benchmarks.watched_races import events_of

RUNNING, PAUSED, PRUNED, COMPLETE = "running", "paused", "pruned", "complete"


def made_race(*trials: TrialEvents, metric: str = "loss", side: str = "ours", seed: int = 0) -> Race:
    return Race("text", side, seed, 60, metric, list(trials), {})


def trial(number: int, reports: list[tuple[float, float]], *states: tuple[float, str]) -> TrialEvents:
    return TrialEvents(number, {"number": number}, reports, list(states))


def returned(run: Race, seconds: float) -> int | None:
    params = returned_at(run, seconds)
    return None if params is None else params["number"]


def test_a_search_returns_the_trial_with_the_best_last_report_so_far() -> None:
    run = made_race(
        trial(0, [(5, 3.0), (9, 1.0), (12, 2.5)], (1, RUNNING), (12, COMPLETE)),
        trial(1, [(7, 2.0)], (2, RUNNING), (7, PAUSED)),
    )
    assert [returned(run, seconds) for seconds in (4, 6, 8, 10, 20)] == [None, 0, 1, 0, 1]


def test_a_search_returns_no_trial_that_was_pruned_or_whose_last_evaluation_is_to_come() -> None:
    run = made_race(
        trial(0, [(5, 1.0)], (1, RUNNING), (8, PRUNED)),
        trial(1, [(20, 0.5)], (1, RUNNING), (20, COMPLETE)),
        trial(2, [(6, 2.0), (7, math.nan)], (1, RUNNING)),
    )
    assert [returned(run, seconds) for seconds in (7, 9, 20)] == [0, 2, 1]


def test_of_equal_trials_a_search_returns_one_that_is_not_paused_and_then_the_first() -> None:
    paused = trial(0, [(5, 0.9)], (1, RUNNING), (5, PAUSED))
    complete = [trial(number, [(5, 0.9)], (1, RUNNING), (5, COMPLETE)) for number in (2, 1)]
    assert returned(made_race(paused, *complete, metric="accuracy"), 10) == 1
    assert returned(made_race(paused, trial(3, [(5, 0.8)], (1, RUNNING)), metric="accuracy"), 10) == 0


def test_results_are_read_again_and_a_line_that_was_not_written_whole_is_not(tmp_path: Path) -> None:
    file = tmp_path / "results" / "file.jsonl"
    run = made_race(trial(0, [(5, 1.0)], (1, RUNNING), (5, COMPLETE)))
    first, second = Retraining("text", {"a": 0.1 + 0.2}, 1000, 1.0, 2.0), Retraining("text", {"a": 1}, 1000, 3.0, 4.0)
    results = Results(file)
    results.add(run)
    results.add(first)
    with file.open("a") as opened:
        opened.write('{"kind": "Retraining", "task": "te')
    results = Results(file)
    assert results.race("text", "ours", 0, 60) == run
    assert results.race("text", "ours", 0, 61) is None
    assert results.retraining("text", {"a": 0.3}, 1000) == first
    results.add(second)
    again = Results(file)
    assert again.retraining("text", {"a": 1}, 1000) == second
    assert again.retraining("text", {"a": 1}, 1001) is None
    assert again.races == [run]


def test_a_search_that_returns_nothing_has_the_worst_value_and_one_that_is_not_judged_yet_none(tmp_path: Path) -> None:
    results = Results(tmp_path / "file.jsonl")
    judged, open_one = (made_race(trial(number, [(5, 1.0)], (1, RUNNING))) for number in (0, 1))
    for seed, value in ((1000, 2.0), (1001, 3.0)):
        results.add(Retraining("text", {"number": 0}, seed, 0.0, value))
    results.add(Retraining("text", {"number": 1}, 1000, 0.0, 2.0))
    races = [judged, open_one, made_race()]
    assert values_on_test_set(results, races, 10, new_seeds(2)) == [[2.0, 3.0], [math.inf, math.inf]]
    assert values_on_test_set(results, [made_race(metric="accuracy")], 10, new_seeds(2)) == [[-math.inf, -math.inf]]


def test_the_interval_is_of_the_searches_and_of_the_training_runs_of_a_single_one() -> None:
    assert median_with_interval([[1.0, 2.0, 3.0]]) == (2.0, 1.0, 3.0)
    median, low, high = median_with_interval([[1.0], [2.0], [3.0], [4.0], [5.0]])
    assert (median, low, high) == (3.0, 1.0, 5.0)


def test_the_summary_tells_what_each_side_returned_and_how_the_aim_was_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.jsonl"
    results = Results(file)
    for number, (side, value) in enumerate((("ours", 1.5), ("peer", 2.5))):
        run = made_race(trial(number, [(5, 1.0)], (1, RUNNING), (5, COMPLETE)), side=side)
        results.add(Race(**{**vars(run), "seconds": 300.0, "shares": {"training": 0.75} if side == "ours" else {}}))
        results.add(Retraining("text", {"number": number}, new_seeds(1)[0], 0.0, value))
    main(["--results", str(file), "--summary", "--retrain", "1", "--sides", "ours", "peer"])
    printed = capsys.readouterr().out
    assert "1.5000 [1.5000, 1.5000] (1)" in printed
    assert "training 75.0%" in printed
    aim = printed.splitlines()[-1]
    assert aim.startswith("aim")
    assert aim.index("1.5000") < aim.index("2.5000")


def test_of_a_study_of_optuna_a_search_returns_only_trials_that_are_complete() -> None:
    begin = datetime.now()
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    params = [{"number": number} for number in range(3)]
    states = (EngineState.COMPLETE, EngineState.PRUNED, EngineState.RUNNING)
    for given, state, value in zip(params, states, (2.0, 1.0, None), strict=True):
        study.add_trial(
            FrozenTrial(
                number=0,
                trial_id=0,
                state=state,
                value=value,
                datetime_start=begin + timedelta(seconds=1),
                datetime_complete=None if state is EngineState.RUNNING else begin + timedelta(seconds=10),
                params=given,
                distributions={"number": optuna.distributions.IntDistribution(0, 3)},
                user_attrs={},
                system_attrs={},
                intermediate_values={},
            )
        )
    run = made_race(*events_of(study.trials, begin))
    assert [len(run.trials), returned(run, 9.5), returned(run, 10)] == [3, None, 0]
