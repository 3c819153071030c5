"""How well the ranks of trials at a rung agree with their final ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

# The prior of the share of agreeing pairs: as if four of six had agreed.
_AGREEING, _PAIRS = 4, 6
# A rung misleads below this share; half of random pairs agree.
_LEAST = 0.6
# Fewer trials are ignored; of more, the last ones are compared, as the time is quadratic in their number.
_FEWEST, _MOST = 3, 200


class Agreement(NamedTuple):
    """The number of pairs of trials with the same order at a rung and at completion.

    Attributes:
        agreeing: the number of pairs with the same order.
        pairs: the number of pairs that are tied at neither of the two.
    """

    agreeing: int
    pairs: int

    @property
    def misleads(self) -> bool:
        """Whether the posterior mean of the share of agreeing pairs, a beta distribution, is too low.

        >>> Agreement(1, 3).misleads, Agreement(2, 3).misleads, Agreement(0, 0).misleads
        (True, False, False)
        """
        return (_AGREEING + self.agreeing) / (_PAIRS + self.pairs) < _LEAST


def agreement(costs: Sequence[tuple[float, float]]) -> Agreement:
    """Count the pairs of trials that agree; fewer than three trials count as no pair.

    Args:
        costs: the objective of each trial at the rung and at completion; less is better.

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
