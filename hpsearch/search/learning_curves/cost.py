"""Predict the cost of a training run from its hyperparameters.

The cost of a training run is the number of its floating-point operations (see `hpsearch.training.flops`), or,
where that is not known, the number of weights times the passes over the data. Measured seconds differ each time: they
are the cost only in a search that `timeout` alone limits, which cannot be repeated anyway. The logarithm of the cost is
fitted by ridge regression, as a polynomial of second degree of the parameters in the unit cube, without products: it
goes with powers of what makes a model large, such as layers and their width, which are searched on a logarithmic scale
or over a small range.

What is expected of a trial is divided by the square root of its work: a trial of four times the work has to promise
twice as much. By the work itself, as Snoek, Larochelle, Adams do (Practical Bayesian Optimization of Machine Learning
Algorithms, NeurIPS 2012, section 3.2), was no better; docs/how-good-searches-are.md has figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..metrics.added_metrics import NUM_PARAMETERS
from ..trial_record import TrialRecord

Array = NDArray[np.float64]

_RIDGE, _POWER = 0.1, 0.5
# Works that differ by less, as logarithms, are equal; by more than a thousandfold is not believed far from all trials.
_SAME, _MOST = 1e-6, np.log(1000.0)


class WorkModel:
    """Predicts the cost of training runs, in comparison with each other.

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


def work_weights(work: WorkModel | None, points: Array) -> Array:
    """Return by what to multiply what is expected of trials, (m,) of points (m, d); 1 where no work is known."""
    return np.ones(len(points)) if work is None else work.weights(points)


def work_model(points: Array, works: Array) -> WorkModel | None:
    """Return the model of these works; None if all are equal, or there are not two of them."""
    if len(works) < 2 or np.ptp(np.log(works)) < _SAME:
        return None
    return WorkModel(points, works)


class Work(NamedTuple):
    """The cost of a trial's whole training run in each unit; 0 where it is not known.

    Attributes:
        operations: floating-point operations; see `hpsearch.training.flops`.
        passes: the number of weights times the passes over the data.
        seconds: as measured, extrapolated from what the trial has trained.
    """

    operations: float = 0.0
    passes: float = 0.0
    seconds: float = 0.0


def work_of(trial: TrialRecord) -> Work | None:
    """Return the cost of a trial's whole training run, by its last report; None if that is not known yet.

    >>> from hpsearch import Report, TrialState
    >>> halfway = Report((0.5,), 2, 20, 2.0, {"num_parameters": 1000}, horizon=4, operations=6e6)
    >>> work_of(TrialRecord(0, "run-0", TrialState.PAUSED, {}, reports=(halfway,), seconds=30.0))
    Work(operations=12000000.0, passes=4000.0, seconds=60.0)
    """
    last = next((each for each in reversed(trial.reports) if each.horizon > 0 and each.resource > 0), None)
    if last is None:
        return None
    runs = last.resource / last.horizon
    epochs = last.epoch / runs
    seconds = trial.seconds * epochs / (max(trial.epochs, last.epoch) or math.inf)
    return Work(last.operations / runs, last.metrics.get(NUM_PARAMETERS, 0.0) * epochs, seconds)


def in_one_unit(works: Sequence[Work], by_seconds: bool = False) -> list[float]:
    """Return the costs of trials in one unit, to compare them; 0 where a cost is not known.

    The unit is operations if they are known of all trials, else weights times passes: of trials of hpsearch 0.8.0, of
    models that are not of transformers.

    Args:
        works: of the trials.
        by_seconds: measured seconds, if they are known of all trials, come first.

    >>> in_one_unit([Work(6e9, 4e3, 2.0), Work(2e9, 4e3, 1.0)]), in_one_unit([Work(6e9, 4e3, 2.0), Work(0.0, 4e3, 1.0)])
    ([6000000000.0, 2000000000.0], [4000.0, 4000.0])
    """
    units = ("seconds", "operations", "passes") if by_seconds else ("operations", "passes")
    known = (unit for unit in units if all(getattr(each, unit) > 0 for each in works))
    unit = next(known, "passes")
    return [getattr(each, unit) for each in works]


def _features(points: Array) -> Array:
    middle = points - 0.5
    return np.concatenate([middle, 2 * middle**2], axis=1)
