"""Of trials that promise the same, those that are less work come first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from hpsearch import Float, Int, Report, TrialRecord, TrialState
from hpsearch.backends.optuna_backend.curve_sampler import CurveSampler
from hpsearch.search.curves import Curve, LatestModel, propose
from hpsearch.search.objective import resolve_objectives
from hpsearch.search.work import WorkModel, work_model, work_of
from tests.support.small_trainer import TwoLayers, small_trainer


def points(count: int = 40, dimensions: int = 2) -> Any:
    return np.random.default_rng(0).random((count, dimensions))


def test_a_trial_of_four_times_the_work_counts_half() -> None:
    model = WorkModel(points(), 16.0 ** points()[:, 1])
    small, large, other = model.weights(np.array([[0.5, 0.25], [0.5, 0.75], [0.0, 0.25]]))
    assert large / small == pytest.approx(0.5, rel=0.1)
    assert other == pytest.approx(small, rel=0.05)


def test_what_lies_far_from_all_trials_is_believed_within_bounds() -> None:
    near = np.array([[0.5], [0.5 + 1e-6]] * 20)
    weights = WorkModel(near, np.array([1.0, 1e12] * 20)).weights(np.array([[0.0], [1.0]]))
    assert (weights >= 1000**-0.5 - 1e-9).all()
    assert (weights <= 1000**0.5 + 1e-9).all()


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
    assert work_of(record(report(1, size))) == work_of(record(report(1, size), report(6, size))) == 9000.0
    by_samples = Report((0.5,), 640.0, 20, 2.0, size, horizon=1920.0)
    assert work_of(record(by_samples)) == 3000.0
    assert work_of(record()) is None
    assert work_of(record(report(1, {}))) is None
    assert work_of(record(report(0, size, horizon=0.0))) is None


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


def test_of_trials_that_wait_one_of_four_times_the_length_has_to_promise_more() -> None:
    study = optuna.create_study()
    between = {"x": optuna.distributions.FloatDistribution(0, 1), "y": optuna.distributions.FloatDistribution(0, 1)}
    alike, longer = [], []
    for number, (x, y) in enumerate(points(30)):
        study.add_trial(optuna.trial.create_trial(params={"x": x, "y": y}, distributions=between, value=0.0))
        shown = report(1, {"num_parameters": 100.0}, value=(x - 0.3) ** 2)
        alike.append(record(shown, number=number))
        longer.append(record(replace(shown, epoch=4.0 if y > 0.5 else 1.0), number=number))
    sampler = CurveSampler(0, resolve_objectives("loss", None, has_metrics=False)[0], first=8)
    before = np.array(sampler.promise(study, alike, alike))
    ratio = np.array(sampler.promise(study, longer, longer)) / before
    is_long = np.array([y for _, y in points(30)]) > 0.5
    assert ratio[is_long].max() < ratio[~is_long].min()
    assert np.median(ratio[~is_long]) / np.median(ratio[is_long]) == pytest.approx(2.0, rel=0.2)


def build(trial: Any) -> TwoLayers:
    return TwoLayers(trial.suggest_int("hidden", 2, 64, log=True))


def test_a_search_over_sizes_and_lengths_makes_the_same_choices_when_it_is_repeated(tmp_path: Path) -> None:
    space = {"learning_rate": Float(1e-3, 1.0, log=True), "num_train_epochs": Int(2, 5)}

    def search(folder: Path) -> list[tuple[Any, ...]]:
        best = small_trainer(folder, model_init=build).hyperparameter_search(
            space, "loss", 10, storage="journal", progress=False
        )
        assert len({work_of(each) for each in best.run_summary.records}) > 4
        return [(each.params, each.state, each.values) for each in best.run_summary.records]

    assert search(tmp_path / "once") == search(tmp_path / "again")
