"""How well the order of trials at a rung agrees with their order at the end of the training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

# Before anything is known, an order is believed to agree as if four of six pairs had.
_AGREEING, _PAIRS = 4, 6
# Rungs where fewer pairs agree mislead: of pairs at random, half agree.
_LEAST = 0.6
# Fewer trials tell nothing; of more the last ones are looked at, as the time grows with their square.
_FEWEST, _MOST = 3, 200


class Agreement(NamedTuple):
    """How many pairs of trials have the same order at a rung and at the end of the training.

    Attributes:
        agreeing: so many of the pairs.
        pairs: that are not equal at one of the two.
    """

    agreeing: int
    pairs: int

    @property
    def misleads(self) -> bool:
        """Whether too few agree, by the posterior mean of a beta distribution.

        >>> Agreement(1, 3).misleads, Agreement(2, 3).misleads, Agreement(0, 0).misleads
        (True, False, False)
        """
        return (_AGREEING + self.agreeing) / (_PAIRS + self.pairs) < _LEAST


def agreement(costs: Sequence[tuple[float, float]]) -> Agreement:
    """Return how many pairs of trials agree; none of fewer than three trials.

    Args:
        costs: of each trial, at the rung and at the end; less is better.

    >>> agreement([(0.1, 1.0), (0.2, 2.0), (0.3, 3.0)]), agreement([(0.1, 3.0), (0.2, 2.0), (0.3, 1.0)])
    (Agreement(agreeing=3, pairs=3), Agreement(agreeing=0, pairs=3))
    """
    if len(costs) < _FEWEST:
        return Agreement(0, 0)
    orders = [
        (early < other_early) == (late < other_late)
        for (early, late), (other_early, other_late) in itertools.combinations(costs[-_MOST:], 2)
        if early != other_early and late != other_late
    ]
    return Agreement(sum(orders), len(orders))
