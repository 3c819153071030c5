"""The chance that a trial is truly the best one, given the noise between seeds.

A normal prior for the true means of the trials, by empirical Bayes, corrects for the luck of the best of many. The
chance is the share of draws from the posterior in which the trial comes first.

Source: Efron, Morris: Data Analysis Using Stein's Estimator and Its Generalizations (Journal of the American
Statistical Association 70, 1975); Russo: Simple Bayesian Algorithms for Best-Arm Identification (COLT 2016), which
compares arms by the same posterior probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics.objective import Objective
from ..metrics.replicas import pooled_variance, runs_of
from ..metrics.selection import sign_of
from ..trial import TrialRecord

Array = NDArray[Any]

_DRAWS = 4000
# The least variance of the true means, as a share of that of the values.
_LEAST_TRUE_VARIANCE = 0.1


def chance_of_best(records: Sequence[TrialRecord], objective: Objective) -> dict[int, float] | None:
    """Return the chance of each trial to be truly the best, by number; None if no trial was repeated with other seeds.

    Only trials that have a result and hold the constraints are compared. The noise between seeds is taken to be that of
    all trials together.
    """
    runs = [each for each in runs_of(records) if each.mean.is_eligible]
    noise = pooled_variance(runs)
    if noise is None:
        return None
    costs = np.array([sign_of(objective) * each.mean.values[0] for each in runs])
    chances = chances_of_best(costs, np.array([len(each.records) for each in runs]), *noise)
    return {each.trial.number: float(chance) for each, chance in zip(runs, chances, strict=True)}


def chances_of_best(costs: Array, counts: Array, variance: float, freedom: int) -> Array:
    """Return the chance of each trial to have the lowest true cost.

    The prior is normal. Its center is the median of the costs, its width that of the better half, as the worse trials
    may be worse by any amount. The variance of a run is drawn from its own posterior, as it is known from few runs.

    Args:
        costs: (n,), the mean of each trial's runs.
        counts: (n,), the number of its runs.
        variance: of one run.
        freedom: the number of residuals from which the variance is known.

    >>> chances_of_best(np.array([0.0, 9.0, 9.5]), np.array([3, 3, 1]), 1.0, 6).round(1)
    array([1., 0., 0.])
    """
    random = np.random.default_rng(0)
    drawn = np.maximum(variance, 1e-300) * freedom / random.chisquare(freedom, _DRAWS)
    noise = drawn[:, None] / counts[None]
    center = float(np.median(costs))
    spread = float(np.mean((costs[costs <= center] - center) ** 2))
    true = np.maximum(spread - noise.mean(axis=1), _LEAST_TRUE_VARIANCE * spread + 1e-300)[:, None]
    shrunk = true / (true + noise)
    means, deviations = center + shrunk * (costs - center), np.sqrt(shrunk * noise)
    draws = means + deviations * random.standard_normal(noise.shape)
    return np.asarray(np.bincount(draws.argmin(axis=1), minlength=len(costs)) / _DRAWS)
