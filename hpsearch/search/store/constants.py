"""Which values are constants: known by their content, and attributes that an object keeps as it was made."""

from __future__ import annotations

import argparse
import dataclasses
import decimal
import fractions
import hashlib
import inspect
import operator
import re
import tempfile
import types
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from .code_origin import is_package_class
from .code_uses import Uses, uses_of

_OF_ARRAYS = ("numpy", "torch")
# The number of values that are taken of a larger array.
_MOST_VALUES = 100_000
# Objects whose `repr` is all there is to know of them.
_SHOWN = (
    *(range, slice, decimal.Decimal, fractions.Fraction, timedelta),
    *(operator.itemgetter, operator.attrgetter),
)
_MAKING = ("__init__", "__new__", "__post_init__")
# Where an object is made with one of these, what it keeps may be something else each time.
_OTHER_EACH_TIME = {
    *("getpid", "id", "mkdtemp", "mkstemp", "monotonic", "now", "perf_counter", "time", "today", "token_hex"),
    *("urandom", "utcnow", "uuid1", "uuid4"),
}
# Methods with these may set any attribute.
_SETS_ANY = {"setattr", "__setattr__", "__dict__", "vars"}
# Classes of these are in every class, and add no attributes.
_BARE = ("abc", "builtins", "typing")


def content_of(value: object) -> object:
    """Describe an object that is a value, such as a path or an array; None for other objects."""
    kind = type(value)
    if isinstance(value, re.Pattern):
        return ["pattern", repr(value.pattern), value.flags]
    if isinstance(value, PurePath):  # a temporary one is another one each time
        is_temporary = value.as_posix().startswith(PurePath(tempfile.gettempdir()).as_posix())
        return ["path", "" if is_temporary else value.as_posix()]
    if isinstance(value, _SHOWN):
        return [kind.__name__, repr(value)]
    if kind.__module__.partition(".")[0] not in _OF_ARRAYS:
        return None
    if "dtype" in kind.__name__.lower():
        return ["dtype", str(value)]
    return ["array", _content(value)] if is_array(value) else None


def is_array(value: Any) -> bool:
    """Return whether something is an array or a tensor with values of its own, which no training changes."""
    is_of_kind = type(value).__module__.partition(".")[0] in _OF_ARRAYS
    has_values = is_of_kind and all(hasattr(value, each) for each in ("dtype", "shape", "reshape", "tolist"))
    return has_values and not getattr(value, "requires_grad", False) and "object" not in str(value.dtype)


def _content(array: Any) -> str:
    """Return a hash of an array's values; of a large one, of some of them."""
    try:
        flat = array.reshape(-1)
        some = flat[:: -(-len(flat) // _MOST_VALUES) or 1].tolist()
    except Exception:  # of a sparse tensor, or one without values
        some = []
    described = f"{array.dtype} {tuple(array.shape)} {some!r}"
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def is_changeable(value: object) -> bool:
    """Return whether a value can be changed in place."""
    return isinstance(value, (list, set, dict, bytearray)) or is_array(value)


def init_arguments(value: object) -> Iterator[tuple[str, object]]:
    """Yield the arguments that an object was made with, where it keeps them under their names.

    Not the files of an object of a package, such as a tokenizer's: they lie elsewhere on another machine.
    """
    try:
        parameters = inspect.signature(type(value)).parameters
    except (TypeError, ValueError):
        return
    for name in parameters:
        for kept in (name, f"_{name}"):
            if kept in getattr(value, "__dict__", {}):
                argument = value.__dict__[kept]
                is_file = isinstance(argument, str) and PurePath(argument).is_absolute()
                if not (is_file and is_package_class(type(value))):
                    yield kept, argument
                break


def kept_attributes(value: object) -> dict[str, object]:
    """Return the attributes of an object of the user; where a package may add some, those that its class sets."""
    kind = type(value)
    held = dict(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value) or isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
        return {**held, **{each.name: getattr(value, each.name) for each in fields if hasattr(value, each.name)}}
    if is_package_class(kind):
        return {}
    making: list[Uses] = []
    others: list[Uses] = []
    for name, uses in _methods_of(kind):
        (making if name in _MAKING else others).append(uses)
    differs = any(_OTHER_EACH_TIME & (each.names | each.attributes) for each in making)
    if differs or any(_SETS_ANY & (each.names | each.attributes) for each in others):
        return {}
    slots = [name for each in kind.__mro__ for name in _names(vars(each).get("__slots__", ()))]
    held.update({name: getattr(value, name) for name in slots if hasattr(value, name)})
    if all(each.__module__ in _BARE or not is_package_class(each) for each in kind.__mro__):
        return held
    own = {name for each in making for name in each.stored_own}
    return {name: each for name, each in held.items() if name in own}


def _names(slots: str | Iterable[str]) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def changing_attributes(kind: type) -> set[str]:
    """Return the attributes that the methods of a class set or change after an object was made, or when asked for."""
    found = {
        name
        for each in kind.__mro__
        for name, member in vars(each).items()
        if hasattr(member, "__get__") and not isinstance(member, types.MemberDescriptorType)
    }
    for name, uses in _methods_of(kind):
        if name not in _MAKING:
            found |= uses.stored_own | uses.changed_own
    return found


def _methods_of(kind: type) -> Iterator[tuple[str, Uses]]:
    """Yield the methods that a user's class and its bases define, by name."""
    for each in kind.__mro__:
        for name, member in vars(each).items() if not is_package_class(each) else ():
            function = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "func", None) or member)
            function = getattr(function, "__func__", function)
            if isinstance(function, types.FunctionType):
                yield name, uses_of(function.__code__)


def is_model_config(value: object) -> bool:
    """Return whether an object is a model's configuration of transformers, which is a dataclass since version 5."""
    return any(each.__name__ in ("PretrainedConfig", "PreTrainedConfig") for each in type(value).__mro__)
