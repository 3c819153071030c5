"""Of trials that promise the same, those that are less work come first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from hpsearch import Float, Int, Report, TrialRecord, TrialState
from hpsearch.ledger.curve_sampler import CurveSampler
from hpsearch.search.learning_curves.cost import Work, WorkModel, in_one_unit, work_model, work_of
from hpsearch.search.learning_curves.curves import Curve, LatestModel
from hpsearch.search.learning_curves.proposal import propose
from hpsearch.search.metrics.objective import resolve_objectives
from tests.support.small_trainer import TwoLayers, small_trainer


def points(count: int = 40, dimensions: int = 2) -> Any:
    return np.random.default_rng(0).random((count, dimensions))


def test_a_trial_of_four_times_the_work_counts_half() -> None:
    model = WorkModel(points(), 16.0 ** points()[:, 1])
    small, large, other = model.weights(np.array([[0.5, 0.25], [0.5, 0.75], [0.0, 0.25]]))
    assert large / small == pytest.approx(0.5, rel=0.1)
    assert other == pytest.approx(small, rel=0.05)


def test_what_lies_far_from_all_trials_is_believed_within_bounds() -> None:
    near = np.array([[0.4], [0.6]] * 20)
    weights = WorkModel(near, np.array([1.0, 1e6] * 20)).weights(np.array([[0.0], [1.0]]))
    assert weights == pytest.approx([1000**0.5, 1000**-0.5])


def test_where_all_are_the_same_work_there_is_nothing_to_weigh() -> None:
    assert work_model(points(3), np.array([3e7, 3e7, 3e7 * (1 + 1e-9)])) is None
    assert work_model(points(1), np.array([3e7])) is None
    assert work_model(np.array([]), np.array([])) is None


def record(*reports: Report, number: int = 0, state: TrialState = TrialState.PAUSED) -> TrialRecord:
    return TrialRecord(number, f"run-{number}", state, {}, reports=reports)


def report(epoch: float, metrics: Mapping[str, float], horizon: float = 18.0, value: float = 0.5) -> Report:
    return Report((value,), epoch, round(epoch), epoch, dict(metrics), horizon=horizon)


def test_the_work_is_that_of_the_whole_training_however_far_it_is() -> None:
    size = {"num_parameters": 500.0}
    assert work_of(record(report(1, size))) == work_of(record(report(1, size), report(6, size))) == Work(passes=9000.0)
    assert work_of(record(replace(report(6, size), operations=1e6))) == Work(3e6, 9000.0)
    assert work_of(replace(record(report(6, size)), seconds=8.0, epochs=6.0)) == Work(0.0, 9000.0, 24.0)
    assert work_of(replace(record(report(6, size)), seconds=8.0, epochs=8.0)) == Work(0.0, 9000.0, 18.0)  # interrupted
    by_samples = Report((0.5,), 640.0, 20, 2.0, size, horizon=1920.0)
    assert work_of(record(by_samples)) == Work(passes=3000.0)
    assert work_of(record()) is None
    assert work_of(record(report(1, {}))) == Work()
    assert work_of(record(report(0, size, horizon=0.0))) is None


@pytest.mark.parametrize(
    ("works", "by_seconds", "expected"),
    [
        ([Work(6.0, 4.0, 2.0), Work(2.0, 4.0, 1.0)], False, [6.0, 2.0]),
        ([Work(6.0, 4.0, 2.0), Work(2.0, 4.0, 1.0)], True, [2.0, 1.0]),
        ([Work(6.0, 4.0, 2.0), Work(0.0, 3.0, 1.0)], False, [4.0, 3.0]),  # one of hpsearch 0.8.0
        ([Work(6.0, 4.0, 2.0), Work(2.0, 4.0, 0.0)], True, [6.0, 2.0]),
        ([Work(0.0, 4.0, 2.0), Work(0.0, 0.0, 1.0)], False, [4.0, 0.0]),
        ([], False, []),
    ],
)
def test_trials_are_compared_in_one_unit(works: list[Work], by_seconds: bool, expected: list[float]) -> None:
    assert in_one_unit(works, by_seconds) == expected


def test_parameters_that_promise_the_same_are_proposed_where_they_are_less_work() -> None:
    known = [Curve(point, [(0.1, abs(point[0] - 0.3))]) for point in points(20)]
    work = WorkModel(points(), 100.0 ** points()[:, 1])

    def proposed(work: WorkModel | None) -> list[Any]:
        model_by = LatestModel().of  # one for all
        draws = map(np.random.default_rng, range(12))
        found = [propose(known, [], draw, model_by=model_by, first=8, work=work) for draw in draws]
        return [point for point in found if point is not None]

    assert np.mean([point[1] for point in proposed(work)]) < 0.35 < np.mean([point[1] for point in proposed(None)])
    assert all(abs(point[0] - 0.3) < 0.1 for point in proposed(work))


def with_epochs(trial: TrialRecord, times: float) -> TrialRecord:
    return replace(trial, reports=(replace(trial.reports[0], epoch=times),))


def with_operations(trial: TrialRecord, times: float) -> TrialRecord:
    return replace(trial, reports=(replace(trial.reports[0], operations=1e9 * times),))


def with_seconds(trial: TrialRecord, times: float) -> TrialRecord:
    return replace(trial, seconds=10.0 * times)


@pytest.mark.parametrize(
    ("change", "by_seconds", "expected"),
    [
        (with_epochs, False, 2.0),
        (with_operations, False, 2.0),
        (with_seconds, True, 2.0),
        (with_seconds, False, 1.0),
        (with_operations, True, 2.0),  # as no seconds are known
    ],
)
def test_of_trials_that_wait_one_of_four_times_the_cost_has_to_promise_more(
    change: Callable[[TrialRecord, float], TrialRecord], by_seconds: bool, expected: float
) -> None:
    study = optuna.create_study()
    between = {"x": optuna.distributions.FloatDistribution(0, 1), "y": optuna.distributions.FloatDistribution(0, 1)}
    alike = []
    for number, (x, y) in enumerate(points(30)):
        study.add_trial(optuna.trial.create_trial(params={"x": x, "y": y}, distributions=between, value=0.0))
        alike.append(record(report(1, {"num_parameters": 100.0}, value=(x - 0.3) ** 2), number=number))
    is_long = np.array([y for _, y in points(30)]) > 0.5
    longer = [change(trial, 4.0 if long else 1.0) for trial, long in zip(alike, is_long, strict=True)]
    objective = resolve_objectives("loss", None, has_metrics=False)[0]
    sampler = CurveSampler(0, objective, first=8, by_seconds=by_seconds)
    before = np.array(sampler.promise(study, alike, alike))
    ratio = np.array(sampler.promise(study, longer, longer)) / before
    assert np.median(ratio[~is_long]) / np.median(ratio[is_long]) == pytest.approx(expected, rel=0.2)
    assert bool(ratio[is_long].max() < ratio[~is_long].min()) == (expected > 1)


def build(trial: Any) -> TwoLayers:
    return TwoLayers(trial.suggest_int("hidden", 2, 64, log=True))


@pytest.mark.slow
def test_a_search_over_sizes_and_lengths_makes_the_same_choices_when_it_is_repeated(tmp_path: Path) -> None:
    space = {"learning_rate": Float(1e-3, 1.0, log=True), "num_train_epochs": Int(2, 5)}

    def search(folder: Path) -> list[tuple[Any, ...]]:
        best = small_trainer(folder, model_init=build).hyperparameter_search(
            space, "loss", 10, storage="journal", progress=False
        )
        assert len({each.passes for each in map(work_of, best.run_summary.records) if each is not None}) > 4
        return [(each.params, each.state, each.values) for each in best.run_summary.records]

    assert search(tmp_path / "once") == search(tmp_path / "again")
