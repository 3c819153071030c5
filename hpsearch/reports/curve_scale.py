"""One scale for all learning curves of a study, so that curves beside each other can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

_BARS = "▁▂▃▄▅▆▇█"
# What is further from the middle half of the values than this number of its lengths is drawn at the edge (Tukey).
_FENCE = 1.5
_LEAST_FOR_FENCES = 8


class CurveScale(NamedTuple):
    """The range of values that curves are drawn in.

    Attributes:
        low, high: what is outside of them is drawn at the edge.
    """

    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> CurveScale:
        """Return the scale of the values of all curves; outliers do not flatten the others.

        >>> CurveScale.of([0.5, 0.25, 1.0])
        CurveScale(low=0.25, high=1.0)
        >>> CurveScale.of([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 50.0]).high < 3
        True
        """
        finite = sorted(each for each in values if math.isfinite(each))
        if not finite:
            return cls(0.0, 0.0)
        low, high = finite[0], finite[-1]
        first, third = (finite[round(quarter * (len(finite) - 1))] for quarter in (0.25, 0.75))
        room = _FENCE * (third - first)
        if len(finite) < _LEAST_FOR_FENCES or not 0 < room < math.inf:
            return cls(low, high)
        return cls(max(low, first - room), min(high, third + room))

    def sparkline(self, values: Iterable[float]) -> str:
        """Return a curve in one line of text.

        >>> CurveScale(0.0, 1.0).sparkline([0.0, 0.5, math.nan, 2.0])
        '▁▅█'
        """
        return "".join(_BARS[round(7 * self.place(each))] for each in values if math.isfinite(each))

    def place(self, value: float) -> float:
        """Return where a value is, from 0 to 1."""
        span = self.high / 2 - self.low / 2  # halves, so that the largest floats do not overflow
        return min(1.0, max(0.0, (value / 2 - self.low / 2) / span)) if span > 0 else 0.0
