"""How much work a training is with these parameters, learnt from how much others were.

The work of a training is its model's size times its epochs: not its seconds, which are others each time, so that a
search makes the same choices when it is repeated. The logarithm of the work is fitted by ridge regression, as a
polynomial of second degree of the parameters in the unit cube, without products: it goes with powers of what makes a
model large, such as layers and their width, which are searched on a logarithmic scale or over a small range.

What is expected of a trial is divided by the square root of its work: a trial of four times the work has to promise
twice as much. By the work itself, as Snoek, Larochelle, Adams do (Practical Bayesian Optimization of Machine Learning
Algorithms, NeurIPS 2012, section 3.2), was no better; docs/how-search-decides.md has figures.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .added_metrics import NUM_PARAMETERS
from .trial import TrialRecord

Array = NDArray[np.float64]

_RIDGE, _POWER = 0.1, 0.5
# Works that differ by less, as logarithms, are equal; by more than a thousandfold is not believed far from all trials.
_SAME, _MOST = 1e-6, np.log(1000.0)


class WorkModel:
    """Predicts how much work trainings are, in comparison with each other.

    Args:
        points: (n, d), parameters in the unit cube.
        works: (n,), of a whole training each, above 0, in any unit.
    """

    def __init__(self, points: Array, works: Array) -> None:
        logs, features = np.log(works), _features(points)
        self._middle = features.mean(axis=0)
        off = features - self._middle
        self._slopes = np.linalg.solve(off.T @ off + _RIDGE * np.eye(off.shape[1]), off.T @ (logs - logs.mean()))

    def weights(self, points: Array) -> Array:
        """Return by what to multiply what is expected of trials, (m,) of points (m, d); 1 for those of mean work."""
        logs = np.clip((_features(points) - self._middle) @ self._slopes, -_MOST, _MOST)
        return np.asarray(np.exp(-_POWER * logs))


def work_model(points: Array, works: Array) -> WorkModel | None:
    """Return the model of these works; None if all are equal, or there are not two of them."""
    if len(works) < 2 or np.ptp(np.log(works)) < _SAME:
        return None
    return WorkModel(points, works)


def work_of(trial: TrialRecord) -> float | None:
    """Return the work of a trial's whole training: weights times epochs; None if that is not known yet.

    >>> from hpsearch import Report, TrialState
    >>> halfway = Report((0.5,), 2, 20, 2.0, {"num_parameters": 1000}, horizon=4)
    >>> work_of(TrialRecord(0, "run-0", TrialState.PAUSED, {}, reports=(halfway,)))
    4000.0
    """
    measured = (each for each in trial.reports if each.metrics.get(NUM_PARAMETERS))
    known = [each for each in measured if each.horizon > 0 and each.resource > 0]
    if not known:
        return None
    last = known[-1]
    return float(last.metrics[NUM_PARAMETERS] * last.epoch * last.horizon / last.resource)


def _features(points: Array) -> Array:
    middle = points - 0.5
    return np.concatenate([middle, 2 * middle**2], axis=1)
