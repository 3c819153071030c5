"""Short texts that tell whether a function has changed: its code, its constants and what it refers to.

Taken from the compiled code, so that comments, docstrings, formatting and positions do not count, and functions of a
notebook or a shell have one too. What the packages of the environment define counts by its name: their versions are
recorded apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import json
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PLAIN = (str, int, float, complex, bool, bytes, type(None), type(...))
_CONTAINERS = (tuple, list, set, frozenset, dict)
_DEEPEST, _MOST = 12, 1_000
# Names by which code changes a list, a dict or a set in place: what it holds is no constant then.
_CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
    *("reverse", "setdefault", "sort", "update"),
}
_STORES = ("STORE_SUBSCR", "DELETE_SUBSCR")
_OF_POSITIONS = ("__doc__", "__firstlineno__", "__static_attributes__", "__module__", "__qualname__")
# What transformers itself changes in the configuration of a model, or writes there of its own.
_OF_TRANSFORMERS = ("problem_type", "transformers_version", "dtype", "torch_dtype")


def fingerprints(functions: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprints of functions by name; without those that have no source."""
    found = {name: function_fingerprint(each) for name, each in functions.items() if each is not None}
    return {name: each for name, each in found.items() if each is not None}


def function_fingerprint(function: Any) -> str | None:
    """Return a text that is the same while a function, a class or a callable object is; None if nothing is known.

    Of what a package defines, its name. Else a hash, after the version of Python whose code it is of.

    >>> texts = ("lambda x: x + 1", "lambda x:  x + 1", "lambda x: x + 2")
    >>> one, same, other = (eval(text, {"__name__": "study"}) for text in texts)
    >>> function_fingerprint(one) == function_fingerprint(same) != function_fingerprint(other)
    True
    >>> function_fingerprint(json.dumps)
    'json.dumps'
    """
    try:
        described = _Description().of(function)
    except Exception:  # of an object that does not let itself be looked at: no fingerprint, and no warning
        return None
    if isinstance(described, str):
        return described
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
    return f"{sys.implementation.cache_tag}:{digest}"


def is_comparable(before: str, now: str) -> bool:
    """Tell whether two fingerprints are of the same version of Python, or names."""
    return before.partition(":")[0] == now.partition(":")[0] or ":" not in before or ":" not in now


class _Description:
    """Describes a function with all that it refers to, as JSON-ready values; each thing once."""

    def __init__(self, seen: dict[int, Any] | None = None, depth: int = 0) -> None:
        # Functions, classes, objects, and the sets that this is inside of; kept alive, so that no id comes up twice.
        self._seen = {} if seen is None else seen
        self._depth = depth

    def of(self, value: Any) -> Any:
        """Return the description of anything; of an object whose inside is not known, its class."""
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            return repr(value)
        if isinstance(value, _CONTAINERS) and id(value) not in self._seen:
            return self._of_container(value) if len(value) <= _MOST and self._depth < _DEEPEST else type(value).__name__
        if id(value) in self._seen or self._depth >= _DEEPEST or len(self._seen) >= _MOST:
            return ["again"]
        self._seen[id(value)] = value
        self._depth += 1
        try:
            return self._of_new(value)
        finally:
            self._depth -= 1

    def _of_new(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return self.of(value.value)
        if isinstance(value, functools.partial):
            return ["partial", self.of(value.func), self.of(value.args), self.of(value.keywords)]
        if isinstance(value, types.MethodType):
            return ["method", self.of(value.__func__), self.of(value.__self__)]
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, type):
            return self._of_class(value)
        if isinstance(value, (staticmethod, classmethod)):
            return [type(value).__name__, self.of(value.__func__)]
        if isinstance(value, property):
            return ["property", *(self.of(each) for each in (value.fget, value.fset))]
        if isinstance(value, types.CodeType):
            return self._of_code(value)
        if isinstance(value, types.BuiltinFunctionType):
            return _name_of(value)
        if hasattr(value, "__wrapped__"):
            return [self.of(type(value)), self.of(value.__wrapped__)]
        return self._of_object(value)

    def _of_container(self, value: Any) -> Any:
        self._depth += 1
        try:
            if isinstance(value, (set, frozenset)):  # its order may differ between processes
                found = {**self._seen, id(value): value}
                inside = [_Description(dict(found), self._depth).of(each) for each in value]
            elif isinstance(value, dict):
                inside = [[self.of(key), self.of(each)] for key, each in value.items()]
            else:
                inside = [self.of(each) for each in value]
        finally:
            self._depth -= 1
        is_ordered = isinstance(value, (tuple, list))
        return [type(value).__name__, *(inside if is_ordered else sorted(inside, key=json.dumps))]

    def _of_function(self, function: types.FunctionType) -> Any:
        if _is_of_package(function.__module__, function.__code__.co_filename):
            return _name_of(function)
        uses = _Uses(function.__code__)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        enclosed = {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}
        known = {**function.__globals__, **enclosed}
        named = {name: known[name] for name in sorted({*uses.read, *enclosed} - uses.assigned) if name in known}
        return {
            "code": self._of_code(function.__code__),
            "defaults": self._constants(uses, dict(enumerate(function.__defaults__ or ()))),
            "keywords": self._constants(uses, function.__kwdefaults__ or {}),
            "names": self._constants(uses, named),
        }

    def _constants(self, uses: _Uses, values: Mapping[Any, Any]) -> dict[str, Any]:
        """Describe what code refers to; without what it may change itself."""
        return {
            str(name): self._referred_to(value, uses)
            for name, value in values.items()
            if not (uses.changes and isinstance(value, (list, set, dict)))
        }

    def _referred_to(self, value: Any, uses: _Uses) -> Any:
        """Describe a value that code refers to; of modules and settings, the attributes that it may read."""
        if isinstance(value, types.ModuleType):
            if _is_of_package(value.__name__, getattr(value, "__file__", None) or ""):
                return ["module", value.__name__]
            return ["module", {name: self.of(vars(value)[name]) for name in uses.attributes if name in vars(value)}]
        is_record = dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_model_config(value)
        if is_record or isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
            plain = {name: each for name, each in vars(value).items() if isinstance(each, _PLAIN)}
            return ["settings", {name: repr(plain[name]) for name in uses.attributes if name in plain}]
        return self.of(value)

    def _of_code(self, code: types.CodeType) -> Any:
        """Describe the instructions; docstrings are never loaded, positions are in none of them."""
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        found: list[Any] = [list(arguments), code.co_posonlyargcount, code.co_flags & 0x2C]
        for instruction in dis.get_instructions(code):
            if instruction.opname == "STORE_NAME" and instruction.argval in _OF_POSITIONS:
                found.pop()
                continue
            argument = instruction.argval
            is_code = isinstance(argument, types.CodeType)
            found.append([instruction.opname, self._of_code(argument) if is_code else _constant(argument)])
        return found

    def _of_class(self, kind: type) -> Any:
        module = sys.modules.get(kind.__module__)
        if _is_of_package(kind.__module__, getattr(module, "__file__", None) or ""):
            return _name_of(kind)
        members = {
            name: self.of(each)
            for name, each in sorted(vars(kind).items())
            if isinstance(each, types.FunctionType) or not name.startswith(("__", "_abc_"))
        }
        return {"class": members, "bases": [self.of(each) for each in kind.__bases__]}

    def _of_object(self, value: Any) -> Any:
        """Describe an object by its class; what can be called, also by what it was made with and has kept."""
        kind = type(value)
        described: list[Any] = ["object", self.of(kind)]
        if _is_model_config(value):
            plain = {name: each for name, each in value.to_dict().items() if not name.startswith("_")}
            return [
                *described,
                repr(sorted((name, str(plain[name])) for name in plain if name not in _OF_TRANSFORMERS)),
            ]
        if callable(value) and not hasattr(value, "state_dict"):  # not a model
            given = dict(_made_with(value))
            return [*described, {name: self.of(each) for name, each in given.items()}]
        return described


class _Uses:
    """What code refers to, functions inside it included.

    Attributes:
        read: the names that are not its own.
        assigned: those of them that it gives other values.
        attributes: the names of attributes, in order.
        changes: whether it may change a list, a dict or a set in place.
    """

    def __init__(self, code: types.CodeType) -> None:
        self.read: set[str] = set()
        self.assigned: set[str] = set()
        names: set[str] = set()
        self.changes = False
        for inner in _codes(code):
            for each in dis.get_instructions(inner):
                if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                    self.read.add(each.argval)
                elif each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
                    each.opname == "STORE_DEREF" and each.argval in code.co_freevars
                ):
                    self.assigned.add(each.argval)
                self.changes |= each.opname in _STORES
            names.update(inner.co_names)
        self.attributes = sorted(names)
        self.changes |= bool(names & _CHANGES)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _constant(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return repr(value) if isinstance(value, (*_PLAIN, tuple)) else type(value).__name__


def _made_with(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that an object was made with, where it keeps them under their names."""
    try:
        parameters = inspect.signature(type(value)).parameters
    except (TypeError, ValueError):
        return
    for name in parameters:
        for kept in (name, f"_{name}"):
            if kept in getattr(value, "__dict__", {}):
                yield name, value.__dict__[kept]
                break


def _is_model_config(value: Any) -> bool:
    """Tell whether an object is a model's configuration of transformers, which is a dataclass since version 5."""
    return any(each.__name__ in ("PretrainedConfig", "PreTrainedConfig") for each in type(value).__mro__)


def _is_empty(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def _name_of(value: Callable[..., Any] | type) -> str:
    return f"{getattr(value, '__module__', None) or 'builtins'}.{value.__qualname__}"


@functools.cache
def _is_of_package(module: str | None, file: str) -> bool:
    """Tell whether a module is hpsearch's, Python's, or that of an installed package."""
    top = (module or "").partition(".")[0]
    if top == "hpsearch" or (top in sys.stdlib_module_names and top != "__main__"):
        return True
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(file.startswith(f"{path}/") for path in paths) or "/site-packages/" in file
