"""Parameters of Optuna as points of the unit cube, where a model can compare them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ..search.space.parameters import Params, Scalar
from .branches import Branches

Array = NDArray[np.float64]
# Where a parameter is taken to be that a trial does not have.
_MIDDLE = 0.5
# The width of the cells of a grid. Points of the same parameters share a cell, however they were rounded: the cells are
# shifted by an irrational part of their width, so that no step of a range lies on a border.
_SAME, _OFF = 1e-8, 2**0.5 / 3


class Cube:
    """Parameters as points of the unit cube: a side for each number, and one for each choice.

    Args:
        space: the distribution of each parameter.
        branches: under which choices a parameter exists, of those that do not always.
    """

    def __init__(self, space: Mapping[str, BaseDistribution], branches: Branches | None = None) -> None:
        self._space = dict(space)
        self._sides = {name: _side(each) for name, each in space.items()}
        ends = np.cumsum([side.width for side in self._sides.values()])
        self._places = {
            name: slice(end - side.width, end) for (name, side), end in zip(self._sides.items(), ends, strict=True)
        }
        self._width = int(ends[-1])
        self._branches = {
            name: [self._corners_of(choices) for choices in places]
            for name, places in (branches or {}).items()
            if name in space
        }

    def point(self, params: Params, elsewhere: float = _MIDDLE) -> Array:
        """Return the point of these parameters; in the middle, or elsewhere, along those that are missing."""
        point = np.full(self._width, elsewhere)
        for name, side in self._sides.items():
            if name in params:
                point[self._places[name]] = side.encode(params[name])
        return point

    def holds(self, params: Mapping[str, object]) -> bool:
        """Return whether parameters lie in the space; those that have no side there do not matter."""
        try:
            return all(
                each._contains(each.to_internal_repr(params[name]))
                for name, each in self._space.items()
                if name in params
            )
        except (TypeError, ValueError):  # what is no choice, or no number
            return False

    def choices(self, names: Collection[str]) -> list[slice]:
        """Return the sides of each of these parameters that is a choice."""
        return [self._places[name] for name in names if isinstance(self._sides[name], _Choice)]

    def params(self, point: Array) -> dict[str, object]:
        """Return the parameters of a point."""
        return {name: side.decode(point[self._places[name]]) for name, side in self._sides.items()}

    def valid(self, points: Array) -> Array:
        """Return the nearest points that represent parameters: the middle of the sides of those that do not exist."""
        sides = [side.valid(points[:, self._places[name]]) for name, side in self._sides.items()]
        nearest = np.concatenate(sides, axis=1)
        for name, places in self._branches.items():
            is_there = np.any([(nearest[:, corners] == 1.0).all(axis=1) for corners in places], axis=0)
            nearest[~is_there, self._places[name]] = _MIDDLE
        return nearest

    def sides_of(self, params: Collection[str]) -> tuple[int, ...]:
        """Return the places of the sides of these parameters."""
        return tuple(
            place for name, side in self._places.items() if name in params for place in range(side.start, side.stop)
        )

    def _corners_of(self, choices: Mapping[str, object]) -> list[int]:
        """Return the places of the sides that are 1 where these choices are taken, of parameters that have sides."""
        corners: list[int] = []
        for name, value in choices.items():
            distribution = self._space.get(name)
            if isinstance(distribution, CategoricalDistribution) and value in distribution.choices:
                corners.append(self._places[name].start + int(distribution.to_internal_repr(value)))
        return corners


class Tried:
    """The parameters that trials have had.

    Args:
        cube: in which they are points.
        tried: the parameters of each trial; some may have fewer than others (branches).
    """

    def __init__(self, cube: Cube, tried: Iterable[Params] = ()) -> None:
        self._cube = cube
        self._cells: dict[tuple[int, ...], set[bytes]] = defaultdict(set)
        for params in tried:
            self.add(params)

    def add(self, params: Mapping[str, object]) -> None:
        """Note that a trial has had these parameters."""
        sides = self._cube.sides_of(params)
        if sides:
            self._cells[sides].update(_cells(self._cube.point(params)[None, sides]))

    def without(self, points: Array) -> Array:
        """Return those of the points that no trial has had, whatever they have for what the trial had not; else all."""
        is_new = np.ones(len(points), dtype=bool)
        for sides, had in self._cells.items():
            is_new &= [cell not in had for cell in _cells(points[:, sides])]
        return points[is_new] if is_new.any() else points


def _cells(points: Array) -> list[bytes]:
    """Return the cell of a fine grid that each point lies in; points that differ by rounding only share one."""
    return [each.tobytes() for each in np.floor(points / _SAME + _OFF).astype(np.int64)]


def _side(distribution: BaseDistribution) -> _Number | _Choice:
    if isinstance(distribution, CategoricalDistribution):
        return _Choice(distribution)
    assert isinstance(distribution, (FloatDistribution, IntDistribution)), distribution
    return _Number(distribution)


class _Number:
    """A number between 0 and 1: of its range, or of the logarithms of its range."""

    width = 1

    def __init__(self, distribution: FloatDistribution | IntDistribution) -> None:
        self._low, self._high, self._log = distribution.low, distribution.high, distribution.log
        self._step, self._kind = distribution.step, int if isinstance(distribution, IntDistribution) else float
        half = 0.0 if self._step is None else self._step / 2
        self._begin, self._end = self._scaled(np.array([self._low - half, self._high + half]))

    def encode(self, value: float) -> Array:
        return self._to_unit(np.array([value], dtype=float))

    def decode(self, side: Array) -> object:
        return self._kind(self._values(side)[0])

    def valid(self, sides: Array) -> Array:
        return self._to_unit(self._values(sides))

    def _values(self, sides: Array) -> Array:
        scaled = self._begin + sides * (self._end - self._begin)
        values = np.exp(scaled) if self._log else scaled
        if self._step is not None:
            values = self._low + np.round((values - self._low) / self._step) * self._step
        return np.asarray(np.clip(values, self._low, self._high))

    def _to_unit(self, values: Array) -> Array:
        return np.asarray((self._scaled(values) - self._begin) / (self._end - self._begin))

    def _scaled(self, values: Array) -> Array:
        return np.asarray(np.log(values) if self._log else values, dtype=float)


class _Choice:
    """A side for each choice, 1 for the one that is taken, 0 for the others."""

    def __init__(self, distribution: CategoricalDistribution) -> None:
        self._distribution, self.width = distribution, len(distribution.choices)
        self._corners: Array = np.eye(self.width)

    def encode(self, value: Scalar) -> Array:
        chosen: Array = self._corners[int(self._distribution.to_internal_repr(value))]
        return chosen

    def decode(self, sides: Array) -> object:
        return self._distribution.choices[int(sides.argmax())]

    def valid(self, sides: Array) -> Array:
        chosen: Array = self._corners[sides.argmax(axis=1)]
        return chosen
