"""The parameters that population-based training perturbs: check them, and add those that only the scheduler names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler
from ray.tune.search import sample

from ...errors import InvalidInputError, SpaceError, StudyError, UnknownArgumentError
from ...search.space.parameters import Categorical, Parameter
from ...search.space.search_space import default_space
from ...search.space.static_checks import TakesParameters
from ...search.study import SpaceFunction
from ...search.trial import Trial
from ...system.spelling import nearest_name
from .ray_domains import counterpart


def mutations_of(scheduler: TrialScheduler | None) -> dict[str, object]:
    """Return the mutations of a scheduler of population-based training: names to lists, domains or functions.

    PB2 has bounds in place of lists; they become domains.
    """
    if not isinstance(scheduler, PopulationBasedTraining):
        return {}
    bounds = getattr(scheduler, "_hyperparam_bounds", None)
    if bounds is None:
        return dict(scheduler._hyperparam_mutations)
    return {name: each if isinstance(each, Mapping) else sample.uniform(*each) for name, each in bounds.items()}


def check_perturbations(scheduler: TrialScheduler | None, recipe: TakesParameters) -> None:
    """Check that what a scheduler perturbs can change while a trial trains, and takes the values that are known.

    Raises:
        StudyError: names or values are refused; the message says all of them.
    """
    about = f"scheduler={type(scheduler).__name__} perturbs"
    refused = []
    for name, values in mutations_of(scheduler).items():
        try:
            _check_mutation(name, values, recipe)
        except InvalidInputError as error:
            refused.append(f"{name!r}{error}")
    if len(refused) == 1:
        raise StudyError(f"{about} {refused[0]}")
    if refused:
        raise StudyError("\n  ".join([f"{about} what it cannot:", *refused]))


def _check_mutation(name: str, values: object, recipe: TakesParameters) -> None:
    """Raise an error whose message continues after the name, if a parameter cannot be perturbed with these values."""
    if isinstance(values, Mapping):
        raise StudyError(" with a dict; give each parameter in it its own name, such as 'optim.momentum'.")
    try:
        recipe.check_changeable(name)
    except UnknownArgumentError as error:
        raise StudyError(f": {error}") from error
    except InvalidInputError as error:
        raise StudyError(
            f": {error} Move it from the scheduler to hp_space, where it does not change during a trial."
        ) from error
    for value in _known_values(values):
        try:
            recipe.check_parameter(name, value)
        except InvalidInputError as error:
            raise StudyError(f" with the value {value!r}: {error}") from error


def check_perturbed(scheduler: TrialScheduler, known: Collection[str]) -> None:
    """Check that the parameters that a scheduler changes are among the `known` ones of a trial.

    Raises:
        StudyError: one is not, as in a trial that was begun with another scheduler.
    """
    for name in mutations_of(scheduler):
        if name not in known:
            raise StudyError(
                f"scheduler={type(scheduler).__name__} perturbs {name!r}, which the trial does not have; remove it, "
                f"or pass another study_name.{nearest_name(name, known)}"
            )


def _known_values(values: object) -> list[object]:
    if isinstance(values, (list, tuple)):
        if not values:
            raise StudyError(" with an empty list; give at least one value.")
        return list(values)
    if isinstance(values, sample.Categorical):
        return list(values.categories)
    try:
        parameter: Parameter | None = counterpart(values) if isinstance(values, sample.Domain) else None
    except SpaceError as error:
        raise StudyError(f": {error}") from error
    return [] if parameter is None else list(parameter.edges())


def with_perturbed(hp_space: object, scheduler: TrialScheduler | None) -> object:
    """Return a search space in which the parameters are that only a scheduler names, as Ray adds them to a config.

    A list is a choice, a domain stays one, a function is drawn from for each trial.

    Args:
        hp_space: what the user gave: a mapping, a function of a trial, or None for the default space.
        scheduler: of Ray; most perturb nothing.
    """
    entries = {name: _entry(values) for name, values in mutations_of(scheduler).items()}
    if not entries:
        return hp_space
    if hp_space is None:
        hp_space = default_space()
    if isinstance(hp_space, Mapping):
        known = _all_names(hp_space)
        missing = {name: each for name, each in entries.items() if name not in known}
        return {**hp_space, **missing} if missing else hp_space
    if isinstance(hp_space, type) or not callable(hp_space):
        return hp_space
    return _WithPerturbed(hp_space, entries)


class _WithPerturbed:
    """A user's function of a trial, which returns the parameters too that only the scheduler names."""

    def __init__(self, function: SpaceFunction, entries: Mapping[str, object]) -> None:
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__wrapped__ = function
        self._entries = entries

    def __call__(self, trial: Trial) -> object:
        returned = self.__wrapped__(trial)
        suggested = trial.params.values_by_name
        given = dict(suggested) if returned is None else returned
        if not isinstance(given, Mapping):
            return given
        missing = {name: each for name, each in self._entries.items() if name not in given and name not in suggested}
        return {**given, **missing} if missing else returned

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def _entry(values: Any) -> object:
    if isinstance(values, (list, tuple)):
        return sample.choice(list(values))
    if isinstance(values, sample.Domain):
        return values
    return sample.Function(_Drawn(values))


class _Drawn:
    """A function without arguments, in a form that Ray's `sample_from` never passes a config to."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def __call__(self) -> object:
        return self._function()


def _all_names(space: Mapping[str, object]) -> set[str]:
    """Return the names of a space, those in branches included."""
    found = set(space)
    for entry in space.values():
        for branch in entry.branches.values() if isinstance(entry, Categorical) else ():
            found |= _all_names(branch)
    return found
