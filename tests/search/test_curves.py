"""What is expected of trials is learnt from all reports, and parameters are chosen by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from scipy.optimize import check_grad

from hpsearch import Categorical, Float, Int, SearchSpace
from hpsearch.ledger.unit_cube import Cube, Tried
from hpsearch.search.learning_curves.curves import Curve, LatestModel, model_of, observe
from hpsearch.search.learning_curves.gaussian_process import CurveModel, Observations, Posterior, fit
from hpsearch.search.learning_curves.proposal import MOST_AT_RANDOM, is_plateau, propose
from tests.support.small_trainer import small_trainer

SHARES = (0.1, 0.3, 1.0)


def cost(point: Any, share: float) -> float:
    """Best at 0.3 in each direction; curves fall to their end."""
    return float(((np.asarray(point) - 0.3) ** 2).sum()) + 0.2 / (1 + 9 * share)


def curves(count: int, shares: tuple[float, ...] = SHARES, seed: int = 0, dimensions: int = 2) -> list[Curve]:
    points = np.random.default_rng(seed).random((count, dimensions))
    return [Curve(point, [(share, cost(point, share)) for share in shares]) for point in points]


def halfway(points: Any, costs: Any) -> Observations:
    return Observations(points, np.full(len(costs), 0.5), costs, np.zeros(len(costs), dtype=bool))


def random() -> np.random.Generator:
    return np.random.default_rng(1)


def test_the_gradient_is_that_of_the_loss() -> None:
    draw = random()
    posterior = Posterior(draw.random((12, 2)), np.log(draw.random(12)), draw.normal(size=12))
    for _ in range(5):
        at = posterior.mean + draw.normal(0, 0.5, posterior.mean.shape)
        slope = np.abs(posterior.loss(at)[1]).max()
        assert check_grad(lambda x: posterior.loss(x)[0], lambda x: posterior.loss(x)[1], at) < 1e-4 * slope


@pytest.mark.parametrize(("dimensions", "length"), [(1, 0.6), (7, 0.6), (28, 1.2)])
def test_more_parameters_are_believed_to_matter_less_each(dimensions: int, length: float) -> None:
    posterior = Posterior(random().random((3, dimensions)), np.zeros(3), np.arange(3.0))
    assert np.exp(posterior.mean[:dimensions]) == pytest.approx(np.full(dimensions, length))


def test_early_reports_tell_which_parameters_are_good_at_the_end() -> None:
    model = model_of(curves(20, shares=(0.1,)))
    good, bad = np.array([[0.3, 0.3]]), np.array([[0.9, 0.9]])
    assert model.expect(good)[0] > model.expect(bad)[0]
    assert model.improvement(good) > model.improvement(bad)


def test_more_is_known_of_a_trial_that_has_come_further() -> None:
    early, late = curves(12, shares=(0.05,)), curves(12)
    at = early[0].point[None]
    assert model_of(late).expect(at)[1] < model_of(early).expect(at)[1]


def test_a_model_is_made_once_of_the_same_curves() -> None:
    models, known = LatestModel(), curves(120)
    model = models.of(known)
    assert models.of(list(known)) is model
    further = [*known[1:], Curve(known[0].point, known[0].reports[:-1])]
    assert models.of(further) is not model
    at = random().random((9, 2))
    assert (LatestModel().of(known).improvement(at) == model.improvement(at)).all()


def test_only_curves_that_have_changed_are_observed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known, models, observed = curves(400), LatestModel(), []

    def observe_and_count(some: Sequence[Curve]) -> Observations:
        observed.append(len(some))
        return observe(some)

    monkeypatch.setattr("hpsearch.search.learning_curves.curves.observe", observe_and_count)
    for count in (200, 201, 300, 301):
        models.of(known[:count])
    assert observed == [200, 1, 99, 1]
    changed = [*known[:298], Curve(known[298].point, known[298].reports[:-1]), *known[299:301]]
    at = random().random((9, 2))
    assert (models.of(changed).improvement(at) == model_of(changed).improvement(at)).all()
    assert observed[4:] == [3]


def test_hyperparameters_are_fitted_again_when_the_curves_have_become_a_quarter_more() -> None:
    known, fitted = curves(80), []

    def fit_and_count(observations: Observations) -> Any:
        fitted.append(len(observations.costs))
        return fit(observations)

    for count in range(50, 80):
        model_of(known[:count], fit_and_count)
    assert sorted(set(fitted)) == [3 * 44, 3 * 55, 3 * 69]
    assert fitted == sorted(fitted)
    model = LatestModel().of(known[:-1])
    after_others = LatestModel()
    for count in range(50, 80):
        resumed = after_others.of(known[:count])
    at = random().random((9, 2))
    assert (resumed.improvement(at) == model.improvement(at)).all()


def test_running_trials_are_believed_to_reach_what_is_expected() -> None:
    model, running, anywhere = model_of(curves(20)), random().random((4, 2)), random().random((30, 2))
    believes = model.believing(running)
    (mean, deviation), (mean_now, deviation_now) = model.expect(anywhere), believes.expect(anywhere)
    assert np.allclose(mean_now, mean)  # they are expected to reach just this
    assert (deviation_now <= deviation + 1e-9).all()
    assert (believes.expect(running)[1] < 0.2 * model.expect(running)[1] + 0.1).all()
    one_by_one = model.believing(running[:1]).believing(running[1:])
    assert np.allclose(one_by_one.expect(anywhere)[1], deviation_now)


def test_of_many_running_trials_the_hundred_most_promising_are_believed() -> None:
    model, running = model_of(curves(20)), random().random((300, 2))
    order = np.argsort(-model.improvement(running), kind="stable")
    some = model.believing(running[order[:100]])
    at = random().random((9, 2))
    assert np.allclose(model.believing(running).expect(at)[1], some.expect(at)[1])


def test_however_many_reports_there_are_the_last_one_of_each_trial_that_may_go_on_is_used() -> None:
    ended = curves(300)
    worst = [Curve(point, [(0.1, 9.0), (0.3, 8.0)], is_open=True) for point in random().random((60, 2))]
    used = model_of([*ended, *worst])._points
    assert all((used == each.point).all(axis=1).any() for each in worst)
    assert len(used) == 300
    closed = model_of([*ended, *(Curve(each.point, each.reports) for each in worst)])._points
    assert not all((closed == each.point).all(axis=1).any() for each in worst)
    many = [Curve(point, [(0.1, 9.0)], is_open=True) for point in random().random((400, 2))]
    crowded = model_of([*ended, *many])
    assert len(crowded._points) == 300
    best = min(ended, key=lambda each: min(cost for _, cost in each.reports))
    assert (crowded._points == best.point).all(axis=1).any()
    assert crowded.best == crowded._values.max()


def test_values_that_are_equal_teach_nothing() -> None:
    points = np.linspace(0, 1, 12)[:, None]
    model = CurveModel(halfway(points, np.full(12, 3.0)))
    mean, _ = model.expect(points)
    assert np.ptp(mean) < 1e-6


@pytest.mark.parametrize("costs", [[1.0], [np.inf], [np.inf] * 5, [1e300, -1e300, 0.0], [1e100, 2e100, np.inf, 0.0]])
def test_any_costs_are_taken(costs: list[float]) -> None:
    model = CurveModel(halfway(random().random((len(costs), 3)), np.array(costs)))
    assert np.isfinite(model.improvement(random().random((4, 3)))).all()


def test_the_first_are_drawn_at_random_and_then_most_near_the_best() -> None:
    assert propose(curves(MOST_AT_RANDOM - 1), [], random()) is None
    known = curves(30)
    found = [propose(known, [], np.random.default_rng(seed)) for seed in range(20)]
    chosen = [point for point in found if point is not None]
    assert 0 < len(found) - len(chosen) < 8
    assert np.median([cost(point, 1.0) for point in chosen]) < min(each.reports[-1][1] for each in known)


def test_a_local_optimum_that_is_exhausted_is_left() -> None:
    near = 0.3 + 0.002 * random().standard_normal((60, 2))
    tried = [Curve(point, [(1.0, cost(point, 1.0))]) for point in near] + curves(20, (1.0,))
    assert CurveModel(observe(tried)).improvement(np.full((1, 2), 0.3))[0] < 0.03
    proposed = (propose(tried, [], np.random.default_rng(seed), first=8) for seed in range(20))
    chosen = [point for point in proposed if point is not None]  # not drawn at random
    assert len(chosen) > 10
    assert np.mean([np.abs(point - 0.3).max() > 0.5 for point in chosen]) > 0.5


def test_a_second_look_predicts_only_what_it_varies_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted: list[int] = []
    expect = CurveModel.expect

    def counted(model: CurveModel, points: Any) -> Any:
        predicted.append(len(points))
        return expect(model, points)

    monkeypatch.setattr(CurveModel, "expect", counted)
    for little, counts in ((0.0, [720, 150, 150, 150]), (math.inf, [720, 150, 150, 150, 150, 150, 150])):
        monkeypatch.setattr("hpsearch.search.learning_curves.proposal._LITTLE", little)
        predicted.clear()
        assert propose(curves(30), [], random()) is not None
        assert predicted == counts


def test_that_all_trials_are_costly_is_no_sign_of_an_exhausted_optimum() -> None:
    costly: Any = SimpleNamespace(weights=lambda points: np.full(len(points), 1e-6))
    chosen = propose(curves(30), [], random(), work=costly)
    assert chosen is not None
    assert np.array_equal(chosen, propose(curves(30), [], random()))


def test_two_workers_are_not_sent_to_the_same_place() -> None:
    known = curves(30)
    first = propose(known, [], np.random.default_rng(2))
    assert first is not None
    again, beside = (propose(known, under_way, np.random.default_rng(2)) for under_way in ([], [first]))
    assert np.array_equal(again, first)
    assert not np.array_equal(beside, first)


def test_what_has_been_tried_is_not_proposed_again() -> None:
    cube = Cube({"width": optuna.distributions.IntDistribution(1, 12)})
    tried = [cube.point({"width": width}) for width in range(1, 12)]
    known = [Curve(point, [(1.0, abs(point[0] - 1.0))]) for point in tried]
    had = Tried(cube, [{"width": width} for width in range(1, 12)])
    chosen = [
        propose(known, [], np.random.default_rng(seed), lambda points: had.without(cube.valid(points)), first=8)
        for seed in range(10)
    ]
    assert {cube.params(point)["width"] for point in chosen if point is not None} == {12}


def test_what_a_trial_had_is_tried_whatever_others_have_besides() -> None:
    width, kind = optuna.distributions.IntDistribution(1, 3), optuna.distributions.CategoricalDistribution(("a", "b"))
    cube = Cube({"width": width, "kind": kind})
    everywhere = {(each, choice): cube.point({"width": each, "kind": choice}) for each in (1, 2, 3) for choice in "ab"}
    points = np.array(list(everywhere.values()))

    def left(*tried: dict[str, Any]) -> set[tuple[int, str]]:
        found = Tried(cube, tried).without(points)
        return {place for place, point in everywhere.items() if any(np.array_equal(point, each) for each in found)}

    assert left({"width": 1}, {"width": 2, "kind": "a"}) == {(2, "b"), (3, "a"), (3, "b")}
    assert left({"kind": "b"}, {}) == {(1, "a"), (2, "a"), (3, "a")}
    assert left({"kind": "a"}, {"kind": "b"}) == set(everywhere)


def test_parameters_are_points_and_points_parameters() -> None:
    space = {
        "rate": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
        "dropout": optuna.distributions.FloatDistribution(0.0, 0.5, step=0.1),
        "layers": optuna.distributions.IntDistribution(1, 64, log=True),
        "batch": optuna.distributions.IntDistribution(8, 64, step=8),
        "kind": optuna.distributions.CategoricalDistribution(("a", 3, None, True)),
    }
    cube = Cube(space)
    for params in (
        {"rate": 1e-5, "dropout": 0.0, "layers": 1, "batch": 8, "kind": "a"},
        {"rate": 1e-1, "dropout": 0.5, "layers": 64, "batch": 64, "kind": None},
        {"rate": 3e-3, "dropout": 0.3, "layers": 7, "batch": 24, "kind": True},
    ):
        point = cube.point(params)
        assert ((point >= 0) & (point <= 1)).all()
        assert cube.valid(point[None])[0] == pytest.approx(point)
        found = cube.params(point)
        assert found == pytest.approx(params) if params["kind"] is None else {**found, "kind": params["kind"]}
        assert found["kind"] is params["kind"]
        assert isinstance(found["layers"], int)
    anywhere = cube.valid(random().random((200, cube.point({}).size)))
    for point in anywhere:
        for name, value in cube.params(point).items():
            assert space[name]._contains(space[name].to_internal_repr(value)), (name, value)
    assert cube.point({"rate": 1e-3})[1:] == pytest.approx(0.5)


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.process)])
def test_a_space_of_all_kinds_is_searched(tmp_path: Path, n_jobs: int) -> None:
    space = SearchSpace(
        {
            "learning_rate": Float(1e-4, 1.0, log=True),
            "per_device_train_batch_size": Categorical([4, 8]),
            "num_train_epochs": Int(2, 4),
            "lr_scheduler_type": Categorical({"constant": {}, "cosine": {"warmup_steps": Int(0, 3)}}),
        }
    )
    best = small_trainer(tmp_path).hyperparameter_search(
        space, "loss", n_trials=16, n_jobs=n_jobs, storage="journal", progress=False
    )
    assert [each.state.is_counted for each in best.run_summary.records] == [True] * 16
    assert len({tuple(each.params.items()) for each in best.run_summary.records}) == 16


def test_a_function_whose_ranges_change_is_searched(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        top = 0.1 if trial.number % 2 else 0.01
        return {
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, top, log=True),
            "weight_decay": trial.suggest_float("weight_decay", 0.1, 0.1),
        }

    best = small_trainer(tmp_path).hyperparameter_search(space, "loss", n_trials=12, storage="journal", progress=False)
    assert all(each.state.is_counted for each in best.run_summary.records)


def at_chance(count: int, offset: float = 0.6931) -> list[Curve]:
    draw = random()
    return [
        Curve(draw.random(2) * 0.5, [(share, offset + 5e-5 * draw.random()) for share in SHARES]) for _ in range(count)
    ]


def test_on_a_plateau_parameters_are_drawn_at_random_until_a_trial_has_left_it() -> None:
    assert all(propose(at_chance(30), [], np.random.default_rng(seed)) is None for seed in range(9))
    left = Curve(np.array([0.9, 0.9]), [(0.1, 0.6931), (0.3, 0.6), (1.0, 0.4)])
    found = [propose([*at_chance(30), left], [], np.random.default_rng(seed)) for seed in range(9)]
    chosen = [each for each in found if each is not None]
    assert len(chosen) > 5
    assert np.median([np.abs(each - left.point).max() for each in chosen]) < 0.25


def test_few_curves_are_no_plateau() -> None:
    assert not any(is_plateau(curves(count, shares=(1.0,))) for count in range(1, 8))
    assert not is_plateau(at_chance(2))
    assert is_plateau(at_chance(3))


def test_values_at_chance_are_ties_for_the_model_and_others_of_a_large_offset_are_not() -> None:
    left = Curve(np.array([0.9, 0.9]), [(0.1, 0.6931), (0.3, 0.6), (1.0, 0.4)])
    values = model_of([*at_chance(30), left])._values
    assert len(np.unique(values)) <= 4
    far = [Curve(each.point, [(share, 1000 + cost / 10) for share, cost in each.reports]) for each in curves(20)]
    assert len(np.unique(model_of(far)._values)) > 30
