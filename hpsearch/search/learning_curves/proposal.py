"""Multi-fidelity Bayesian optimization: parameters are proposed from the learning curves of all trials.

They are those with the highest expected improvement at completion, by the model of the curves (`curves.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..space.priors import Belief
from .cost import WorkModel, work_weights
from .curves import Curve, model_of, since
from .gaussian_process import CurveModel, expected_improvement, tolerance_of

Array = NDArray[np.float64]

# Trials that are drawn at random: a third of all that are to be, within these bounds; then a share of the others.
_LEAST_AT_RANDOM, _MOST_IF_LIMITED, MOST_AT_RANDOM, _SHARE_AT_RANDOM = 8, 16, 24, 0.1
_ANYWHERE, _TOPS, _NEAR_EACH, _STEPS = 400, 8, 40, (0.03, 0.1, 0.3)
# Then this number of candidates, from which most is expected, are varied by these steps in turn.
_REFINED, _VARIATIONS, _FINE_STEPS = 5, 30, (0.1, 0.05, 0.02)
# If no candidate is expected to improve by this much, in deviations of the ranks, the model has nothing left to refine:
# then its uncertainty counts this many times.
_LITTLE, _WIDENED = 0.03, 4.0
# Fewer curves are no plateau.
_FEWEST = 3


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
    training, and the best of them varied in turn. If hardly any improvement is expected, those that were drawn are
    compared and varied again with larger standard deviations, so that the search leaves an exhausted local optimum.

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

    def predict(points: Array) -> _Predictions:
        weights = work_weights(work, points)
        if belief is not None:
            weights = weights * belief.weights(points, len(curves))
        means, deviations = model.expect(points)
        return _Predictions(points, means - model.best, deviations, weights)

    def refined(predictions: _Predictions, widened: float = 1.0) -> _Predictions:
        for step in _FINE_STEPS:
            tops = predictions.points[np.argsort(-predictions.acquisition(widened))[:_REFINED]]
            tops = np.repeat(tops, _VARIATIONS, axis=0)
            further = valid(_varied(tops, np.full((len(tops), 1), step), random))
            predictions = predictions.followed_by(predict(further))
        return predictions

    near = [] if belief is None else [belief.near(_NEAR_EACH, random)]
    points = valid(np.concatenate([candidates(curves, random), *near]))
    if not len(points):
        return None
    drawn = predict(points)
    found = refined(drawn)
    best = int(found.acquisition().argmax())
    if found.improvement()[best] < _LITTLE:  # begin again with those drawn: the others are near the exhausted optimum
        found = refined(drawn, _WIDENED)
        best = int(found.acquisition(_WIDENED).argmax())
    return np.asarray(found.points[best])


class _Predictions(NamedTuple):
    """Predictions of the model for m points.

    Attributes:
        points: (m, d), in the unit cube.
        gains: (m,), the means at completion, less the best value so far.
        deviations: (m,), their standard deviations.
        weights: (m,), of the expected improvements, for the cost and the prior.
    """

    points: Array
    gains: Array
    deviations: Array
    weights: Array

    def improvement(self, widened: float = 1.0) -> Array:
        """Return the expected improvements, (m,), with standard deviations multiplied by `widened`."""
        return expected_improvement(self.gains, widened * self.deviations)

    def acquisition(self, widened: float = 1.0) -> Array:
        """Return the weighted expected improvements, (m,)."""
        return self.improvement(widened) * self.weights

    def followed_by(self, others: _Predictions) -> _Predictions:
        """Return these predictions and then the others."""
        return _Predictions(*map(np.concatenate, zip(self, others, strict=True)))


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
