"""What is kept from decision to decision changes no decision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from hpsearch import Ladder, TrialRecord
from hpsearch.ledger.curve_data import CurveData
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.search.decisions.promotion_at_rungs import Rungs
from hpsearch.search.decisions.standings import Standings
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.space.tried_configurations import TriedSoFar
from hpsearch.search.study import Study
from hpsearch.search.trial_record import Report, TrialState
from tests.support.at_rungs import RATE, rungs, running, trial

HEDGED = Ladder((1 / 18, 1 / 6, 1 / 2), 3, complete_first=3, complete_every=8)
PROBED = Ladder((1 / 18, 1 / 6, 1 / 2), 3, probe_first=3, complete_every=24)
OBJECTIVES = resolve_objectives("loss", "minimize", has_metrics=True)
ENDS = (TrialState.COMPLETE, TrialState.FAILED, TrialState.PRUNED, TrialState.STOPPED, TrialState.INTERRUPTED)

[LOSS] = resolve_objectives("loss", "minimize", has_metrics=True)


def history(seed: int, count: int = 40) -> list[list[TrialRecord]]:
    """Return the trials of a search after each of many changes: trials begin, report, pause, resume and end."""
    random = np.random.default_rng(seed)
    trials: dict[int, TrialRecord] = {}
    states = []
    for _ in range(6 * count):
        number = int(random.integers(min(len(trials) + 1, count)))
        now = trials.get(number)
        losses = [] if now is None else [each.value for each in now.reports]
        if now is not None and now.state not in (TrialState.RUNNING, TrialState.PAUSED, TrialState.INTERRUPTED):
            continue
        if len(losses) == 4:
            trials[number] = trial(number, *losses, state=TrialState.COMPLETE)
        elif random.random() < 0.2:
            state = ENDS[1 + int(random.integers(4))]
            trials[number] = trial(number, *losses, state=state)
        else:
            loss = float("nan") if random.random() < 0.05 else round(float(random.random()), 1)
            state = TrialState.PAUSED if random.random() < 0.5 else TrialState.RUNNING
            trials[number] = trial(number, *losses, loss, state=state)
        states.append(list(trials.values()))
    return states


@pytest.mark.parametrize("ladder", [LADDER_OF_0_8_0, HEDGED, PROBED])
@pytest.mark.parametrize("seed", range(3))
def test_a_search_that_has_seen_all_that_happened_decides_as_one_that_sees_it_now(ladder: Ladder, seed: int) -> None:
    kept = rungs(n_trials=40, ladder=ladder)
    decided = 0
    for trials in history(seed):
        fresh = rungs(n_trials=40, ladder=ladder)
        for is_last in (False, True):
            now = kept.next(trials, is_last_chance=is_last)
            assert now is fresh.next(trials, is_last_chance=is_last)
            decided += now is not None
        assert kept.unpromotable(trials) == fresh.unpromotable(trials)
        assert kept.paused(trials) == fresh.paused(trials)
        assert kept.agreements(trials) == fresh.agreements(trials)
        for judged in trials[::5]:
            others = [each for each in trials if each is not judged]
            at_work = replace(judged, state=TrialState.RUNNING)
            assert kept.verdict(at_work, others) == fresh.verdict(at_work, others)
    assert decided >= 10


def test_a_trial_whose_folder_was_deleted_is_compared_no_more() -> None:
    standings = Standings(Study("s", Path("s"), SearchSpace(RATE), OBJECTIVES, 30), LADDER_OF_0_8_0)
    trials = [trial(number, 0.1 * number) for number in range(4)]
    assert standings.of(trials).rank(1, 3) == 3
    assert standings.of([trials[0], *trials[2:]]).rank(1, 3) == 2
    assert standings.of([trials[0], running(1, 0.9), *trials[2:]]).rank(1, 3) == 2


def test_what_trials_have_shown_is_the_same_however_often_it_was_looked_at() -> None:
    space = {"x": optuna.distributions.FloatDistribution(0, 1), "y": optuna.distributions.IntDistribution(1, 9)}
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    kept, random = CurveData(OBJECTIVES[0]), np.random.default_rng(0)
    for trials in history(0, 12):
        while len(study.trials) < len(trials):
            study.ask(space if random.random() < 0.8 else {"x": space["x"]})  # as a function with branches does
        study._thread_local.cached_all_trials = None
        fresh = CurveData(OBJECTIVES[0])
        seen = []
        for data in (kept, fresh):
            data.read(study)
            now = data.seen(trials, data.space)
            shown = [(each.point.tolist(), each.reports, each.is_open) for each in now.curves]
            points = np.random.default_rng(1).random((20, now.curves[0].point.size)) if now.curves else None
            untried = None if points is None else data.tried(now.cube).without(now.cube.valid(points)).tolist()
            seen.append((data.space, shown, [each.tolist() for each in now.running], untried))
        assert seen[0] == seen[1]


def test_a_trial_that_was_seen_before_it_had_parameters_is_where_they_are() -> None:
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    space: dict[str, optuna.distributions.BaseDistribution] = {"x": optuna.distributions.FloatDistribution(0, 1)}
    first, late = study.ask(space), study.ask()
    kept = CurveData(LOSS)

    def seen(data: CurveData, *values: float) -> list[list[float]]:
        study._thread_local.cached_all_trials = None
        data.read(study)
        reports = [(Report((value,), 1, 1, 1, {}, horizon=2),) for value in values]
        records = [
            TrialRecord(number, f"run-{number}", TrialState.RUNNING, {}, reports=reports[number] if values else ())
            for number in (first.number, late.number)
        ]
        return [each.point.tolist() for each in data.seen(records, data.space).curves]

    seen(kept)
    late.suggest_float("x", 0, 1)
    assert seen(kept, 0.5, 0.4) == seen(CurveData(LOSS), 0.5, 0.4)


def test_what_has_been_tried_is_the_same_however_often_it_was_looked_at() -> None:
    study = Study("s", Path("s"), SearchSpace(RATE), OBJECTIVES, 40)
    kept = TriedSoFar(study, {0})
    for trials in history(0):
        with_params = [replace(each, params={"learning_rate": each.number % 7}) for each in trials]
        now, fresh = kept.of(with_params), TriedSoFar(study, {0}).of(with_params)
        assert dict(now.known) == dict(fresh.known)
        assert now.failed == fresh.failed
        mended = [replace(each, state=TrialState.COMPLETE) for each in with_params]  # such as by another search
        assert dict(kept.of(mended).known) == dict(TriedSoFar(study, {0}).of(mended).known)


class Read(TrialRecord):
    """A record that notes when something else than its number is read."""

    def __getattribute__(self, name: str) -> Any:
        if name not in ("number", "__class__", "__dict__"):
            numbers_read.add(object.__getattribute__(self, "number"))
        return object.__getattribute__(self, name)


numbers_read: set[int] = set()


def test_what_trials_have_shown_and_tried_is_looked_at_again_only_where_it_has_changed() -> None:
    engine = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    space: dict[str, Any] = {"x": optuna.distributions.FloatDistribution(0, 1)}
    data, tried = CurveData(OBJECTIVES[0]), TriedSoFar(Study("s", Path("s"), SearchSpace(RATE), OBJECTIVES, 40), {0})
    trials: list[TrialRecord] = []
    for number in range(30):
        engine.tell(engine.ask(space), 0.5)
        ended = trial(number, 0.5, 0.4, state=TrialState.COMPLETE)
        trials = [*trials, Read(**{**vars(ended), "params": {"x": number}})]
        numbers_read.clear()
        data.read(engine)
        assert len(data.seen(trials, data.space).curves) == len(tried.of(trials).known) == number + 1
        assert numbers_read == {number}


def test_parameters_are_known_as_tried_from_the_moment_a_trial_has_them() -> None:
    space = {"y": optuna.distributions.IntDistribution(1, 3)}
    study, data = optuna.create_study(), CurveData(OBJECTIVES[0])
    for value in (1, 2):
        study.enqueue_trial({"y": value})
        asked = study.ask()
        data.read(study)
        asked.suggest_int("y", 1, 3)
        study._thread_local.cached_all_trials = None
        data.read(study)
        report = Report((0.5,), 1, 1, 1, {}, horizon=2)
        known = [TrialRecord(each, f"run-{each}", TrialState.RUNNING, {}, reports=(report,)) for each in range(value)]
        cube = data.seen(known, data.space).cube
        left = data.tried(cube).without(cube.valid(np.linspace(0, 1, 30)[:, None]))
        assert {cube.params(each)["y"] for each in left} == set(range(value + 1, 4))
    assert space == data.space


def test_of_trials_with_the_same_accuracy_the_one_with_the_lower_loss_is_promoted_and_then_the_earlier_one() -> None:
    objectives = resolve_objectives("accuracy", "maximize", has_metrics=True)
    study = Study("s", Path("s"), SearchSpace(RATE), objectives, 30)

    def paused(number: int, accuracy: float, loss: float) -> TrialRecord:
        metrics = {"eval_accuracy": accuracy, "eval_loss": loss}
        return trial(number, 0.0, reports=(Report((accuracy,), 1, 1, 1, metrics, horizon=18),))

    known = [paused(0, 0.5, 0.9), paused(1, 0.8, 0.7), paused(2, 0.8, 0.4), paused(3, 0.8, 0.4)]
    standings = Standings(study, LADDER_OF_0_8_0).of(known)
    assert [standings.rank(1, number) for number in range(4)] == [3, 2, 0, 1]
    assert Rungs(study, LADDER_OF_0_8_0).next(known) is known[2]
