"""The search space: named parameters, with branches that exist only under a choice."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import SpaceError, one_of
from ...system.json_types import JsonObject
from ...system.spelling import nearest_name
from .foreign_parameters import what_is_foreign
from .parameters import Categorical, Float, Int, Parameter, Scalar

if TYPE_CHECKING:
    from ..trial import Trial


class SearchSpace(Mapping[str, Parameter]):
    """An immutable mapping from parameter names to parameters, checked when it is created.

    Names are training arguments (``learning_rate``) or dotted (``model.hidden_size``, ``optim.momentum``). A name may
    occur in several branches if it has the same parameter in each.

    Args:
        parameters: names to `Float`, `Int` or `Categorical`; the branches of a `Categorical` are spaces themselves.

    Raises:
        SpaceError: the space is empty, a name or a parameter is invalid, or a name has two different parameters.

    Examples:
        >>> space = SearchSpace({
        ...     "learning_rate": Float(1e-5, 1e-3, log=True),
        ...     "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.99)}}),
        ... })
        >>> list(space.all_parameters())
        ['learning_rate', 'optim', 'optim.momentum']
        >>> space.contains({"learning_rate": 1e-4, "optim": "adamw_torch", "optim.momentum": 0.9})
        False
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        if not isinstance(parameters, Mapping):
            raise SpaceError(
                f"A search space is a mapping of names to Float, Int or Categorical, but got {parameters!r}."
            )
        if not parameters:
            raise SpaceError("The search space is empty; it needs at least one parameter.")
        self._parameters = dict(parameters)
        _check_parameters(self._parameters)
        _check_names(self)

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __repr__(self) -> str:
        return f"SearchSpace({self._parameters!r})"

    def walk(self) -> Iterator[tuple[str, Parameter, dict[str, Scalar]]]:
        """Yield every parameter with the choices under which it exists: (name, parameter, conditions)."""
        yield from _walk(self._parameters, {})

    def all_parameters(self) -> dict[str, Parameter]:
        """Return every parameter by name, branches included, in order of first appearance."""
        return {name: parameter for name, parameter, _ in self.walk()}

    def suggest(self, trial: Trial) -> dict[str, Scalar]:
        """Ask `trial` for a value of every parameter that exists, opening branches as choices are made."""
        return _suggest(self._parameters, trial)

    def sample(self, generator: random.Random) -> dict[str, Scalar]:
        """Draw one set of values at random, uniformly in each parameter (in its logarithm if `log`)."""
        return _draw(self._parameters, lambda parameter: _draw_one(parameter, generator))

    def defaults(self) -> dict[str, Scalar]:
        """Return the default of every parameter that has one, following the branches of default choices."""
        return _defaults(self._parameters)

    def priors(self) -> dict[str, Scalar]:
        """Return the priors of the parameters that have one.

        Examples:
            >>> SearchSpace({"learning_rate": Float(1e-5, 1e-3, prior=2e-5), "seed": Int(0, 9)}).priors()
            {'learning_rate': 2e-05}
        """
        return {name: each.prior for name, each in self.all_parameters().items() if each.prior is not None}

    def contains(self, values: Mapping[str, object]) -> bool:
        """Return whether `values` has exactly the parameters that exist, each with an allowed value."""
        expected = _draw_existing(self._parameters, values)
        return expected is not None and expected == set(values)

    def describe(self) -> JsonObject:
        """Return the space as JSON-ready values; equal spaces have equal descriptions."""
        return {name: _describe(parameter) for name, parameter in self._parameters.items()}

    @classmethod
    def from_description(cls, described: Mapping[str, object]) -> SearchSpace:
        """Return the space from its description (see `describe`), possibly read from JSON.

        Raises:
            SpaceError: the description is not that of a space.

        Examples:
            >>> space = SearchSpace({"learning_rate": Float(1e-5, 1e-3, log=True)})
            >>> SearchSpace.from_description(space.describe()) == space
            True
        """
        return cls({name: _parameter(name, each) for name, each in described.items()})


def default_space() -> SearchSpace:
    """Return the space that is searched if none is given; the same as in transformers.

    >>> list(default_space())
    ['learning_rate', 'num_train_epochs', 'seed', 'per_device_train_batch_size']
    """
    return SearchSpace(
        {
            "learning_rate": Float(1e-6, 1e-4, log=True),
            "num_train_epochs": Int(1, 5),
            "seed": Int(1, 40),
            "per_device_train_batch_size": Categorical((4, 8, 16, 32, 64)),
        }
    )


def _check_parameters(parameters: Mapping[str, object]) -> None:
    for name, parameter in parameters.items():
        if not isinstance(name, str) or not name.strip():
            raise SpaceError(f"A parameter's name must be text, but got {name!r}.")
        if name.startswith(".") or name.endswith("."):
            raise SpaceError(
                f"The parameter {name!r} needs a name on both sides of its dot, as in 'model.hidden_size'."
            )
        foreign = what_is_foreign(parameter)
        if foreign is not None:
            raise SpaceError(f"{name!r} is {foreign}.")
        if not isinstance(parameter, (Float, Int, Categorical)):
            raise SpaceError(
                f"{name!r} is {parameter!r} ({type(parameter).__name__}); a parameter is a Float, an Int or a "
                "Categorical. To fix a value, set it in the TrainingArguments."
            )
        if isinstance(parameter, Categorical):
            for branch in parameter.branches.values():
                _check_parameters(branch)


def _check_names(space: SearchSpace) -> None:
    seen: dict[str, tuple[Parameter, list[dict[str, Scalar]]]] = {}
    for name, parameter, conditions in space.walk():
        if name in conditions:
            raise SpaceError(f"{name!r} occurs again inside its own branch {conditions[name]!r}.")
        if name not in seen:
            seen[name] = (parameter, [conditions])
            continue
        earlier, places = seen[name]
        if earlier != parameter:
            raise SpaceError(
                f"{name!r} is two different parameters: {earlier!r} and {parameter!r}; give one another name."
            )
        for where in places:
            if all(conditions.get(key, value) == value for key, value in where.items()):
                raise SpaceError(f"{name!r} occurs twice under the same choices {where or 'at the top'}; drop one.")
        places.append(conditions)


def _walk(
    parameters: Mapping[str, Parameter], conditions: dict[str, Scalar]
) -> Iterator[tuple[str, Parameter, dict[str, Scalar]]]:
    for name, parameter in parameters.items():
        yield name, parameter, conditions
        if isinstance(parameter, Categorical):
            for choice, branch in parameter.branches.items():
                yield from _walk(branch, {**conditions, name: choice})


def _suggest(parameters: Mapping[str, Parameter], trial: Trial) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for name, parameter in parameters.items():
        values[name] = trial.suggest(name, parameter)
        values.update(_suggest(_branch(parameter, values[name]), trial))
    return values


def _draw(parameters: Mapping[str, Parameter], choose: Callable[[Parameter], Scalar]) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for name, parameter in parameters.items():
        values[name] = choose(parameter)
        values.update(_draw(_branch(parameter, values[name]), choose))
    return values


def _defaults(parameters: Mapping[str, Parameter]) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for name, parameter in parameters.items():
        if parameter.default is not None:
            values[name] = parameter.default
            values.update(_defaults(_branch(parameter, parameter.default)))
    return values


def _draw_existing(parameters: Mapping[str, Parameter], values: Mapping[str, object]) -> set[str] | None:
    """Return the names that exist under `values`, or None if one is absent or out of range."""
    existing: set[str] = set()
    for name, parameter in parameters.items():
        if name not in values or not parameter.contains(values[name]):
            return None
        inner = _draw_existing(_branch(parameter, values[name]), values)
        if inner is None:
            return None
        existing |= {name} | inner
    return existing


def _branch(parameter: Parameter, value: Any) -> Mapping[str, Parameter]:
    return parameter.branches.get(value, {}) if isinstance(parameter, Categorical) else {}


def _draw_one(parameter: Parameter, generator: random.Random) -> Scalar:
    if isinstance(parameter, Categorical):
        return generator.choice(parameter.choices)
    if parameter.step is not None and not parameter.log:
        steps = int((parameter.high - parameter.low) / parameter.step + 1e-9)
        return min(parameter.low + generator.randint(0, steps) * parameter.step, parameter.high)
    if parameter.log:
        value = math.exp(generator.uniform(math.log(parameter.low), math.log(parameter.high)))
    else:
        value = generator.uniform(parameter.low, parameter.high)
    value = min(max(value, parameter.low), parameter.high)
    return round(value) if isinstance(parameter, Int) else value


def _describe(parameter: Parameter) -> dict[str, object]:
    kind = type(parameter).__name__
    if isinstance(parameter, Categorical):
        branches = [
            {"choice": choice, "parameters": {name: _describe(each) for name, each in branch.items()}}
            for choice, branch in parameter.branches.items()
        ]
        return {"kind": kind, "choices": list(parameter.choices), **({"branches": branches} if branches else {})}
    described = dataclasses.asdict(parameter)
    for given in ("default", "prior"):  # neither changes what can be tried
        described.pop(given)
    return {"kind": kind, **described}


_KINDS: dict[str, type[Float | Int | Categorical]] = {"Float": Float, "Int": Int, "Categorical": Categorical}


def _parameter(name: str, described: object) -> Parameter:
    """Return the parameter that a mapping with its `kind` and its arguments describes."""
    values = dict(described) if isinstance(described, Mapping) else {}
    kind = _KINDS.get(str(values.pop("kind", "")))
    if kind is None:
        given = described.get("kind") if isinstance(described, Mapping) else None
        if isinstance(given, str):
            raise SpaceError(f"{name!r}: kind {given!r} is none of {one_of(_KINDS)}.{nearest_name(given, _KINDS)}")
        raise SpaceError(
            f"{name!r} is described by {described!r}, which must have a kind, {one_of(_KINDS)}, and its arguments."
        )
    if "branches" in values:
        values["branches"] = {
            each["choice"]: {inner: _parameter(inner, one) for inner, one in each["parameters"].items()}
            for each in values["branches"]
        }
    allowed = [each.name for each in dataclasses.fields(kind)]
    unknown = next((each for each in values if each not in allowed), None)
    if unknown is not None:
        raise SpaceError(
            f"{name!r}: {kind.__name__} does not take {unknown!r}; allowed: {one_of(allowed)}."
            f"{nearest_name(unknown, allowed)}"
        )
    try:
        return kind(**values)
    except TypeError as error:
        raise SpaceError(f"{name!r}: {kind.__name__} cannot be created from {values!r}: {error}") from error
