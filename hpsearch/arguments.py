"""The training arguments: transformers' own, plus `ray_scope`, validated copies and lossless casting.

Knows nothing of models, runs or studies.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import types
import typing
from dataclasses import dataclass, field
from typing import Any

import transformers

from .errors import ArgumentError, UnknownArgumentError, nearest_name, one_of
from .scopes import SCOPES

# Fields that transformers fills in from others if they are not given.
_DERIVED = ("greater_is_better", "metric_for_best_model", "eval_steps", "do_eval", "disable_tqdm")
# Fields of transformers that this version cannot honour, and their neutral values: better refused than ignored.
_NOT_HONOURED: dict[str, tuple[Any, ...]] = {
    "auto_find_batch_size": (False,),
    "debug": ("", None, []),
    "deepspeed": (None,),
    "enable_jit_checkpoint": (False,),
    "eval_use_gather_object": (False,),
    "fsdp": (None, "", [], False),
    "include_num_input_tokens_seen": (False, "no"),
    "parallelism_config": (None,),
    "push_to_hub": (False,),
    "skip_memory_metrics": (True,),
    "use_liger_kernel": (False,),
}
_AT_LEAST_ONE = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    """Every argument of a training run; all fields of `transformers.TrainingArguments`, plus `ray_scope`.

    Differences from transformers:

    - `replace(**changes)` gives a new, fully validated object and leaves this one as it is. Values that transformers
      derives from others (`greater_is_better`, `eval_steps`, ...) are derived again for the copy.
    - batch sizes and `gradient_accumulation_steps` below 1 are refused.
    - what this version cannot honour is refused: `auto_find_batch_size`, `debug`, `deepspeed`, `enable_jit_checkpoint`,
      `eval_use_gather_object`, `fsdp`, `include_num_input_tokens_seen`, `parallelism_config`, `push_to_hub`,
      `skip_memory_metrics=False`, `use_liger_kernel`.

    Raises:
        ArgumentError: a value is outside what is allowed.
        ValueError: transformers refuses a combination of values.

    Example:
        >>> args = TrainingArguments("out", learning_rate=1e-3, use_cpu=True)
        >>> args.replace(learning_rate=1e-4).learning_rate, args.learning_rate
        (0.0001, 0.001)
    """

    ray_scope: str = field(
        default="last",
        metadata={
            "help": "Which reports of a trial give its value and its checkpoint in a search: last, all (the best one), "
            "avg, last-5-avg or last-10-avg."
        },
    )

    def __post_init__(self) -> None:
        kind: Any = type(self)
        given = {name: copy.copy(getattr(self, name)) for name in argument_names(kind)}
        if self.ray_scope not in SCOPES:
            raise ArgumentError(
                f"ray_scope={self.ray_scope!r} is not a scope; allowed: {one_of(SCOPES)}."
                f"{nearest_name(str(self.ray_scope), SCOPES)}"
            )
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, but got {getattr(self, name)!r}.")
        for name, neutral in _NOT_HONOURED.items():
            if getattr(self, name, neutral[0]) not in neutral:
                raise ArgumentError(
                    f"{name}={getattr(self, name)!r} is not supported by this version of hpsearch; leave it at "
                    f"{neutral[0]!r}."
                )
        super().__post_init__()
        self._given = given
        self._resolved = {name: copy.copy(getattr(self, name)) for name in given}

    def replace(self, **changes: Any) -> TrainingArguments:
        """Return new arguments with `changes` applied, cast and validated; this object is not touched.

        Attributes that were assigned after construction count as given.

        Raises:
            ArgumentError: a name is not a training argument, a value cannot be cast without loss, or transformers
                refuses the result.
        """
        values = {
            name: copy.copy(given if _is_same(getattr(self, name), self._resolved[name]) else getattr(self, name))
            for name, given in self._given.items()
        }
        values.update({name: cast_argument(name, value, type(self)) for name, value in changes.items()})
        try:
            return type(self)(**values)
        except (ValueError, TypeError, NotImplementedError) as error:
            if isinstance(error, ArgumentError):
                raise
            shown = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            raise ArgumentError(f"TrainingArguments refuses {shown}: {error}") from error


@functools.cache
def argument_names(kind: Any = TrainingArguments) -> tuple[str, ...]:
    """Return the names that the constructor of `kind` accepts, in order."""
    return tuple(each.name for each in dataclasses.fields(kind) if each.init)


def cast_argument(name: str, value: Any, kind: type = TrainingArguments) -> Any:
    """Return `value` as the type that field `name` is annotated with, if that loses nothing.

    Numbers of numpy count as Python numbers; 3.0 is a valid int, 3 a valid float, 3.9 is not an int and text is never
    a number or a truth value.

    Raises:
        UnknownArgumentError: there is no such field.
        ArgumentError: the value cannot be taken without loss.

    Example:
        >>> cast_argument("max_steps", 3.0), cast_argument("learning_rate", 1)
        (3, 1.0)
    """
    annotations = _annotations(kind)
    if name not in annotations or name not in argument_names(kind):
        raise UnknownArgumentError(f"{name!r} is not a training argument.{nearest_name(name, argument_names(kind))}")
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    accepted = _accepted_types(annotations[name])
    for target in accepted:
        cast, fits = _fit(value, target)
        if fits:
            return cast
    wanted = " or ".join(sorted({getattr(target, "__name__", str(target)) for target in accepted}))
    raise ArgumentError(f"{name}={value!r} ({type(value).__name__}) cannot be taken as {wanted} without loss.")


def _fit(value: Any, target: Any) -> tuple[Any, bool]:
    if target is Any:
        return value, True
    if target is type(None):
        return None, value is None
    if not isinstance(target, type):
        return value, False
    if target in (int, float):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = is_number and (target is float or float(value).is_integer())
        return (target(value), True) if fits else (value, False)
    return value, isinstance(value, target)


def _accepted_types(annotation: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(each for option in typing.get_args(annotation) for each in _accepted_types(option))
    if origin is typing.Literal:
        return tuple(type(option) for option in typing.get_args(annotation))
    return (origin or annotation,)


@functools.cache
def _annotations(kind: Any) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        namespace = vars(typing).copy()
        namespace.update(vars(__import__(base.__module__, fromlist=["_"])))
        for name, annotation in inspect.get_annotations(base).items():
            try:
                known[name] = eval(annotation, namespace) if isinstance(annotation, str) else annotation  # noqa: S307
            except NameError:
                known[name] = Any
    return known


def _is_same(left: Any, right: Any) -> bool:
    return left is right or (type(left) is type(right) and bool(left == right))


def adopt(args: transformers.TrainingArguments | None) -> TrainingArguments:
    """Return `args` as our own TrainingArguments; None gives the defaults with `output_dir="tmp_trainer"`.

    Raises:
        ArgumentError: `args` is of a class whose extra fields would be lost.
    """
    if args is None:
        return TrainingArguments(output_dir="tmp_trainer")
    if isinstance(args, TrainingArguments):
        return args
    if type(args) is not transformers.TrainingArguments:
        raise ArgumentError(
            f"args is a {type(args).__module__}.{type(args).__qualname__}; expected hpsearch.TrainingArguments, a "
            "subclass of it, or transformers.TrainingArguments itself. Derive your class from "
            "hpsearch.TrainingArguments."
        )
    kind: Any = transformers.TrainingArguments
    values = {name: getattr(args, name) for name in argument_names(kind)}
    for name in _DERIVED:
        if _is_same(getattr(TrainingArguments(**{**values, name: _default(kind, name)}), name), values[name]):
            values[name] = _default(kind, name)
    return TrainingArguments(**values)


def _default(kind: Any, name: str) -> Any:
    return kind.__dataclass_fields__[name].default
