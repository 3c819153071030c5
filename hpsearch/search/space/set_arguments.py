"""Training arguments that are set for all trials are not searched: they are taken out of the space."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import SpaceError, UnknownArgumentError
from ...system.spelling import nearest_name
from ..study import SpaceFunction, as_space
from ..trial import Trial
from .parameters import Categorical


def without_set_arguments(
    hp_space: object, arguments: Mapping[str, object], fixed: Collection[str] = ()
) -> tuple[Any, list[str]]:
    """Return a space without the arguments that are set, and the names of those it had; a choice leaves its branch.

    Args:
        hp_space: as in `Trainer.hyperparameter_search`. A function is asked as before, and refused if it suggests one.
        arguments: that are set.
        fixed: the names of those that are no training arguments: trials still have them, with the one value.

    Raises:
        SpaceError: a parameter is in a branch, from where it cannot be taken, or none is left.

    Examples:
        >>> from hpsearch import Float, SearchSpace
        >>> space = SearchSpace({"optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0, 0.99)}})})
        >>> without_set_arguments(space, {"optim": "sgd"})[0]
        {'optim.momentum': Float(0, 0.99)}
    """
    if not arguments:
        return hp_space, []
    space = as_space(hp_space) if hp_space is None else hp_space
    if not isinstance(space, Mapping):
        return (_Refusing(space, frozenset(arguments)) if callable(space) else hp_space), []
    left, found, constants = dict(space), list[str](), dict[str, Categorical]()
    while name := next((each for each in arguments if each in left), None):
        found.append(name)
        parameter, value = left.pop(name), arguments[name]
        if name in fixed:
            constants[name] = _constant(name, value)
        if isinstance(parameter, Categorical) and isinstance(value, Hashable):
            branches: Mapping[Any, Mapping[str, object]] = parameter.branches
            left = {**branches.get(value, {}), **left}
    inside = {name for each in left.values() for name in _in_branches(each)}
    if branched := sorted(inside.intersection(arguments)):
        raise SpaceError(
            f"{branched[0]} is set, but the space searches it in a branch: also set the choice that opens the "
            "branch, or leave it to the search."
        )
    if not found:
        return hp_space, []
    if not left:
        raise SpaceError(f"Nothing is left to search: {', '.join(found)} is set, and the space has no other parameter.")
    return {**constants, **left}, found


def _constant(name: str, value: Any) -> Categorical:
    """Return a parameter that has one value.

    Raises:
        SpaceError: no parameter can have it.
    """
    try:
        return Categorical((value,), default=value)
    except SpaceError as error:
        raise SpaceError(f"{name}={value!r} cannot be set: {error}") from error


def check_set_names(
    arguments: Collection[str], fixed: Collection[str], hp_space: object, known: Collection[str]
) -> None:
    """Check that what is set has an effect.

    Args:
        arguments: the names that are set.
        fixed: those among them that are no training arguments.
        hp_space: as in `Trainer.hyperparameter_search`.
        known: the names of the training arguments.

    Raises:
        UnknownArgumentError: one is neither a training argument nor in the space.
    """
    searched = all_names(hp_space)
    for name in arguments:
        if name in fixed and name not in searched:
            why = "it is neither a training argument nor in the search space"
            if callable(hp_space):
                why = "it is no training argument, and hp_space is a function, so only hp_space gives it to a trial"
            raise UnknownArgumentError(
                f"{name!r} cannot be set: {why}.{nearest_name(name, [*sorted(searched), *known])}"
            )


def all_names(hp_space: object) -> set[str]:
    """Return the names of all parameters of a space, those in branches included; none of a function."""
    space = as_space(hp_space) if hp_space is None else hp_space
    if not isinstance(space, Mapping):
        return set()
    return {*space, *(name for each in space.values() for name in _in_branches(each))}


def start_without(start_with: object, names: Collection[str]) -> object:
    """Return the parameters that a search starts with, without those of these names; what has no others is left out.

    Args:
        start_with: as in `Trainer.hyperparameter_search`; what is none there is returned as it is.
        names: of what is not searched.

    Examples:
        >>> start_without([{"learning_rate": 1e-3, "seed": 1}, {"seed": 2}, "defaults"], ["seed"])
        [{'learning_rate': 0.001}, 'defaults']
    """
    if isinstance(start_with, Mapping):
        return {name: value for name, value in start_with.items() if name not in names} or None
    if isinstance(start_with, (list, tuple)):
        return [left for each in start_with if (left := start_without(each, names)) is not None or each is None]
    return start_with


def _in_branches(parameter: object) -> Iterator[str]:
    """Yield the names in the branches of a parameter; in them may be domains of Ray."""
    for branch in getattr(parameter, "branches", {}).values():
        for name, each in branch.items():
            yield name
            yield from _in_branches(each)


@dataclass(frozen=True)
class _Refusing:
    """A space that is a function, which must not suggest what is set."""

    space: SpaceFunction
    names: frozenset[str]

    def __call__(self, trial: Trial) -> object:
        returned = self.space(trial)
        named = trial.params.values_by_name if returned is None else returned
        if isinstance(named, Mapping) and (both := sorted(self.names.intersection(named))):
            raise SpaceError(f"{both[0]} is set, but hp_space(trial) searches it too: leave one of them out.")
        return returned
