"""The order of trials of several objectives at a rung: by non-dominated fronts, and within a front spread out.

Sources: fronts: Deb, Pratap, Agarwal, Meyarivan: A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II (IEEE
Transactions on Evolutionary Computation 2002). Their use at rungs, with the epsilon-net within a front: Schmucker,
Donini, Zafar, Salinas, Archambeau: Multi-objective Asynchronous Successive Halving (2021). Here distances are those of
ranks, so no objective's unit, scale or outlier changes the order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# The costs of a trial: one for each objective, less is better.
Costs = tuple[float, ...]


def is_no_worse(costs: Costs, others: Costs) -> bool:
    """Return whether costs are at most as high as others, in each objective."""
    return all(cost <= other for cost, other in zip(costs, others, strict=True))


def dominance(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return, as a matrix, whether the point of a row is nowhere worse than that of a column, and somewhere better."""
    no_worse = np.ones((len(costs), len(costs)), dtype=bool)
    for column in costs.T:
        no_worse &= column[:, None] <= column
    better: NDArray[np.bool_] = no_worse & ~no_worse.T
    return better


def fronts(costs: Sequence[Costs]) -> list[int]:
    """Return the front of each point: 0 if no other point dominates it, else one more than its dominators' highest.

    >>> fronts([(1, 4), (2, 2), (4, 1), (3, 3), (4, 4)])
    [0, 0, 0, 1, 2]
    """
    points = np.array(costs, dtype=float)
    found = np.zeros(len(points), dtype=int)
    if len(points):
        better = dominance(points).T.copy()
        for place in np.lexsort(points.T[::-1]):  # whatever dominates a point comes before it
            found[place] = 1 + found[better[place]].max(initial=-1)
    return [int(each) for each in found]


def pareto_order(costs: Sequence[Costs]) -> list[int]:
    """Return the places of points, the best first: front by front, and within a front spread out.

    The first point of a front is the best by the first objective; each further one is the farthest from those before it
    (an epsilon-net). Of equal points, the earlier one comes first. One objective is sorted.

    >>> pareto_order([(1, 5), (2, 4), (3, 3), (5, 1), (6, 6)])
    [0, 3, 1, 2, 4]
    >>> pareto_order([(0.3,), (0.1,), (0.2,), (0.1,)])
    [1, 3, 2, 0]
    """
    points = np.array(costs, dtype=float)
    if not len(points):
        return []
    front = np.array(fronts(costs))
    ranks = np.stack([np.searchsorted(np.sort(column), column) for column in points.T], axis=1)
    by_first = np.lexsort(points.T[::-1])
    order: list[int] = []
    for members in np.split(by_first[np.argsort(front[by_first], kind="stable")], np.cumsum(np.bincount(front))[:-1]):
        order += [int(each) for each in members[_spread(ranks[members])]]
    return order


class ParetoRanks:
    """Keeps the ranks of trials at one rung by `pareto_order`; they are computed when they are next asked for."""

    def __init__(self) -> None:
        self._keys: list[tuple[Costs, float, int]] = []
        self._ranks: dict[int, int] | None = {}

    def set(self, number: int, before: tuple[Costs, float] | None, now: tuple[Costs, float] | None) -> None:
        """Replace the costs and the loss, which breaks ties, of a trial; None: it is not at the rung."""
        if before is not None:
            del self._keys[bisect_left(self._keys, (*before, number))]
        if now is not None:
            self._keys.insert(bisect_left(self._keys, (*now, number)), (*now, number))
        self._ranks = None

    def rank(self, number: int) -> int:
        """Return the number of trials that come before a trial."""
        if self._ranks is None:
            order = pareto_order([costs for costs, _, _ in self._keys])
            self._ranks = {self._keys[place][2]: rank for rank, place in enumerate(order)}
        return self._ranks[number]


def _spread(ranks: NDArray[np.int64]) -> list[int]:
    """Return the rows in the order in which each is the farthest from those before it, the first row first."""
    distances = sum((column[:, None] - column) ** 2 for column in ranks.T)
    nearest, chosen = distances[0].copy(), [0]
    nearest[0] = -1
    for _ in range(len(ranks) - 1):
        row = int(nearest.argmax())
        np.minimum(nearest, distances[row], out=nearest)
        nearest[row] = -1  # chosen rows stay below all others, as no distance is negative
        chosen.append(row)
    return chosen
