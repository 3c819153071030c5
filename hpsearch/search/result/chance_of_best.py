"""The chance that a trial is truly the best one, given the noise between seeds, or between folds.

The true means of the trials have a normal prior, centered at the median of their first runs. Its width and the noise of
a run have a posterior, by the likelihood of the better half: the worse trials may be worse by any amount. That some
trials were repeated because they looked good does not bias it, as all first runs are in it. The chance is the share of
draws from the posterior in which the trial comes first.

Source: Rubin: Inference and Missing Data (Biometrika 63, 1976) on why such a selection can be ignored; Russo: Simple
Bayesian Algorithms for Best-Arm Identification (COLT 2016), which compares arms by the same posterior probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..metrics.objective import Objective
from ..metrics.replicas import comparable_values, runs_of
from ..metrics.selection import sign_of
from ..trial_record import TrialRecord

Array = NDArray[Any]

_DRAWS = 4000
# Variances that the noise and the prior may have, in units of the mean square distance from the center.
_VARIANCES = np.logspace(-3, 1, 33)


class RunsOfTrials(NamedTuple):
    """What there is to know of the runs of trials; all arrays have one entry for each trial.

    Attributes:
        first: the cost of its first run.
        means: the mean cost of its runs.
        counts: the number of its runs.
        squares: the sum of their squared distances from the mean.
    """

    first: Array
    means: Array
    counts: Array
    squares: Array


def chance_of_best(records: Sequence[TrialRecord], objective: Objective) -> dict[int, float] | None:
    """Return the chance of each trial to be truly the best, by number; None if no trial was repeated with other seeds.

    Only trials that have a result and hold the constraints are compared. The noise between seeds is taken to be that of
    all trials together. In a cross-validation, what trials have in common on a fold is no noise, so there is no chance
    before two of them were trained on two folds.
    """
    runs = [each for each in runs_of(records) if each.mean.is_eligible]
    if not any(len(each.records) > 1 for each in runs):
        return None
    values, freedom = comparable_values(runs)
    if not freedom:
        return None
    known = _known([sign_of(objective) * each for each in values])
    known = known._replace(squares=known.squares * np.sum(known.counts - 1) / freedom)
    return {each.trial.number: float(chance) for each, chance in zip(runs, chances_of_best(known), strict=True)}


def _known(costs: Sequence[Array]) -> RunsOfTrials:
    return RunsOfTrials(
        np.array([each[0] for each in costs]),
        np.array([each.mean() for each in costs]),
        np.array([len(each) for each in costs]),
        np.array([np.sum((each - each.mean()) ** 2) for each in costs]),
    )


def chances_of_best(known: RunsOfTrials) -> Array:
    """Return the chance of each trial to have the lowest true cost.

    >>> means, runs = np.array([0.0, 9.0, 9.5]), np.array([3, 3, 1])
    >>> chances_of_best(RunsOfTrials(means, means, runs, np.array([1.0, 1.0, 0.0]))).round(1)
    array([1., 0., 0.])
    """
    random = np.random.default_rng(0)
    center = float(np.median(known.first))
    is_better = known.first <= center
    within = float(np.sum(known.squares) / max(1.0, np.sum(known.counts - 1)))
    scale = max(float(np.mean((known.first[is_better] - center) ** 2)), within, 1e-300)
    variances = _VARIANCES * scale
    distances, counts, squares = (each[is_better] for each in (known.means - center, known.counts, known.squares))
    noise, prior = variances[:, None, None], variances[None, :, None]
    total = noise + counts * prior
    of_runs = (counts - 1) * np.log(noise) + squares / noise
    likelihood = -np.sum(of_runs + np.log(total) + counts * distances**2 / total, axis=-1) / 2
    weights = np.exp(likelihood - likelihood.max()).ravel()
    drawn = random.choice(weights.size, _DRAWS, p=weights / weights.sum())
    noise, prior = variances[drawn // len(variances), None] / known.counts, variances[drawn % len(variances), None]
    shrunk = prior / (prior + noise)
    means, deviations = center + shrunk * (known.means - center), np.sqrt(shrunk * noise)
    draws = means + deviations * random.standard_normal(noise.shape)
    return np.asarray(np.bincount(draws.argmin(axis=1), minlength=len(known.means)) / _DRAWS)
