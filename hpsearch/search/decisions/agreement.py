"""The agreement of the ranks of trials at a rung with their final ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .pareto_order import Costs, dominance

# The prior of the share of agreeing pairs, a beta distribution: as if four of six pairs had agreed.
_AGREEING, _PAIRS = 4, 6
# A rung misleads below this share; half of random pairs agree.
LEAST = 0.6
# Fewer trials are ignored; of more, the last ones are compared, as the time is quadratic in their number.
_FEWEST, _MOST = 3, 200


class Agreement(NamedTuple):
    """The number of pairs of trials with the same order at a rung and at completion.

    The pairs of n trials are not independent of each other: their agreeing share varies as that of 9 n (n - 1) /
    (2 (2 n + 5)) independent pairs, which is the variance of Kendall's rank correlation where ranks are independent
    (Kendall: A New Measure of Rank Correlation, Biometrika 1938). The posterior counts only these.

    Attributes:
        agreeing: the number of pairs with the same order.
        pairs: the number of pairs that are tied at neither of the two; of several objectives, those of which one trial
            dominates the other at the rung.
        trials: the number of trials.
        evaluated: where the rung is for them: the lowest and the highest fraction of the training run at which these
            trials had their first evaluation at or after the rung.
    """

    agreeing: int = 0
    pairs: int = 0
    trials: int = 0
    evaluated: tuple[float, float] = (0.0, 0.0)

    @property
    def share(self) -> float:
        """The posterior mean of the share of agreeing pairs.

        >>> [round(Agreement(*each).share, 2) for each in ((0, 0, 0), (1, 3, 3), (10, 45, 10), (45, 45, 10))]
        [0.67, 0.57, 0.34, 0.91]
        """
        agreeing = self._independent * self.agreeing / self.pairs if self.pairs else 0.0
        return (_AGREEING + agreeing) / (_PAIRS + self._independent)

    @property
    def deviation(self) -> float:
        """The posterior standard deviation of the share.

        >>> [round(Agreement(*each).deviation, 2) for each in ((0, 0, 0), (1, 3, 3), (10, 45, 10))]
        [0.18, 0.16, 0.1]
        """
        return math.sqrt(self.share * (1 - self.share) / (_PAIRS + self._independent + 1))

    @property
    def misleads(self) -> bool:
        """Whether the posterior mean of the share is below 0.6.

        >>> Agreement(1, 3, 3).misleads, Agreement(2, 3, 3).misleads, Agreement().misleads
        (True, False, False)
        """
        return self.share < LEAST

    @property
    def _independent(self) -> float:
        return self.pairs * 9 / (2 * self.trials + 5)


def describe(found: Agreement, is_heeded: bool = True) -> str:
    """Describe the agreement at a rung, which is named by where trials are evaluated, as in `Ladder.describe`.

    Args:
        found: the agreement.
        is_heeded: whether the rung pauses no trial while it misleads.

    >>> describe(Agreement(1, 3, 3)).partition(": ")[2], describe(Agreement(3, 3, 3)).partition(": ")[2]
    ('until that changes, no trial is paused or pruned there', 'trials are paused there')
    >>> describe(Agreement(10, 45, 10), is_heeded=False).partition(" (")[2]
    'estimated agreement 0.34 ± 0.10)'
    >>> describe(Agreement(10, 45, 10, (2 / 9, 2 / 9)))[:26], describe(Agreement(10, 45, 10, (0.2, 0.25)))[:33]
    ('after 22% of the training ', 'after 20% to 25% of the training ')
    """
    counted = (
        f"after {in_percent(*found.evaluated)} of the training {found.agreeing} of {found.pairs} pairs of trials are "
        f"in the order of their final values (estimated agreement {found.share:.2f} ± {found.deviation:.2f}"
    )
    if not is_heeded:
        return f"{counted})"
    then = "until that changes, no trial is paused or pruned there" if found.misleads else "trials are paused there"
    return f"{counted}, at least {LEAST} is needed): {then}"


def in_percent(low: float, high: float) -> str:
    """Return a fraction of the training run, or a range of them, in percent."""
    first, last = f"{low:.0%}", f"{high:.0%}"
    return first if first == last else f"{first} to {last}"


def agreement(costs: Sequence[tuple[Costs, Costs]]) -> Agreement:
    """Count the pairs of trials that agree; fewer than three trials count as no pair.

    A pair is compared if one trial dominates the other at the rung, and they are not equal at completion. It agrees if
    the same trial dominates the other at completion. With one objective, to dominate is to be better.

    Args:
        costs: the objectives of each trial at the rung and at completion; less is better.

    >>> agreement([((0.1,), (1.0,)), ((0.2,), (2.0,)), ((0.3,), (3.0,))])[:3]
    (3, 3, 3)
    >>> agreement([((0.1,), (3.0,)), ((0.2,), (2.0,)), ((0.3,), (1.0,))])[:3]
    (0, 3, 3)
    """
    if len(costs) < _FEWEST:
        return Agreement()
    compared = costs[-_MOST:]
    early, late = (np.array(each, dtype=float) for each in zip(*compared, strict=True))
    better, better_late = dominance(early), dominance(late)
    is_equal_late = (late[:, None] == late).all(axis=2)
    return Agreement(int((better & better_late).sum()), int((better & ~is_equal_late).sum()), len(compared))
