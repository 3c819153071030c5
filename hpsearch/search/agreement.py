"""How well the order of trials at a rung agrees with their order at the end of the training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

# Before anything is known, an order is believed to agree as if four of six pairs had.
_AGREEING, _PAIRS = 4, 6
# Rungs where fewer pairs agree mislead: of pairs at random, half agree.
LEAST = 0.6
# Fewer trials tell nothing.
_FEWEST = 3


def agreement(costs: Sequence[tuple[float, float]]) -> float:
    """Return the share of pairs of trials of which the same one is better at a rung and at the end.

    It is the posterior mean of a beta distribution; of fewer than three trials that of the prior. Pairs that are equal
    at one of the two tell nothing.

    Args:
        costs: of each trial, at the rung and at the end; less is better.

    >>> agreement([(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)]), agreement([(0.1, 3.0), (0.2, 2.0), (0.3, 1.0)])
    (0.7777777777777778, 0.4444444444444444)
    >>> round(agreement([]), 2)
    0.67
    """
    if len(costs) < _FEWEST:
        return _AGREEING / _PAIRS
    orders = [
        (early < other_early) == (late < other_late)
        for (early, late), (other_early, other_late) in itertools.combinations(costs, 2)
        if early != other_early and late != other_late
    ]
    return (_AGREEING + sum(orders)) / (_PAIRS + len(orders))
