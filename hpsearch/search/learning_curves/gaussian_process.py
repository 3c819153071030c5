"""A Gaussian process over parameters and fraction of the training run.

Its covariance is

    k((x, s), (x', s')) = a m(x, x') + b m(x, x') m(s, s') + c m(s, s')

with the Matérn 5/2 function m. The first term is the effect of the parameters on the whole curve, the second their
effect on a part of it, the third what all curves have in common. So a trial that was stopped early contributes only
what it has shown.

Sources: Rasmussen, Williams: Gaussian Processes for Machine Learning (2006), chapters 2 and 5; Swersky, Snoek, Adams:
Freeze-Thaw Bayesian Optimization (2014); for the ranks in place of values, Salinas, Shen, Perrone: A Quantile-based
Approach for Hyperparameter Transfer Learning (ICML 2020); for the length scales of many parameters, Hvarfner, Hellsten,
Nardi: Vanilla Bayesian Optimization Performs Great in High Dimensions (ICML 2024).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pandas import Series
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr, ndtri

from ..metrics.selection import BROKEN
from .cost import WorkModel, work_weights

Array = NDArray[np.float64]

# The most observations that condition the model, and the most that determine its hyperparameters. The time grows with
# the third power of both.
_MOST, MOST_TO_FIT = 300, 100
# The fit of the hyperparameters ends after this many steps, or after one that lowers the loss by a smaller fraction.
_ITERATIONS, _GAIN = 25, 1e-4
# The most running trials whose expected values are believed.
_MOST_BELIEVED = 100
# The priors of the logarithms of the hyperparameters, normal: the length scales of the parameters, a, b, c, the length
# scale of the fraction, and the noise. The length scales grow with the square root of the dimension, as distances do.
_LENGTH, _LENGTH_SPREAD, _FEW_DIMENSIONS = np.log(0.6), 1.0, 7
_OTHERS = np.log([1.0, 0.3, 0.5, 0.7, 0.02])
_OTHERS_SPREAD = np.array([1.0, 1.0, 1.0, 0.7, 1.5])
_BOUNDS = [*[(-7.0, 4.0)] * 3, (-3.0, 3.0), (-9.0, 1.0)]
_JITTER = 1e-6
# Costs tie that differ by less than this share of their median, and of their range.
_TIE, _TIE_IN_RANGE = 3e-4, 0.01


def tolerance_of(costs: Sequence[float] | Array) -> float:
    """Return the smallest difference of costs that counts on a plateau, for example at chance level.

    >>> round(tolerance_of([0.6931, 0.6932, 0.5]), 6)
    0.000208
    """
    return _TIE * abs(float(np.median(costs)))


@dataclass(frozen=True)
class Observations:
    """Reports of trials.

    Attributes:
        points: (n, d), parameters in the unit cube; a trial with several reports is there several times.
        fractions: (n,), of the training run at each report, from above 0 to 1.
        costs: (n,), the objective, less is better; infinite for a report that is not finite.
        is_needed: (n,), whether the model must be conditioned on an observation.
    """

    points: Array
    fractions: Array
    costs: Array
    is_needed: NDArray[np.bool_]

    def first(self, count: int) -> Observations:
        """Return the first ones."""
        return Observations(self.points[:count], self.fractions[:count], self.costs[:count], self.is_needed[:count])

    def followed_by(self, others: Observations) -> Observations:
        """Return these observations and then the others."""
        return Observations(
            np.concatenate([self.points, others.points]),
            np.concatenate([self.fractions, others.fractions]),
            np.concatenate([self.costs, others.costs]),
            np.concatenate([self.is_needed, others.is_needed]),
        )

    @property
    def values(self) -> Array:
        """The costs as quantiles of a normal distribution, more is better: a few wild ones do no harm.

        Costs that differ by less than the tolerance are ties: at chance, 0.6931 is no better than 0.6932.
        """
        tolerance = self._tolerance
        costs = np.round(self.costs / tolerance) if tolerance > 0 else self.costs
        return np.asarray(ndtri((Series(-costs).rank().to_numpy() - 0.5) / len(costs)))

    @property
    def _tolerance(self) -> float:
        finite = self.costs[np.abs(self.costs) < BROKEN]
        return min(tolerance_of(finite), _TIE_IN_RANGE * float(np.ptp(finite))) if len(finite) else 0.0

    @property
    def logs(self) -> Array:
        """The fractions on the scale on which curves are smooth: 0 at completion, -1 at a fiftieth."""
        return np.asarray(np.log(self.fractions) / np.log(50.0))


class CurveModel:
    """Predicts the objective of trials at completion.

    Args:
        observations: to condition it on. Of more than 300, those that are needed (at most 150 of them), the best half
            of the others that have room and as many more at random, the same every time.
        hyperparameters: from `fit`; None: of these observations.

    Attributes:
        best: the highest quantile.
    """

    def __init__(self, observations: Observations, hyperparameters: Array | None = None) -> None:
        self._parameters = fit(observations) if hyperparameters is None else hyperparameters
        values = observations.values
        kept = _chosen(values, _MOST, observations.is_needed)
        self._points, self._values = observations.points[kept], values[kept]
        self._logs = observations.logs[kept]
        covariance = _covariance(self._parameters, self._points, self._logs, self._points, self._logs)
        covariance[np.diag_indices_from(covariance)] += self._noise
        self._factor = np.linalg.cholesky(covariance)
        self._weights = cho_solve((self._factor, True), self._values, check_finite=False)
        self.best = float(values.max())

    @property
    def _noise(self) -> float:
        return float(np.exp(self._parameters[-1])) + _JITTER

    def expect(self, points: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the values at completion, as normal quantiles.

        Args:
            points: (m, d), parameters in the unit cube.
        """
        between = _covariance(self._parameters, points, np.zeros(1), self._points, self._logs)
        spread = solve_triangular(self._factor, between.T, lower=True, check_finite=False)
        a, b, c = np.exp(self._parameters[-5:-2])
        variance = a + b + c - np.einsum("ij,ij->j", spread, spread)
        return between @ self._weights, np.sqrt(np.maximum(variance, 1e-9))

    def improvement(self, points: Array) -> Array:
        """Return the expected improvement at completion over the best report so far.

        Args:
            points: (m, d), parameters in the unit cube.
        """
        means, deviations = self.expect(points)
        return expected_improvement(means - self.best, deviations)

    def improvement_for_work(self, points: Array, work: WorkModel | None) -> Array:
        """Return the expected improvement, less for trials that cost more; see `cost.py`."""
        return self.improvement(points) * work_weights(work, points)

    def believing(self, points: Array) -> CurveModel:
        """Return a model that also has the running trials, with their expected values at completion.

        So that no other trial is sent to the same place. Of more than a hundred running trials, those with the highest
        expected improvement.

        Args:
            points: (m, d), their parameters in the unit cube.
        """
        if len(points) > _MOST_BELIEVED:
            points = points[np.argsort(-self.improvement(points), kind="stable")[:_MOST_BELIEVED]]
        if not len(points):
            return self
        believes, logs = copy.copy(self), np.zeros(len(points))
        between = _covariance(self._parameters, self._points, self._logs, points, logs)
        across = solve_triangular(self._factor, between, lower=True, check_finite=False)
        within = _covariance(self._parameters, points, logs, points, logs) - across.T @ across
        within[np.diag_indices_from(within)] += self._noise
        # The factor of the larger matrix, from that of the smaller one.
        believes._factor = np.block(
            [[self._factor, np.zeros_like(across)], [across.T, np.linalg.cholesky(within)]],
        )
        believes._points = np.concatenate([self._points, points])
        believes._values = np.concatenate([self._values, between.T @ self._weights])
        believes._logs = np.concatenate([self._logs, logs])
        believes._weights = cho_solve((believes._factor, True), believes._values, check_finite=False)
        return believes


def expected_improvement(gains: Array, deviations: Array) -> Array:
    """Return the expected improvements, (m,): of normally distributed gains, where a loss counts as 0.

    Args:
        gains: (m,), their means.
        deviations: (m,), their standard deviations, above 0.

    Source: Jones, Schonlau, Welch: Efficient Global Optimization of Expensive Black-Box Functions (1998), section 4.1.

    >>> expected_improvement(np.array([0.0, 2.0, -2.0]), np.array([1.0, 0.1, 0.1])).round(4)
    array([0.3989, 2.    , 0.    ])
    """
    z = gains / deviations
    return np.asarray(deviations * (z * ndtr(z) + np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)))


def fit(observations: Observations) -> Array:
    """Return the hyperparameters of the highest posterior density: logarithms, in the order of their priors.

    Of more than a hundred observations, the best fifty and fifty more at random, the same every time.
    """
    values = observations.values
    some = _chosen(values, MOST_TO_FIT)
    posterior = Posterior(observations.points[some], observations.logs[some], values[some])
    bounds = [(-4.0, 4.0)] * observations.points.shape[1] + _BOUNDS
    options = {"maxiter": _ITERATIONS, "ftol": _GAIN}
    found = minimize(posterior.loss, posterior.mean, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(found.x)


class Posterior:
    """The posterior density of the hyperparameters.

    Args:
        points: (n, d), parameters in the unit cube.
        logs: (n,), the fractions of the training run, as logarithms.
        values: (n,), normal quantiles.

    Attributes:
        mean: of the prior.
    """

    def __init__(self, points: Array, logs: Array, values: Array) -> None:
        dimensions = points.shape[1]
        length = _LENGTH + 0.5 * np.log(max(dimensions / _FEW_DIMENSIONS, 1.0))
        self.mean = np.concatenate([np.full(dimensions, length), _OTHERS])
        self._spread = np.concatenate([np.full(dimensions, _LENGTH_SPREAD), _OTHERS_SPREAD])
        self._values, self._size = values, len(values)
        # One row for each pair of observations: matrix products are fast.
        self._apart = ((points[:, None] - points[None]) ** 2).reshape(-1, dimensions)
        self._logs_apart = (logs[:, None] - logs[None]) ** 2

    def loss(self, parameters: Array) -> tuple[float, Array]:
        """Return the negative logarithm of the posterior density, and its gradient."""
        scales, (a, b, c) = np.exp(-2 * parameters[:-5]), np.exp(parameters[-5:-2])
        scale, noise = np.exp(-2 * parameters[-2]), np.exp(parameters[-1])
        distances, logs = (self._apart @ scales).reshape(self._size, self._size), self._logs_apart * scale
        (over, over_slope), (along, along_slope) = _matern_and_slope(distances), _matern_and_slope(logs)
        factor = a + b * along
        covariance = over * factor + c * along
        covariance[np.diag_indices_from(covariance)] += noise + _JITTER
        off = (parameters - self.mean) / self._spread
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(parameters)
        inverse = cho_solve((lower, True), np.eye(self._size), check_finite=False)
        weights = inverse @ self._values
        loss = 0.5 * self._values @ weights + np.log(np.diag(lower)).sum() + 0.5 * (off**2).sum()
        by = 0.5 * (inverse - np.outer(weights, weights))
        slope = by * factor * over_slope
        gradient = np.empty_like(parameters)
        gradient[:-5] = slope.reshape(-1) @ self._apart * -2 * scales
        gradient[-5:-2] = a * (by * over).sum(), b * (by * over * along).sum(), c * (by * along).sum()
        gradient[-2] = (by * (b * over + c) * along_slope * self._logs_apart).sum() * -2 * scale
        gradient[-1] = noise * np.trace(by)
        return float(loss), gradient + off / self._spread


def _chosen(values: Array, most: int, needed: NDArray[np.bool_] | None = None) -> slice | NDArray[np.int64]:
    """Return which of more than `most` values to use: those that are needed, the best, and others at random.

    Those that are needed take at most half of the places.
    """
    if len(values) <= most:
        return slice(None)
    random = np.random.default_rng(len(values))
    best, wanted = int(values.argmax()), np.flatnonzero(np.zeros(0) if needed is None else needed)
    if len(wanted) > most // 2:
        wanted = random.choice(wanted, most // 2, replace=False)
    kept = np.union1d(wanted, [best])
    order = np.argsort(-values, kind="stable")
    others = order[~np.isin(order, kept)]
    tops = (most - len(kept)) // 2
    chosen = random.choice(others[tops:], most - len(kept) - tops, replace=False)
    return np.sort(np.concatenate([kept, others[:tops], chosen]))


def _covariance(parameters: Array, points: Array, logs: Array, others: Array, other_logs: Array) -> Array:
    scaled, others_scaled = points * np.exp(-parameters[:-5]), others * np.exp(-parameters[:-5])
    distances = (scaled**2).sum(1)[:, None] + (others_scaled**2).sum(1)[None]
    distances -= 2 * scaled @ others_scaled.T
    a, b, c = np.exp(parameters[-5:-2])
    along = _matern((logs[:, None] - other_logs[None]) ** 2 * np.exp(-2 * parameters[-2]))
    covariance = _matern(distances)
    covariance *= a + b * along
    covariance += c * along
    return covariance


def _matern(squares: Array) -> Array:
    """Return the Matérn 5/2 function of distances, given squared: (1 + d + d²/3) exp(-d) with d = √5 times each."""
    distance = 5 * squares
    np.sqrt(np.maximum(distance, 5e-12, out=distance), out=distance)
    value = distance / 3
    value += 1
    value *= distance
    value += 1
    value *= np.exp(np.negative(distance, out=distance), out=distance)
    return np.asarray(value)


def _matern_and_slope(squares: Array) -> tuple[Array, Array]:
    """Return the Matérn 5/2 function of distances, given squared, and its derivative by these squares."""
    distance = np.sqrt(5 * np.maximum(squares, 1e-12))
    decay = np.exp(-distance)
    slope = (1 + distance) * decay
    return slope + distance**2 / 3 * decay, -5 / 6 * slope
