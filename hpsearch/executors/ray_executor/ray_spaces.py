"""Search spaces of Ray Tune as ours."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping
from typing import Any

from ray.tune.search import sample

from ...errors import SpaceError
from ...search.space.parameters import Categorical, Float, Int, Parameter, Scalar
from ...search.space.search_space import SearchSpace
from ...search.study import SpaceFunction
from ...search.trial import Trial
from .random_values import Draw
from .ray_domains import (
    check_can_be_drawn,
    check_flat,
    choices_of,
    counterpart,
    grid_values,
    has_entries_of_ray,
    holds_ray,
    is_grid,
)

logger = logging.getLogger(__name__)


def from_ray(hp_space: object, seed: int) -> Any:
    """Return `hp_space` without domains of Ray Tune; a space that has none is returned unchanged.

    A mapping becomes a `SearchSpace` if each entry has an exact counterpart, otherwise a `RaySpace`. A function stays a
    function, and what it returns is treated the same way. Steps keep their values, each as likely as the others; Ray
    itself draws the two ends of a `quniform` half as often.

    Args:
        hp_space: a mapping of names to domains of Ray, our parameters and constants; a function that returns one;
            or anything else.
        seed: of the values that are drawn.

    Raises:
        SpaceError: an entry holds no value, has a domain inside it, or cannot be drawn from.

    Examples:
        >>> from ray import tune
        >>> from_ray({"seed": tune.randint(1, 41), "learning_rate": tune.loguniform(1e-6, 1e-4)}, seed=42)["seed"]
        Int(1, 40)
    """
    if isinstance(hp_space, Mapping):
        if not has_entries_of_ray(hp_space):
            return hp_space
        space = RaySpace(hp_space, seed)
        return space.parameters if space.is_exact else space
    if isinstance(hp_space, (RaySpace, RayFunction, type)) or not callable(hp_space):
        return hp_space
    return RayFunction(hp_space, seed)


def drawn(space: object) -> list[str]:
    """Return the names that are drawn at random and not learned; of a user's function, those it has returned so far.

    Args:
        space: what `from_ray` returned, or was given.
    """
    if isinstance(space, Mapping) and has_entries_of_ray(space):
        space = RaySpace(space, 0)
    return list(space.drawn) if isinstance(space, (RaySpace, RayFunction)) else []


class RaySpace:
    """A mapping with entries of Ray Tune, as a function from a trial to its arguments.

    What has a counterpart is suggested. A choice that a study cannot store, as a list, is suggested by its text. Grids
    are enumerated: trial k has point k of all grids together, and after the last point the first comes again. What is
    left (`randn`, `sample_from`, ...) is drawn, from random streams of the trial and the parameter: a trial has the
    same values in each session. The functions of `sample_from` find the streams of Python, numpy and torch seeded so; a
    generator of their own they must seed themselves. Constants are passed on.

    Args:
        entries: names to domains, grids, parameters and constants.
        seed: of the values that are drawn.

    Attributes:
        parameters: what is suggested; None if nothing is.
        drawn: the names that are drawn and not learned.
        grids: the values to be enumerated, by name.
        constants: by name.

    Raises:
        SpaceError: an entry holds no value, has a domain inside it, or cannot be drawn from.
    """

    def __init__(self, entries: Mapping[str, object], seed: int) -> None:
        self.__name__ = "hp_space"
        self._seed = seed
        self._names = list(entries)
        self._by_text: dict[str, dict[Scalar, object]] = {}
        self._domains: dict[str, sample.Domain] = {}
        self.grids: dict[str, list[object]] = {}
        self.constants: dict[str, object] = {}
        parameters: dict[str, Parameter] = {}
        for name, entry in entries.items():
            if not isinstance(name, str) or not name.strip():
                raise SpaceError(f"A parameter's name must be text, but got {name!r}.")
            try:
                self._add(name, entry, parameters)
            except SpaceError as error:
                raise SpaceError(f"{name!r}: {error}") from error
        self.parameters = SearchSpace(parameters) if parameters else None
        for name in () if self.parameters is None else self.parameters.all_parameters():
            if name in entries and name not in parameters:
                raise SpaceError(f"{name!r} is {entries[name]!r}, and a parameter of a branch as well; drop one.")
        self.drawn = tuple(self._domains)

    def _add(self, name: str, entry: object, parameters: dict[str, Parameter]) -> None:
        if is_grid(entry):
            self.grids[name] = grid_values(entry)
        elif isinstance(entry, sample.Categorical):
            choices = choices_of(entry.categories)
            parameters[name] = Categorical(tuple(choices))
            if any(choice is not value for choice, value in choices.items()):
                self._by_text[name] = choices
        elif isinstance(entry, (Float, Int, Categorical)):
            parameters[name] = _with_branches(entry)
        elif not isinstance(entry, sample.Domain):
            check_flat(entry)
            self.constants[name] = entry
        elif (parameter := counterpart(entry)) is not None:
            parameters[name] = parameter
        else:
            check_can_be_drawn(entry)
            self._domains[name] = entry

    @property
    def is_exact(self) -> bool:
        """True if `parameters` are the whole space."""
        return not (self._domains or self.grids or self.constants or self._by_text)

    @property
    def goes_by_number(self) -> bool:
        """True if a trial's number decides what is not suggested."""
        return bool(self.grids or self._domains)

    @property
    def n_points(self) -> int:
        """How many points all grids have together; 1 if there are none."""
        return math.prod(len(values) for values in self.grids.values())

    def __call__(self, trial: Trial) -> dict[str, object]:
        """Return the arguments of a trial."""
        values: dict[str, Any] = copy.deepcopy({**self.constants, **self._point(trial.number)})
        if self.parameters is not None:
            values |= self.parameters.suggest(trial)
        for name, choices in self._by_text.items():
            values[name] = copy.deepcopy(choices[values[name]])
        Draw(self._domains, values, f"{self._seed}/{trial.number}").all()
        return {name: values[name] for name in dict.fromkeys([*self._names, *values])}

    def __repr__(self) -> str:
        groups = {"suggested": self.parameters, "drawn": self.drawn, "grid": self.grids, "constant": self.constants}
        return f"RaySpace({'; '.join(f'{kind}: ' + ', '.join(names) for kind, names in groups.items() if names)})"

    def _point(self, number: int) -> dict[str, object]:
        """Return a point of the grids, in the order of Ray: the first by name changes fastest."""
        point = {}
        for name in sorted(self.grids):
            number, place = divmod(number, len(self.grids[name]))
            point[name] = self.grids[name][place]
        return point


class RayFunction:
    """A user's function of a trial, with which domains of Ray Tune that it returns are treated as in `RaySpace`.

    Attributes:
        drawn: the names that were drawn so far.
        goes_by_number: whether a trial's number has decided anything so far.
    """

    def __init__(self, function: SpaceFunction, seed: int) -> None:
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__wrapped__ = function
        self._seed = seed
        self.drawn: tuple[str, ...] = ()
        self.goes_by_number = False

    def __call__(self, trial: Trial) -> object:
        """Return the arguments of a trial, or what the function returned if nothing in it is Ray's."""
        returned = self.__wrapped__(trial)
        if not isinstance(returned, Mapping) or not has_entries_of_ray(returned):
            return returned
        space = RaySpace(returned, self._seed)
        self.goes_by_number |= space.goes_by_number
        new = tuple(name for name in space.drawn if name not in self.drawn)
        if new:
            logger.warning("hp_space: drawn at random in each trial, not learned from other trials: %s", ", ".join(new))
            self.drawn += new
        return space(trial)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def _with_branches(parameter: Parameter) -> Parameter:
    """Return one of our parameters, with the domains in its branches translated."""
    if not isinstance(parameter, Categorical) or not holds_ray(parameter):
        return parameter
    branches: dict[Scalar, dict[str, Parameter]] = {}
    for choice, branch in parameter.branches.items():
        translated = from_ray(branch, 0)
        if isinstance(translated, RaySpace):
            raise SpaceError(
                f"its branch {choice!r} can hold parameters, and domains with a counterpart, but is {translated!r}."
            )
        branches[choice] = dict(translated)
    return Categorical(parameter.choices, default=parameter.default, prior=parameter.prior, branches=branches)
