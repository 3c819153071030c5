"""One domain of Ray Tune and one of our parameters: the same values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from ray.tune.search import sample

from ...errors import SpaceError
from ...search.space.parameters import Categorical, Float, Int, Parameter, Scalar
from ...search.space.search_space import SearchSpace

_MOST_CHOICES = 1000  # of a range that Ray can express as choices only
_LONGEST_TEXT = 80


def counterpart(domain: Any) -> Float | Int | None:
    """Return the parameter with the same values, learned the same way; None if there is none."""
    sampler: Any = domain.get_sampler()
    q: Any = None
    if isinstance(sampler, sample.Quantized):
        sampler, q = sampler.sampler, sampler.q
        if not q > 0:
            raise SpaceError(f"q must be above 0, but got {q!r}.")
    is_log = isinstance(sampler, sample.LogUniform)
    if not is_log and not isinstance(sampler, sample.Uniform):
        return None
    if isinstance(domain, sample.Float) and q is None:
        return Float(float(domain.lower), float(domain.upper), log=is_log)
    if isinstance(domain, sample.Float) and not is_log:
        lowest, highest = _multiples(float(domain.lower), float(domain.upper), float(q))
        step = Decimal(str(float(q)))
        return Float(float(step * lowest), float(step * highest), step=float(q))
    if isinstance(domain, sample.Integer):
        low, high = _whole(domain.lower), _whole(domain.upper)
        if q is None or q == 1:  # then Ray leaves the upper bound out
            if low >= high:
                raise SpaceError(f"the range from {low} to {high} is empty, as Ray excludes {high}.")
            return Int(low, high - 1, log=is_log)
        lowest, highest = _multiples(low, high, _whole(q))
        return None if is_log else Int(lowest * int(q), highest * int(q), step=int(q))
    return None


def _multiples(low: float, high: float, q: float) -> tuple[int, int]:
    """Return the first and the last multiple of `q` between the bounds, as Ray finds them."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise SpaceError(f"the bounds must be finite, but are {low} and {high}.")
    ends = []
    for bound, inwards in ((low, math.ceil), (high, math.floor)):
        nearest = round(bound / q)
        ends.append(nearest if math.isclose(bound / q, nearest) else inwards(bound / q))
    if ends[0] > ends[1]:
        raise SpaceError(f"the range from {low} to {high} has no multiple of q={q}.")
    return ends[0], ends[1]


def _whole(value: float) -> int:
    if not float(value).is_integer():
        raise SpaceError(f"the bounds and q of whole numbers must be whole, but got {value!r}.")
    return int(value)


def choices_of(values: Sequence[object]) -> dict[Scalar, object]:
    """Return the values by what a study can store of each: themselves, or a text."""
    if not values:
        raise SpaceError("the list of choices is empty; give at least one.")
    check_flat(values)
    found: dict[Scalar, object] = {}
    for place, value in enumerate(map(_plain, values)):
        is_storable = type(value) in (type(None), bool, int, float, str) and value == value
        if is_storable and value not in found:
            found[value] = value
            continue
        text = re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))[:_LONGEST_TEXT]  # the same in each session
        while text in found:
            text += f" ({place})"
        found[text] = value
    return found


def grid_values(entry: Any) -> list[object]:
    """Return the values of a grid."""
    values: Any = entry["grid_search"] if isinstance(entry, dict) else entry.categories
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise SpaceError(f"grid_search takes a list of at least one value, but got {values!r}.")
    check_flat(values)
    return list(map(_plain, values))


def check_flat(value: object) -> None:
    """Check that there is no domain inside a value."""
    if holds_ray(value):
        raise SpaceError(
            f"there is a domain of Ray inside {value!r}; give each a name of its own, with a dot if it is nested "
            "('model.hidden_size'), and use tune.sample_from(lambda config: ...) for one that depends on another."
        )


def check_can_be_drawn(domain: Any) -> None:
    """Check that Ray can draw from a domain; what a function gives is known only in a trial."""
    if isinstance(domain, sample.Function):
        return
    try:
        domain.sample(random_state=np.random.default_rng(0))
    except Exception as error:
        raise SpaceError(f"Ray cannot draw from {type(domain).__name__}{domain.domain_str}: {error}") from error


def is_grid(entry: object) -> bool:
    """Return whether an entry is a grid: `tune.grid_search` gives a dict."""
    if isinstance(entry, sample.Domain):
        return isinstance(entry.sampler, sample.Grid)
    return isinstance(entry, dict) and set(entry) == {"grid_search"}


def has_entries_of_ray(space: Mapping[Any, object]) -> bool:
    """Return whether an entry of a mapping is, or holds, something that Ray would replace."""
    return any(map(holds_ray, space.values()))


def holds_ray(value: object) -> bool:
    """Return whether a value is, or holds at any depth, something that Ray would replace."""
    if isinstance(value, sample.Domain) or is_grid(value):
        return True
    if isinstance(value, Mapping):
        return set(value) == {"eval"} or any(map(holds_ray, value.values()))
    if isinstance(value, Categorical):
        return any(map(holds_ray, value.branches.values()))
    return isinstance(value, (list, tuple)) and any(map(holds_ray, value))


def to_ray(space: SearchSpace) -> dict[str, object]:
    """Return a space as domains of Ray Tune, for the `set_search_properties` of a searcher.

    Steps from a multiple of the step become quantized domains; others become choices, since Ray has no other steps.
    What the searcher proposes is to be read with `from_searcher`.

    Raises:
        SpaceError: a parameter has branches, or too many values that Ray has no domain for.
    """
    return {name: _domain(name, parameter) for name, parameter in space.items()}


def _domain(name: str, parameter: Parameter) -> object:
    if isinstance(parameter, Categorical):
        if any(parameter.branches.values()):
            raise SpaceError(
                f"{name!r} has branches, which Ray's searchers do not support; leave out search_alg: the default "
                "sampler does."
            )
        return sample.choice(list(parameter.choices))
    if isinstance(parameter, Int) and parameter.step == 1:
        return (sample.lograndint if parameter.log else sample.randint)(parameter.low, parameter.high + 1)
    if parameter.step is None:
        return (sample.loguniform if parameter.log else sample.uniform)(parameter.low, parameter.high)
    if Decimal(str(parameter.low)) % Decimal(str(parameter.step)) == 0:
        quantized: Any = sample.qrandint if isinstance(parameter, Int) else sample.quniform
        return quantized(parameter.low, parameter.top, parameter.step)
    n_values = round((parameter.top - parameter.low) / parameter.step) + 1
    if n_values > _MOST_CHOICES:
        raise SpaceError(
            f"{name!r} is {parameter!r}, with {n_values} values that are no multiples of the step. Ray can express "
            f"them only as choices, at most {_MOST_CHOICES} here; make low a multiple of {parameter.step}."
        )
    return sample.choice([_at(parameter, place) for place in range(n_values)])


def from_searcher(name: str, parameter: Parameter, value: object) -> object:
    """Return the proposal of a Ray searcher as a value of `parameter`.

    Searchers give numbers of numpy, whole numbers as floats, and bounds with rounding errors. Some know no steps: what
    lies between two goes to the nearest.

    Raises:
        SpaceError: it lies outside.

    Examples:
        >>> from_searcher("weight_decay", Float(0.1, 0.3, step=0.1), 0.30000000000000004)
        0.3
    """
    found = _plain(value)
    if isinstance(parameter, Categorical):
        if not parameter.contains(found):
            found = next((choice for choice in parameter.choices if choice == found), found)
    elif isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found):
        if parameter.step is not None:
            found = _at(parameter, round((found - parameter.low) / parameter.step))
        else:
            near = (bound for bound in (parameter.low, parameter.high) if math.isclose(found, bound))
            found = float(found if parameter.contains(found) else next(near, found))
    if not parameter.contains(found):
        raise SpaceError(f"The searcher proposed {name}={value!r}, which is not in {parameter!r}.")
    return found


def _at(parameter: Float | Int, place: int) -> float | int:
    """Return the value `place` steps above the lowest."""
    if isinstance(parameter, Int):
        return parameter.low + place * parameter.step
    return float(Decimal(str(parameter.low)) + Decimal(str(parameter.step)) * place)


def _plain(value: object) -> Any:
    """Return a scalar of numpy as Python's; everything else as it is."""
    return value.item() if isinstance(value, np.generic) else value
