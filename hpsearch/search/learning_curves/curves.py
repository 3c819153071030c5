"""Multi-fidelity Bayesian optimization: parameters are proposed from the learning curves of all trials.

The model is a Gaussian process over parameters and fraction of the training run (`gaussian_process.py`).
It proposes the parameters with the highest expected improvement at completion.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..decisions.ladder import ROUNDING
from ..space.priors import Belief
from .cost import WorkModel
from .gaussian_process import MOST_TO_FIT, CurveModel, Observations, fit, tolerance_of

Array = NDArray[np.float64]

# Trials that are drawn at random: a third of all that are to be, within these bounds; then a share of the others.
_LEAST_AT_RANDOM, _MOST_IF_LIMITED, MOST_AT_RANDOM, _SHARE_AT_RANDOM = 8, 16, 24, 0.1
_ANYWHERE, _TOPS, _NEAR_EACH, _STEPS = 400, 8, 40, (0.03, 0.1, 0.3)
# Then this number of candidates, from which most is expected, are varied by these steps in turn.
_REFINED, _VARIATIONS, _FINE_STEPS = 5, 30, (0.1, 0.05, 0.02)
# If no candidate is expected to improve by this much, in deviations of the ranks, the model has nothing left to refine:
# then its uncertainty counts this many times.
_LITTLE, _WIDENED = 0.03, 4.0
# With many observations, the hyperparameters are fitted to the first curves only, and again when their number has grown
# by a quarter.
_GROWTH = 1.25
# Fewer curves are no plateau.
_FEWEST = 3


@dataclass(frozen=True, eq=False)
class Curve:
    """The learning curve of a trial so far.

    Attributes:
        point: (d,), its parameters in the unit cube.
        reports: fraction of the training run and cost at each report, in order; less is better.
        is_open: whether the trial may still be promoted, so that its expected improvement will be needed.
        is_result: whether the trial has ended by itself, so that its last report counts, however early it was.
    """

    point: Array
    reports: Sequence[tuple[float, float]]
    is_open: bool = False
    is_result: bool = False
    _later: dict[float, Curve | None] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def best(self) -> float:
        """The lowest cost."""
        return min(cost for _, cost in self.reports)

    @cached_property
    def observed(self) -> list[tuple[float, float]]:
        """The last report, and those at which the fraction has doubled."""
        kept: list[tuple[float, float]] = []
        for place, (fraction, cost) in enumerate(self.reports):
            if not kept or place == len(self.reports) - 1 or fraction >= 2 * kept[-1][0]:
                kept.append((fraction, cost))
        return kept

    def since(self, fraction: float) -> Curve | None:
        """Return the curve from a fraction of the training run on, at least its result; None: nothing is left.

        >>> Curve(np.zeros(1), [(0.25, 0.9), (0.5, 0.8), (1.0, 0.7)]).since(0.5).reports
        [(0.5, 0.8), (1.0, 0.7)]
        >>> short = [(0.25, 0.9)]
        >>> Curve(np.zeros(1), short).since(0.5), Curve(np.zeros(1), short, is_result=True).since(0.5).reports
        (None, [(0.25, 0.9)])
        """
        if fraction not in self._later:
            kept = [each for each in self.reports if each[0] >= fraction - ROUNDING]
            kept = kept or list(self.reports[-1:] if self.is_result else [])
            self._later[fraction] = Curve(self.point, kept, self.is_open, self.is_result) if kept else None
        return self._later[fraction]


def since(curves: Sequence[Curve], fraction: float) -> Sequence[Curve]:
    """Return curves from a fraction of the training run on, without those of which nothing is left."""
    if not fraction:
        return curves
    return [later for each in curves if (later := each.since(fraction)) is not None]


def observe(curves: Sequence[Curve]) -> Observations:
    """Return the observations of curves, of at least one, which are in the order of their trials."""
    points = np.repeat(np.array([each.point for each in curves]), [len(each.observed) for each in curves], axis=0)
    reports = np.array([report for each in curves for report in each.observed])
    ends = np.cumsum([len(each.observed) for each in curves]) - 1
    is_needed = np.zeros(len(reports), dtype=bool)
    is_needed[ends] = [each.is_open for each in curves]
    return Observations(points, reports[:, 0], reports[:, 1], is_needed)


class ObservedCurves:
    """Makes observations of curves, and keeps the last ones: only those from the first changed curve on are new."""

    def __init__(self) -> None:
        self._curves: list[Curve] = []
        self._observations: Observations | None = None
        self._counts: NDArray[np.int64] = np.zeros(1, dtype=np.int64)  # of observations of the first curves, from none

    def of(self, curves: Sequence[Curve]) -> Observations:
        """Return the observations of curves, of at least one, which are in the order of their trials."""
        known = _count_same(self._curves, curves)
        if known < len(curves):
            new = observe(curves[known:])
            further = np.cumsum([len(each.observed) for each in curves[known:]])
            self._observations = self._first(known).followed_by(new) if known else new
            self._counts = np.concatenate([self._counts[: known + 1], self._counts[known] + further])
            self._curves = list(curves)
        return self._first(len(curves))

    def _first(self, curves: int) -> Observations:
        assert self._observations is not None, "curves were observed"
        return self._observations.first(int(self._counts[curves]))


class LatestModel:
    """Makes models of curves, and keeps the last one and its hyperparameters: both are often asked for again."""

    def __init__(self) -> None:
        self._latest: tuple[Sequence[Curve], CurveModel] | None = None
        self._fitted: tuple[Observations, Array] | None = None
        self._observed = ObservedCurves()

    def of(self, curves: Sequence[Curve]) -> CurveModel:
        """Return the model of these curves, which are in the order of their trials."""
        if self._latest is None or not _are_same(self._latest[0], curves):
            self._latest = list(curves), model_of(curves, self._fit, self._observed.of)
        return self._latest[1]

    def _fit(self, observations: Observations) -> Array:
        if self._fitted is None or not _are_equal(self._fitted[0], observations):
            self._fitted = observations, fit(observations)
        return self._fitted[1]


def model_of(
    curves: Sequence[Curve],
    fit: Callable[[Observations], Array] = fit,
    observe: Callable[[Sequence[Curve]], Observations] = observe,
) -> CurveModel:
    """Return a model of curves, which are in the order of their trials; `fit` finds its hyperparameters.

    The hyperparameters depend on the first curves only, where there are many: trials that have ended change no more, so
    that most decisions need no new ones. They do not depend on decisions made before, so that a resumed search decides
    the same.
    """
    observations = observe(curves)
    if len(observations.costs) <= MOST_TO_FIT:
        return CurveModel(observations, fit(observations))
    return CurveModel(observations, fit(observe(curves[: _count_to_fit(len(curves))])))


def _count_to_fit(count: int) -> int:
    """Return the largest number of a geometric sequence up to `count`.

    >>> [_count_to_fit(count) for count in (20, 24, 29, 30, 1000)]
    [18, 22, 28, 28, 807]
    """
    return int(_GROWTH ** int(np.log(count) / np.log(_GROWTH) + 1e-9) + 1e-9) if count > 1 else count


def _are_same(curves: Sequence[Curve], others: Sequence[Curve]) -> bool:
    return len(curves) == len(others) and all(map(operator.is_, curves, others))


def _count_same(curves: Sequence[Curve], others: Sequence[Curve]) -> int:
    """Return how many curves are the same before the first that differs."""
    different = itertools.compress(itertools.count(), map(operator.is_not, curves, others))
    return next(different, min(len(curves), len(others)))


def _are_equal(observations: Observations, others: Observations) -> bool:
    """Return whether the same hyperparameters fit."""
    return all(
        np.array_equal(getattr(observations, name), getattr(others, name)) for name in ("costs", "fractions", "points")
    )


def propose(
    curves: Sequence[Curve],
    under_way: Sequence[Array],
    random: np.random.Generator,
    valid: Callable[[Array], Array] = lambda points: points,
    model_by: Callable[[Sequence[Curve]], CurveModel] = model_of,
    belief: Belief | None = None,
    first: int = MOST_AT_RANDOM,
    work: WorkModel | None = None,
    reliable_from: float = 0.0,
) -> Array | None:
    """Return the parameters, in the unit cube, from which most is expected; None to choose at random.

    At random are the first ones, a tenth of the others, and all on a plateau, where nothing can be learnt. Else many
    random points, and some near the best trials so far, are compared by their expected improvement at the end of the
    training, and the best of them varied in turn. If hardly any improvement is expected, they are compared again with
    larger standard deviations, so that the search leaves a local optimum that it has exhausted.

    Args:
        curves: of the trials so far, in their order.
        under_way: the parameters of those that are being trained.
        random: draws the candidates.
        valid: returns, for points of the cube, the nearest ones that represent parameters; without those that have been
            tried, unless there are no others.
        model_by: makes the model of the curves, or has it already.
        belief: where the best parameters are believed to be: some of those that are drawn at random are drawn there,
            and it weighs what is expected, less and less.
        first: the number of trials that are drawn at random before the model is asked.
        work: returns the cost of trials; a costly trial must promise a larger gain.
        reliable_from: the fraction of the training run before which reports mislead, so that they are ignored.
    """
    is_early = not are_enough(curves, first, reliable_from)
    curves = since(curves, reliable_from)
    if is_early or random.random() < _SHARE_AT_RANDOM or is_plateau(curves):
        is_near = belief is not None and belief.is_tried_now(random)
        return np.asarray(valid(belief.near(_NEAR_EACH, random))[0]) if belief is not None and is_near else None
    running = np.array(under_way).reshape(len(under_way), curves[0].point.size)
    model = model_by(curves).believing(running)

    def most_expected(widened: float) -> Array | None:
        def expected(points: Array) -> Array:
            believed = 1.0 if belief is None else belief.weights(points, len(curves))
            return model.improvement_for_work(points, work, widened) * believed

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

    best = most_expected(1.0)
    if best is None or model.improvement(best[None])[0] >= _LITTLE:
        return best
    return most_expected(_WIDENED)


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


def are_enough(curves: Sequence[Curve], first: int, reliable_from: float) -> bool:
    """Return whether the model is asked: the first trials, which are drawn at random, have reported.

    Where early reports mislead, trials train on and cost more, so fewer are to come: eight are enough, of which one at
    least has a reliable report.
    """
    least = min(first, _LEAST_AT_RANDOM) if reliable_from else first
    return len(curves) >= least and bool(since(curves, reliable_from))


def candidates(curves: Sequence[Curve], random: np.random.Generator) -> Array:
    """Return points of the unit cube that the next parameters are chosen from: anywhere, and near the best trials."""
    tops = np.argsort([curve.best for curve in curves], kind="stable")[:_TOPS]
    near = np.repeat(np.array([curves[top].point for top in tops]), _NEAR_EACH, axis=0)
    anywhere = random.random((_ANYWHERE, near.shape[1]))
    return np.concatenate([anywhere, _varied(near, random.choice(_STEPS, (len(near), 1)), random)])


def is_plateau(curves: Sequence[Curve]) -> bool:
    """Return whether more than half of the curves tie with the best of all at their best, and are flat.

    Fewer than three curves are no plateau. Such are models that predict at chance: their values differ by noise only.

    >>> flat = [Curve(np.zeros(1), [(0.5, 0.6932 + noise), (1.0, 0.6931 - noise)]) for noise in (0.0, 2e-5, 5e-5)]
    >>> is_plateau(flat), is_plateau([*flat, Curve(np.ones(1), [(0.5, 0.69), (1.0, 0.5)])])
    (True, False)
    """
    if len(curves) < _FEWEST:
        return False
    bests = np.array([curve.best for curve in curves])
    best = float(bests.min())
    if math.isinf(best):
        return True
    tolerance = tolerance_of(bests[np.isfinite(bests)])
    are_tied = bests - best <= tolerance
    if 2 * np.count_nonzero(are_tied) <= len(curves):
        return False
    tied = list(itertools.compress(curves, are_tied))
    return all(curve.best == best for curve in tied) or bool(
        np.median([abs(curve.reports[0][1] - curve.best) for curve in tied if len(curve.reports) > 1] or [math.inf])
        <= tolerance
    )


def _varied(points: Array, steps: Array, random: np.random.Generator) -> Array:
    """Return points at normal distances from these, along half of the directions."""
    shape = points.shape
    return np.clip(points + steps * random.standard_normal(shape) * (random.random(shape) < 0.5), 0.0, 1.0)
