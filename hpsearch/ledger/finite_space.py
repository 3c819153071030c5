"""Whether a study may have tried every configuration of a finite space, according to Optuna's trials."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from .warm_starts import ORIGIN


def has_values_left(trials: Sequence[FrozenTrial]) -> bool:
    """Return whether a parameter has values that no trial of this study has had: not everything has been tried then.

    A function as space is asked for the remaining values only if this check is inconclusive.
    """
    used: dict[str, set[object]] = defaultdict(set)
    counts: dict[str, float] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items() if ORIGIN not in trial.user_attrs else ():
            counts[name] = _count(distribution)
            if math.isinf(counts[name]):
                return True
            used[name].add(trial.params[name])
    return any(len(used[name]) < count for name, count in counts.items())


def _count(distribution: BaseDistribution) -> float:
    """Return how many values a parameter has."""
    if distribution.single():
        return 1
    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    assert isinstance(distribution, (IntDistribution, FloatDistribution)), distribution
    if distribution.step is None:
        return math.inf
    return round((distribution.high - distribution.low) / distribution.step) + 1
