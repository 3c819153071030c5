"""Cast values to the types that training arguments are annotated with, without loss."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from typing import Any

from ..errors import ArgumentTypeError, UnknownArgumentError
from ..system.spelling import nearest_name
from .older_spellings import successor_of_argument


@functools.cache
def number_names(kind: object) -> tuple[str, ...]:
    """Return the arguments that are annotated as numbers, and perhaps None."""
    numbers = {int, float, type(None)}
    accepted = {name: set(_accepted_types(annotation)) for name, annotation in _annotations(kind).items()}
    return tuple(name for name in argument_names(kind) if accepted[name] <= numbers)


@functools.cache
def argument_names(kind: Any) -> tuple[str, ...]:
    """Return the names that the constructor of `kind` accepts, in order."""
    return tuple(each.name for each in dataclasses.fields(kind) if each.init)


def is_of_library(name: str, kind: type) -> bool:
    """Return whether an argument is one of hpsearch or transformers, not one that a user's class adds."""
    bases = [each for each in kind.__mro__ if each.__module__.partition(".")[0] in ("hpsearch", "transformers")]
    return any(name in inspect.get_annotations(each) for each in bases)


def cast_argument(name: str, value: object, kind: type) -> Any:
    """Return `value` as the type that field `name` is annotated with, if that loses nothing.

    Numbers of numpy count as Python numbers; 3.0 is a valid int, 3 a valid float, 3.9 is not an int and text is never
    a number or a truth value.

    Raises:
        UnknownArgumentError: there is no such field.
        ArgumentTypeError: the value cannot be taken without loss.

    Examples:
        >>> from hpsearch import TrainingArguments
        >>> cast_argument("max_steps", 3.0, TrainingArguments), cast_argument("learning_rate", 1, TrainingArguments)
        (3, 1.0)
    """
    annotations = _annotations(kind)
    if name not in annotations or name not in argument_names(kind):
        hint = successor_of_argument(name) or nearest_name(name, argument_names(kind))
        raise UnknownArgumentError(f"{name!r} is not a training argument.{hint}")
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    accepted = _accepted_types(annotations[name])
    for target in accepted:
        cast, fits = _fit(value, target)
        if fits:
            return cast
    wanted = " or ".join(sorted({getattr(target, "__name__", str(target)) for target in accepted}))
    raise ArgumentTypeError(f"{name}={value!r} ({type(value).__name__}) cannot be converted to {wanted} without loss.")


def _fit(value: Any, target: object) -> tuple[object, bool]:
    if target is Any:
        return value, True
    if target is type(None):
        return None, value is None
    if not isinstance(target, type):
        return value, False
    if target in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value, False
        try:
            cast = target(value)
        except (OverflowError, ValueError):  # a whole number beyond floats; an infinite one, or none
            return value, False
        return (cast, True) if cast == value or cast != cast else (value, False)
    return value, isinstance(value, target)


def _accepted_types(annotation: object) -> tuple[object, ...]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(each for option in typing.get_args(annotation) for each in _accepted_types(option))
    if origin is typing.Literal:
        return tuple(type(option) for option in typing.get_args(annotation))
    return (origin or annotation,)


@functools.cache
def _annotations(kind: Any) -> dict[str, object]:
    known: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        namespace = vars(typing).copy()
        namespace.update(vars(__import__(base.__module__, fromlist=["_"])))
        for name, annotation in inspect.get_annotations(base).items():
            try:
                known[name] = eval(annotation, namespace) if isinstance(annotation, str) else annotation  # noqa: S307
            except NameError:
                known[name] = Any
    return known
