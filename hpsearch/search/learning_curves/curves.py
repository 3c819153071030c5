"""The learning curves of trials, and the model of them.

The model is a Gaussian process over parameters and fraction of the training run (`gaussian_process.py`).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..decisions.ladder import ROUNDING
from .gaussian_process import MOST_TO_FIT, CurveModel, Observations, fit

Array = NDArray[np.float64]

# With many observations, the hyperparameters are fitted to the first curves only, and again when their number has grown
# by a quarter.
_GROWTH = 1.25


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
