"""The user's priors on the best parameters: they shape random draws and weight the expected improvement.

Sources: Hvarfner, Stoll, Souza, Lindauer, Hutter, Nardi: πBO, Augmenting Acquisition Functions with User Beliefs for
Bayesian Optimization (ICLR 2022), for the weight that fades as trials come in; Mallik, Bergman, Hvarfner, Stoll,
Janowski, Lindauer, Nardi, Hutter: PriorBand (NeurIPS 2023), for drawing near the prior and anywhere in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Of the range: of a logarithmic range over two decades, a factor of 2.5.
_SPREAD = 0.2
# Of what is drawn at random, this share is drawn near the prior; there, this share of choices is any of them.
_SHARE_NEAR, _SHARE_OF_OTHERS = 0.5, 0.3
# The weight of the prior is its density to the power of this over the number of trials. Far from it, the density has a
# floor: there the best may be all the same.
_STRENGTH, _FLOOR = 10.0, 0.01


class Belief:
    """A prior density of the best parameters in the unit cube.

    The density is normal around the centre, with a standard deviation of a fifth of each range, above a floor.

    Args:
        centre: (d,); NaN along the sides of which nothing is believed.
        choices: the sides that represent one choice each, of several.
    """

    def __init__(self, centre: Array, choices: Sequence[slice] = ()) -> None:
        self._sides = ~np.isnan(centre)
        self._centre, self._choices = centre[self._sides], choices

    def near(self, count: int, random: np.random.Generator) -> Array:
        """Draw `count` points, (count, d), near the centre; anywhere along the other sides."""
        points = random.random((count, len(self._sides)))
        steps = _SPREAD * random.standard_normal((count, len(self._centre)))
        anywhere = points.copy()
        points[:, self._sides] = np.clip(self._centre + steps, 0.0, 1.0)
        for choice in self._choices:
            others = random.random(count) < _SHARE_OF_OTHERS
            points[others, choice] = anywhere[others, choice]
        return points

    def is_tried_now(self, random: np.random.Generator) -> bool:
        """Return whether what is to be drawn at random is to be drawn near the centre, as half of it is."""
        return bool(random.random() < _SHARE_NEAR)

    def weights(self, points: Array, trials: int) -> Array:
        """Return factors, (m,), at most 1, for expected improvements at points, (m, d), after a number of trials.

        Far from the centre, that is 0.01 after ten trials, 0.1 after twenty, 0.8 after two hundred.
        """
        squares = ((points[:, self._sides] - self._centre) ** 2).sum(axis=1)
        density = _FLOOR + (1 - _FLOOR) * np.exp(-squares / (2 * _SPREAD**2))
        return np.asarray(density ** (_STRENGTH / max(trials, 1)))
