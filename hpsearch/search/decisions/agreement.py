"""The agreement of the ranks of trials at a rung with their later ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .pareto_order import Costs, dominance

Array = NDArray[np.float64]

# The prior of the share of agreeing pairs, a beta distribution: as if four of six pairs had agreed.
_AGREEING, _PAIRS = 4, 6
# A rung misleads below this share; half of random pairs agree.
LEAST = 0.6
# Fewer trials are ignored; of more, the last ones are compared, as the time is quadratic in their number.
_FEWEST, _MOST = 3, 200


class Agreement(NamedTuple):
    """The number of pairs of trials with the same order at a rung and later.

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
        f"in their later order (estimated agreement {found.share:.2f} ± {found.deviation:.2f}"
    )
    if not is_heeded:
        return f"{counted})"
    then = "until that changes, no trial is paused or pruned there" if found.misleads else "trials are paused there"
    return f"{counted}, at least {LEAST} is needed): {then}"


def in_percent(low: float, high: float) -> str:
    """Return a fraction of the training run, or a range of them, in percent."""
    first, last = f"{low:.0%}", f"{high:.0%}"
    return first if first == last else f"{first} to {last}"


class Compared(NamedTuple):
    """The costs of a trial that are compared; of one objective or several, less is better.

    Attributes:
        early: at the rung.
        at_last_rung: when it came to the last rung; None: it was not there.
        final: at completion; None: it is not complete.
    """

    early: Costs
    at_last_rung: Costs | None
    final: Costs | None


def agreement(trials: Sequence[Compared]) -> Agreement:
    """Count the pairs of trials that agree; fewer than three trials count as no pair.

    A pair is compared if one trial dominates the other at the rung, and they are not equal later: at completion if both
    are complete, else at the last rung. It agrees if the same trial dominates the other there. With one objective, to
    dominate is to be better.

    >>> agreement([Compared((0.1,), None, (1.0,)), Compared((0.2,), None, (2.0,)), Compared((0.3,), None, (3.0,))])[:3]
    (3, 3, 3)
    >>> agreement([Compared((early,), (1 - early,), None) for early in (0.1, 0.2, 0.3)])[:3]
    (0, 3, 3)
    """
    if len(trials) < _FEWEST:
        return Agreement()
    early, at_last_rung, final = (_table(each) for each in zip(*trials[-_MOST:], strict=True))
    better = dominance(early)
    are_complete, were_there = ~np.isnan(final[:, 0]), ~np.isnan(at_last_rung[:, 0])
    by_final = are_complete[:, None] & are_complete
    by_last_rung = were_there[:, None] & were_there & ~by_final
    agrees = (by_final & dominance(final)) | (by_last_rung & dominance(at_last_rung))
    differs = (by_final & ~_are_equal(final)) | (by_last_rung & ~_are_equal(at_last_rung))
    return Agreement(int((better & agrees).sum()), int((better & differs).sum()), len(early))


def _table(costs: Sequence[Costs | None]) -> Array:
    """Return costs, (n, objectives); a row of NaN where there are none."""
    width = max(len(each) for each in costs if each is not None) if any(costs) else 1
    return np.array([(math.nan,) * width if each is None else each for each in costs], dtype=float)


def _are_equal(costs: Array) -> NDArray[np.bool_]:
    return np.asarray((costs[:, None] == costs).all(axis=2))
