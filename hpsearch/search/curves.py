"""A model of learning curves: what a trial with these parameters would reach, learnt from all reports of all trials.

A Gaussian process over parameters and share of training. Its covariance is

    k((x, s), (x', s')) = a m(x, x') + b m(x, x') m(s, s') + c m(s, s')

with the Matérn 5/2 function m: what the parameters do for the whole curve, what they do for a part of it, and what all
curves have in common. So a trial that was stopped early teaches as much as it has shown, and no more.

Sources: Rasmussen, Williams: Gaussian Processes for Machine Learning (2006), chapters 2 and 5; Swersky, Snoek, Adams:
Freeze-Thaw Bayesian Optimization (2014); for the ranks in place of values, Salinas, Shen, Perrone: A Quantile-based
Approach for Hyperparameter Transfer Learning (ICML 2020).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import Series
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr, ndtri

from .priors import Belief
from .work import WorkModel

Array = NDArray[np.float64]

# Trials that are drawn at random: a third of all that are to be, within these bounds; then a share of the others.
_LEAST_AT_RANDOM, _MOST_IF_LIMITED, MOST_AT_RANDOM, _SHARE_AT_RANDOM = 8, 16, 24, 0.1
_ANYWHERE, _TOPS, _NEAR_EACH, _STEPS = 400, 8, 40, (0.03, 0.1, 0.3)
# Then so many candidates from which most is expected are varied by these steps in turn.
_REFINED, _VARIATIONS, _FINE_STEPS = 5, 30, (0.1, 0.05, 0.02)
# Observations; the time grows with the third power.
_MOST, _MOST_TO_FIT = 300, 100
_ITERATIONS = 25
# What the logarithms of the hyperparameters are expected to be, and how far they may be from that: the length scales of
# the parameters, a, b, c, the length scale of the share, and the noise.
_LENGTH, _LENGTH_SPREAD = np.log(0.6), 1.0
_OTHERS = np.log([1.0, 0.3, 0.5, 0.7, 0.02])
_OTHERS_SPREAD = np.array([1.0, 1.0, 1.0, 0.7, 1.5])
_BOUNDS = [*[(-7.0, 4.0)] * 3, (-3.0, 3.0), (-9.0, 1.0)]
_JITTER = 1e-6


class CurveModel:
    """Predicts what trials reach at the end of their training.

    Args:
        points: (n, d), parameters in the unit cube; a trial with several reports is there several times.
        shares: (n,), of the training that was done, from above 0 to 1.
        costs: (n,), what was reported; less is better, infinite for a report that is not a number.
        is_needed: (n,), whether an observation is used in any case; None: none is.

    Values are replaced by the quantiles of a normal distribution, so that a few wild ones do no harm. Of more than 300
    observations, those that are needed (of more than 150, so many), the best half of the others that have room and as
    many more are used, chosen at random, the same every time; a hundred of all to find the hyperparameters.

    Attributes:
        best: the highest quantile there is.
    """

    def __init__(self, points: Array, shares: Array, costs: Array, is_needed: NDArray[np.bool_] | None = None) -> None:
        random = np.random.default_rng(len(costs))
        values = ndtri((Series(-costs).rank().to_numpy() - 0.5) / len(costs))
        logs = _logs(shares)
        needed = np.zeros(len(costs), dtype=bool) if is_needed is None else is_needed
        some, kept = _chosen(values, _MOST_TO_FIT, random), _chosen(values, _MOST, random, needed)
        self._points, self._values, self._logs = points[some], values[some], logs[some]
        self._fit()
        self._points, self._values, self._logs = points[kept], values[kept], logs[kept]
        self._factorize()
        self.best = float(values.max())

    def expect(self, points: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of what trials reach at the end, as normal quantiles.

        Args:
            points: (m, d), their parameters in the unit cube.
        """
        between = self._covariance(self._parameters, points, np.zeros(1), self._points, self._logs)
        spread = solve_triangular(self._factor, between.T, lower=True)
        a, b, c = np.exp(self._parameters[-5:-2])
        return between @ self._weights, np.sqrt(np.maximum(a + b + c - (spread**2).sum(axis=0), 1e-9))

    def improvement(self, points: Array) -> Array:
        """Return the expected improvement over the best report so far of trials that train to their end."""
        mean, deviation = self.expect(points)
        z = (mean - self.best) / deviation
        return np.asarray(deviation * (z * ndtr(z) + np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)))

    def improvement_for_work(self, points: Array, work: WorkModel | None) -> Array:
        """Return the expected improvement, less for trials that are more work; see `hpsearch.search.work`."""
        return self.improvement(points) if work is None else self.improvement(points) * work.weights(points)

    def believing(self, points: Array) -> CurveModel:
        """Return a model that takes for granted that trials under way reach what is expected of them.

        So that others are not sent to the same place.
        """
        if not len(points):
            return self
        believes, (mean, _) = copy.copy(self), self.expect(points)
        believes._points = np.concatenate([self._points, points])
        believes._values = np.concatenate([self._values, mean])
        believes._logs = np.concatenate([self._logs, np.zeros(len(points))])
        believes._factorize()
        return believes

    def _fit(self) -> None:
        """Find the hyperparameters of the highest posterior density."""
        dimensions = self._points.shape[1]
        self._mean = np.concatenate([np.full(dimensions, _LENGTH), _OTHERS])
        self._spread = np.concatenate([np.full(dimensions, _LENGTH_SPREAD), _OTHERS_SPREAD])
        self._apart = (self._points[:, None] - self._points[None]) ** 2
        self._logs_apart = (self._logs[:, None] - self._logs[None]) ** 2
        bounds = [(-4.0, 4.0)] * dimensions + _BOUNDS
        found = minimize(
            self._loss, self._mean, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _ITERATIONS}
        )
        self._parameters = found.x
        del self._apart, self._logs_apart

    def _loss(self, parameters: Array) -> tuple[float, Array]:
        """Return the negative logarithm of the posterior density, and its gradient."""
        scales, (a, b, c) = np.exp(-2 * parameters[:-5]), np.exp(parameters[-5:-2])
        scale, noise = np.exp(-2 * parameters[-2]), np.exp(parameters[-1])
        distances, logs = self._apart @ scales, self._logs_apart * scale
        (over, over_slope), (along, along_slope) = _matern_and_slope(distances), _matern_and_slope(logs)
        factor = a + b * along
        covariance = over * factor + c * along
        covariance[np.diag_indices_from(covariance)] += noise + _JITTER
        off = (parameters - self._mean) / self._spread
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(parameters)
        inverse = cho_solve((lower, True), np.eye(len(covariance)))
        weights = inverse @ self._values
        loss = 0.5 * self._values @ weights + np.log(np.diag(lower)).sum() + 0.5 * (off**2).sum()
        by = 0.5 * (inverse - np.outer(weights, weights))
        slope = by * factor * over_slope
        gradient = np.empty_like(parameters)
        gradient[:-5] = np.tensordot(slope, self._apart, axes=2) * -2 * scales
        gradient[-5:-2] = a * (by * over).sum(), b * (by * over * along).sum(), c * (by * along).sum()
        gradient[-2] = (by * (b * over + c) * along_slope * self._logs_apart).sum() * -2 * scale
        gradient[-1] = noise * np.trace(by)
        return float(loss), gradient + off / self._spread

    def _factorize(self) -> None:
        covariance = self._covariance(self._parameters, self._points, self._logs, self._points, self._logs)
        covariance[np.diag_indices_from(covariance)] += np.exp(self._parameters[-1]) + _JITTER
        self._factor = np.linalg.cholesky(covariance)
        self._weights = cho_solve((self._factor, True), self._values)

    @staticmethod
    def _covariance(parameters: Array, points: Array, logs: Array, others: Array, other_logs: Array) -> Array:
        scaled, others_scaled = points * np.exp(-parameters[:-5]), others * np.exp(-parameters[:-5])
        distances = (scaled**2).sum(1)[:, None] + (others_scaled**2).sum(1)[None] - 2 * scaled @ others_scaled.T
        a, b, c = np.exp(parameters[-5:-2])
        along = _matern((logs[:, None] - other_logs[None]) ** 2 * np.exp(-2 * parameters[-2]))
        return np.asarray(_matern(distances) * (a + b * along) + c * along)


@dataclass(frozen=True)
class Curve:
    """What a trial has shown so far.

    Attributes:
        point: (d,), its parameters in the unit cube.
        reports: share of the training and cost of each report, in order; less is better.
        is_open: whether the trial may still be promoted, so that its expected improvement will be needed.
    """

    point: Array
    reports: Sequence[tuple[float, float]]
    is_open: bool = False


def model_of(curves: Sequence[Curve]) -> CurveModel:
    """Return a model of curves, of each the last report, and those at which the share of the training has doubled.

    Of more than 300 reports it uses the last one of each open trial, of at most 150 of them.
    """
    seen = [
        (curve.point, *report, curve.is_open and report == curve.reports[-1])
        for curve in curves
        for report in _thinned(curve.reports)
    ]
    points, shares, costs, is_needed = zip(*seen, strict=True)
    return CurveModel(np.array(points), np.array(shares), np.array(costs), np.array(is_needed))


class LatestModel:
    """Makes models of curves, and keeps the last one: what it was made of is often asked for again."""

    def __init__(self) -> None:
        self._latest: tuple[Any, CurveModel] | None = None

    def of(self, curves: Sequence[Curve]) -> CurveModel:
        """Return the model of these curves, in whatever order they are."""
        ordered = sorted(curves, key=_shown)
        made_of = tuple(map(_shown, ordered))
        if self._latest is None or self._latest[0] != made_of:
            self._latest = made_of, model_of(ordered)
        return self._latest[1]


def _shown(curve: Curve) -> tuple[bytes, tuple[tuple[float, float], ...], bool]:
    return curve.point.tobytes(), tuple((share, cost) for share, cost in curve.reports), curve.is_open


def propose(
    curves: Sequence[Curve],
    under_way: Sequence[Array],
    random: np.random.Generator,
    valid: Callable[[Array], Array] = lambda points: points,
    model_by: Callable[[Sequence[Curve]], CurveModel] = model_of,
    belief: Belief | None = None,
    first: int = MOST_AT_RANDOM,
    work: WorkModel | None = None,
) -> Array | None:
    """Return the parameters, in the unit cube, from which most is expected; None to choose at random.

    At random are the first ones, and a tenth of the others. Else many random points, and some near the best trials so
    far, are compared by their expected improvement at the end of the training, and the best of them varied in turn.

    Args:
        curves: of the trials so far.
        under_way: the parameters of those that are being trained.
        random: draws the candidates.
        valid: returns, for points of the cube, the nearest ones that stand for parameters; without those that have been
            tried, unless there are no others.
        model_by: makes the model of the curves, or has it already.
        belief: where the best parameters are believed to be: some of those that are drawn at random are drawn there,
            and it weighs what is expected, less and less.
        first: so many trials are drawn at random before the model is asked.
        work: tells how much work trials are, of which more is expected the more they are.
    """
    if len(curves) < first or random.random() < _SHARE_AT_RANDOM:
        is_near = belief is not None and belief.is_tried_now(random)
        return np.asarray(valid(belief.near(_NEAR_EACH, random))[0]) if belief is not None and is_near else None
    model = model_by(curves).believing(np.array(under_way).reshape(len(under_way), curves[0].point.size))

    def expected(points: Array) -> Array:
        believed = 1.0 if belief is None else belief.weights(points, len(curves))
        return model.improvement_for_work(points, work) * believed

    near = [] if belief is None else [belief.near(_NEAR_EACH, random)]
    points = valid(np.concatenate([candidates(curves, random), *near]))
    if not len(points):
        return None
    values = expected(points)
    for step in _FINE_STEPS:
        tops = np.repeat(points[np.argsort(-values)[:_REFINED]], _VARIATIONS, axis=0)
        further = valid(_varied(tops, np.full((len(tops), 1), step), random))
        points, values = np.concatenate([points, further]), np.concatenate([values, expected(further)])
    return np.asarray(points[np.argmax(values)])


def count_at_random(n_trials: int, is_limited: bool = False) -> int:
    """Return how many trials of a search are drawn at random before the model is asked.

    Args:
        n_trials: how many there are to be.
        is_limited: whether time or epochs may end the search before.

    >>> [count_at_random(n_trials) for n_trials in (10, 50, 1000)], count_at_random(1000, is_limited=True)
    ([8, 16, 24], 16)
    """
    most = _MOST_IF_LIMITED if is_limited else MOST_AT_RANDOM
    return min(max(n_trials // 3, _LEAST_AT_RANDOM), most)


def candidates(curves: Sequence[Curve], random: np.random.Generator) -> Array:
    """Return points of the unit cube that the next parameters are chosen from: anywhere, and near the best trials."""
    tops = sorted(curves, key=lambda curve: min(cost for _, cost in curve.reports))[:_TOPS]
    near = np.repeat(np.array([each.point for each in tops]), _NEAR_EACH, axis=0)
    anywhere = random.random((_ANYWHERE, near.shape[1]))
    return np.concatenate([anywhere, _varied(near, random.choice(_STEPS, (len(near), 1)), random)])


def is_plateau(curves: Sequence[Curve]) -> bool:
    """Tell whether half of the curves are at their best as good as the best of all.

    >>> is_plateau([Curve(np.zeros(1), [(1.0, cost)]) for cost in (0.69, 0.69, 0.8)])
    True
    """
    best = [min(cost for _, cost in curve.reports) for curve in curves]
    return bool(np.median(best) <= min(best))


def _varied(points: Array, steps: Array, random: np.random.Generator) -> Array:
    """Return points at normal distances from these, along half of the directions."""
    shape = points.shape
    return np.clip(points + steps * random.standard_normal(shape) * (random.random(shape) < 0.5), 0.0, 1.0)


def _thinned(reports: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for place, (share, cost) in enumerate(reports):
        if not kept or place == len(reports) - 1 or share >= 2 * kept[-1][0]:
            kept.append((share, cost))
    return kept


def _chosen(values: Array, most: int, random: np.random.Generator, needed: Any = False) -> Any:
    """Return which values are used of more than `most`: those that are needed, the best, and others at random.

    Those that are needed take half of the places at the most.
    """
    if len(values) <= most:
        return slice(None)
    best, wanted = int(values.argmax()), np.flatnonzero(needed)
    if len(wanted) > most // 2:
        wanted = random.choice(wanted, most // 2, replace=False)
    kept = np.union1d(wanted, [best])
    order = np.argsort(-values, kind="stable")
    others = order[~np.isin(order, kept)]
    tops = (most - len(kept)) // 2
    chosen = random.choice(others[tops:], most - len(kept) - tops, replace=False)
    return np.sort(np.concatenate([kept, others[:tops], chosen]))


def _logs(shares: Array) -> Array:
    """Return shares of the training on the scale on which curves are smooth: 0 at its end, -1 at a fiftieth of it."""
    return np.asarray(np.log(shares) / np.log(50.0))


def _matern(squares: Array) -> Array:
    return _matern_and_slope(squares)[0]


def _matern_and_slope(squares: Array) -> tuple[Array, Array]:
    """Return the Matérn 5/2 function of distances, given squared, and its derivative by these squares."""
    distance = np.sqrt(5 * np.maximum(squares, 1e-12))
    decay = np.exp(-distance)
    slope = (1 + distance) * decay
    return slope + distance**2 / 3 * decay, -5 / 6 * slope
