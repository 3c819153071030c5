"""The three kinds of parameters a search can vary. Plain values, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from fractions import Fraction
from typing import Any, TypeGuard, Union

from ...errors import SpaceError

Scalar = Union[None, bool, int, float, str]
Params = Mapping[str, Any]
"""The parameters of a trial by name. A function of the user may suggest more types than the choices of a space have."""


@dataclass(frozen=True)
class Float:
    """A real number between `low` and `high`, both included.

    Args:
        low, high: the bounds.
        log: sample uniformly in the logarithm; needs ``low > 0``.
        step: allow only ``low, low + step, ...``; cannot be combined with `log`.
        default: the value that `SearchSpace.defaults()` gives.
        prior: where the best value is likely to be. The default sampler, in a search whose trials pause at rungs, tries
            this value in the first trial, and values near it more often; the effect declines as trials accumulate.
            Other searches ignore priors; the first lines of a search report which applies.

    Raises:
        SpaceError: the bounds, the step, the default or the prior contradict each other.

    Examples:
        >>> Float(1e-5, 1e-3, log=True).contains(1e-4)
        True
    """

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    step: float | None = None
    default: float | None = None
    prior: float | None = None

    def __post_init__(self) -> None:
        _check_range(self)
        if self.log and self.step is not None:
            raise SpaceError(f"{self}: log=True and step={self.step} cannot be combined; drop one of them.")

    def __repr__(self) -> str:
        return _as_code(self, repr(self.low), repr(self.high))

    def contains(self, value: object) -> bool:
        """Return whether `value` is a number this parameter can take."""
        if not _is_number(value) or not self.low <= value <= self.high:
            return False
        return self.step is None or _is_multiple(value - self.low, self.step)

    def edges(self) -> tuple[float, ...]:
        """Return the values to try first when checking whether all are acceptable."""
        return (float(self.low), float(self.top))

    @property
    def top(self) -> float:
        """The largest value: `high`, or the last step below it."""
        if self.step is None:
            return self.high
        low, high, step = (Fraction(str(each)) for each in (self.low, self.high, self.step))
        return float(low + (high - low) // step * step)


@dataclass(frozen=True)
class Int:
    """A whole number between `low` and `high`, both included.

    Args:
        low, high: the bounds.
        log: sample uniformly in the logarithm; needs ``low >= 1`` and ``step == 1``.
        step: allow only ``low, low + step, ...``.
        default: the value that `SearchSpace.defaults()` gives.
        prior: where the best value is likely to be. The default sampler, in a search whose trials pause at rungs, tries
            this value in the first trial, and values near it more often; the effect declines as trials accumulate.
            Other searches ignore priors; the first lines of a search report which applies.

    Raises:
        SpaceError: the bounds, the step, the default or the prior contradict each other, or are not whole.

    Examples:
        >>> Int(2, 8, step=2).contains(5)
        False
    """

    low: int
    high: int
    _: KW_ONLY
    log: bool = False
    step: int = 1
    default: int | None = None
    prior: int | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            value = getattr(self, name)
            if not _is_finite(value) or not float(value).is_integer():
                raise SpaceError(
                    f"{self}: {name} must be a whole number, but got {value!r}. For real numbers use Float."
                )
            object.__setattr__(self, name, int(value))
        _check_range(self)
        if self.log and self.step != 1:
            raise SpaceError(f"{self}: log=True and step={self.step} cannot be combined; drop one of them.")

    def __repr__(self) -> str:
        return _as_code(self, repr(self.low), repr(self.high))

    def contains(self, value: object) -> bool:
        """Return whether `value` is a whole number this parameter can take."""
        if not _is_finite(value) or not float(value).is_integer() or not self.low <= value <= self.high:
            return False
        return (int(value) - self.low) % self.step == 0

    def edges(self) -> tuple[int, ...]:
        """Return the values to try first when checking whether all are acceptable."""
        return (int(self.low), int(self.top))

    @property
    def top(self) -> int:
        """The largest value: `high`, or the last step below it."""
        return self.low + (self.high - self.low) // self.step * self.step


@dataclass(frozen=True, init=False)
class Categorical:
    """One of several choices; each choice may open a branch of further parameters.

    Args:
        choices: a sequence of None, bool, int, float or str; or a mapping from choices to the parameters that exist
            only if that choice is taken.
        default: the value that `SearchSpace.defaults()` gives.
        prior: where the best value is likely to be. The default sampler, in a search whose trials pause at rungs, tries
            this value in the first trial, and values near it more often; the effect declines as trials accumulate.
            Other searches ignore priors; the first lines of a search report which applies.
        branches: the same as a mapping of `choices`, for choices that are a sequence.

    Raises:
        SpaceError: there is no choice, one is given twice, or the default or the prior is none of them.

    Examples:
        >>> schedule = Categorical({"constant": {}, "cosine": {"warmup_steps": Float(0.0, 0.3)}})
        >>> schedule.choices, list(schedule.branches["cosine"])
        (('constant', 'cosine'), ['warmup_steps'])
    """

    choices: tuple[Scalar, ...]
    default: Scalar
    prior: Scalar
    branches: Mapping[Scalar, Mapping[str, Parameter]]

    def __init__(
        self,
        choices: Sequence[Scalar] | Mapping[Any, Mapping[str, Parameter] | None],
        *,
        default: Scalar = None,
        prior: Scalar = None,
        branches: Mapping[Any, Mapping[str, Parameter]] | None = None,
    ) -> None:
        if isinstance(choices, Mapping):
            branches = {key: {} if each is None else each for key, each in choices.items()}
        elif isinstance(choices, str) or not isinstance(choices, Sequence):
            raise SpaceError(f"Categorical choices must be a list, a tuple or a mapping, but got {choices!r}.")
        fields = {"choices": tuple(choices), "default": default, "prior": prior}
        for name, value in {**fields, "branches": {} if branches is None else branches}.items():
            object.__setattr__(self, name, value)
        self._check()

    def __repr__(self) -> str:
        branched = {choice: dict(self.branches.get(choice, {})) for choice in self.choices}
        return _as_code(self, repr(branched if any(branched.values()) else list(self.choices)))

    def _check(self) -> None:
        choices = self.choices
        if not choices:
            raise SpaceError("Categorical has no choices; give at least one.")
        for place, choice in enumerate(choices):
            if choice is not None and not isinstance(choice, (bool, int, float, str)):
                raise SpaceError(
                    f"Categorical choice {choice!r} is a {type(choice).__name__}; allowed are None, bool, int, float "
                    "and str, so that a study can store it. Use a name and look the object up in model_init."
                )
            if isinstance(choice, float) and not math.isfinite(choice):
                raise SpaceError(f"Categorical choice {choice!r} is not a finite number.")
            if choice in choices[:place]:
                raise SpaceError(f"Categorical choice {choice!r} is given twice in {choices!r}, or equals another one.")
        if not isinstance(self.branches, Mapping):
            raise SpaceError(
                f"Categorical branches must be a mapping from choices to parameters, but got {self.branches!r}."
            )
        for choice, branch in self.branches.items():
            if not isinstance(branch, Mapping):
                raise SpaceError(
                    f"Categorical choice {choice!r} opens the branch {branch!r} ({type(branch).__name__}); allowed are "
                    "a mapping of names to Float, Int or Categorical, and None. Choices without branches are a list: "
                    "Categorical(['a', 'b'])."
                )
            if not self.contains(choice):
                raise SpaceError(
                    f"Categorical has a branch for {choice!r}, which is not one of the choices {choices!r}."
                )
        for name in ("default", "prior"):
            value = getattr(self, name)
            if value is not None and not self.contains(value):
                raise SpaceError(f"Categorical {name}={value!r} is not one of the choices {choices!r}.")

    def contains(self, value: object) -> bool:
        """Return whether `value` is one of the choices, of the same type."""
        return any(type(value) is type(choice) and value == choice for choice in self.choices)

    def edges(self) -> tuple[Scalar, ...]:
        """Return the values to try first when checking whether all are acceptable: every choice."""
        return self.choices


Parameter = Union[Float, Int, Categorical]


def _as_code(parameter: Parameter, *first: str) -> str:
    """Return the call that makes a parameter, without the arguments that have their default."""
    usual = {each.name: None if each.default is MISSING else each.default for each in fields(parameter)}
    named = {name: getattr(parameter, name) for name in ("log", "step", "default", "prior") if name in usual}
    changed = [f"{name}={value!r}" for name, value in named.items() if value != usual[name]]
    return f"{type(parameter).__name__}({', '.join([*first, *changed])})"


def _check_range(parameter: Float | Int) -> None:
    name = type(parameter).__name__
    low, high, step = parameter.low, parameter.high, parameter.step
    for bound, value in (("low", low), ("high", high)):
        if not _is_finite(value):
            raise SpaceError(f"{name}: {bound} must be a finite number, but got {value!r}.")
    if low > high:
        raise SpaceError(f"{name}: low must not be above high, but got low={low}, high={high}.")
    if parameter.log and low <= 0:
        raise SpaceError(f"{name}: log=True needs low > 0, but got low={low}.")
    if step is not None and not (_is_finite(step) and step > 0):
        raise SpaceError(f"{name}: step must be a finite number above 0, but got {step!r}.")
    for what, given in (("default", parameter.default), ("prior", parameter.prior)):
        if given is not None and not parameter.contains(given):
            allowed = f"[{low}, {high}]" + (f" in steps of {step}" if step not in (None, 1) else "")
            raise SpaceError(f"{name}: {what}={given!r} is outside {allowed}.")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: object) -> TypeGuard[int | float]:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # a whole number that is larger than any real one
        return False


def _is_multiple(distance: float, step: float) -> bool:
    return math.isclose(distance / step, round(distance / step), abs_tol=1e-8)
