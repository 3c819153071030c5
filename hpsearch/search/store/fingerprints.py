"""Short texts that change if a function changes: its code, its constants or the objects it refers to.

Taken from the compiled code, so that comments, docstrings, formatting and positions do not count, and functions of a
notebook or a shell have one too. What the packages of the environment define counts by its name: their versions are
recorded apart. What code stores or changes while it runs is no constant (`code_uses.py`), so functions are looked at
twice: first to learn what they read and change, then to describe the rest.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import json
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from .code_origin import is_of_package, is_package_class, name_of
from .code_uses import Uses, arguments_of, uses_of
from .constants import changing_attributes, content_of, init_arguments, is_changeable, is_model_config, kept_attributes

# Which values count, and how: fingerprints of another scheme are not compared.
SCHEME = "2"
_PLAIN = (str, int, float, complex, bool, bytes, type(None), type(...))
_CONTAINERS = (tuple, list, set, frozenset, dict)
# How many containers, functions, objects and classes are inside of each other; how many there are, and their items.
_DEEPEST, _MOST, _MOST_ITEMS = 24, 1_000, 100_000
_OF_POSITIONS = ("__doc__", "__firstlineno__", "__static_attributes__", "__module__", "__qualname__")
# What transformers itself changes in the configuration of a model, or writes there of its own.
_OF_TRANSFORMERS = (
    *("architectures", "dtype", "problem_type", "torch_dtype", "transformers_version", "use_cache"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),  # those of the tokenizer
)
# Methods that read attributes to show or compare an object, as those of dataclasses do.
_SHOWING = ("__repr__", "__str__", "__eq__", "__hash__", "__lt__", "__le__", "__gt__", "__ge__")


def fingerprints(functions: Mapping[str, object]) -> dict[str, str]:
    """Return the fingerprints of functions by name; without those that cannot be looked at.

    What one of the functions changes while it runs is a constant of none of them.
    """
    seen = {name: _looked_at(each) for name, each in functions.items() if each is not None}
    state = _State()
    for found in seen.values():
        state.include(found)
    described = {
        name: _text_of(functions[name], dataclasses.replace(state, read=found.read, reads_all=found.reads_all))
        for name, found in seen.items()
        if found is not None
    }
    return {name: each for name, each in described.items() if each is not None}


def function_fingerprint(function: object) -> str | None:
    """Return a text that is the same while a function, a class or a callable object is; None if nothing is known.

    Of what a package defines, its name. Else a hash, after the version of Python whose code it is of.

    >>> texts = ("lambda x: x + 1", "lambda x:  x + 1", "lambda x: x + 2")
    >>> one, same, other = (eval(text, {"__name__": "study"}) for text in texts)
    >>> function_fingerprint(one) == function_fingerprint(same) != function_fingerprint(other)
    True
    >>> function_fingerprint(json.dumps)
    'json.dumps'
    """
    return fingerprints({"": function}).get("")


def is_comparable(before: str, now: str) -> bool:
    """Return whether two fingerprints are of the same version of Python, or names."""
    return before.partition(":")[0] == now.partition(":")[0] or ":" not in before or ":" not in now


@dataclasses.dataclass
class _State:
    """The names that code reads, and those that it stores or changes while it runs.

    Attributes:
        read: names of attributes; None: any.
        reads_all: whether it asks an object for all of its attributes.
        assigned, changed: variables that are given another value, or changed in place; see `_place`.
        stored, changed_attributes: names of attributes of which the same holds, except those of `self`.
        changed_own: names of attributes of `self` that are changed in place; they may be its class's.
    """

    read: set[str] | None = None
    reads_all: bool = False
    assigned: set[tuple[int, str]] = dataclasses.field(default_factory=set)
    changed: set[tuple[int, str]] = dataclasses.field(default_factory=set)
    stored: set[str] = dataclasses.field(default_factory=set)
    changed_attributes: set[str] = dataclasses.field(default_factory=set)
    changed_own: set[str] = dataclasses.field(default_factory=set)

    def include(self, other: _State | None) -> None:
        """Add what other code stores and changes."""
        if other is not None:
            self.assigned |= other.assigned
            self.changed |= other.changed
            self.stored |= other.stored
            self.changed_attributes |= other.changed_attributes
            self.changed_own |= other.changed_own

    def is_read(self, name: str) -> bool:
        """Return whether code may read an attribute."""
        return self.read is None or self.reads_all or name in self.read


def _looked_at(function: object) -> _State | None:
    """Return what a function, and all that it refers to, reads and changes; None if it cannot be looked at."""
    looking = _Description(_State())
    try:
        looking.of(function)
    except Exception:  # of an object that does not let itself be looked at: no fingerprint, and no warning
        return None
    return looking.found


def _text_of(function: object, state: _State) -> str | None:
    try:
        described = _Description(state).of(function)
    except Exception:
        return None
    if isinstance(described, str):
        return described
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
    return f"{sys.implementation.cache_tag}:{digest}"


class _Description:
    """Describes a function with all that it refers to, as JSON-ready values; each thing once.

    Args:
        state: what is known of the code, and is no constant.

    Attributes:
        found: what the code that was described reads and changes.
    """

    def __init__(self, state: _State, seen: dict[int, object] | None = None, depth: int = 0) -> None:
        self._state = state
        self.found = _State(read=set())
        # Functions, classes, objects, and the sets that this is inside of; kept alive, so that no id comes up twice.
        self._seen = {} if seen is None else seen
        self._depth = depth
        self._items = 0

    def of(self, value: object) -> object:
        """Return the description of anything; of an object whose inside is not known, its class."""
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            return repr(value)
        if isinstance(value, _CONTAINERS) and id(value) not in self._seen:
            is_small = len(value) <= _MOST and self._items <= _MOST_ITEMS and self._depth < _DEEPEST
            return self._of_container(value) if is_small else type(value).__name__
        if id(value) in self._seen or self._depth >= _DEEPEST or len(self._seen) >= _MOST:
            return ["again"]
        self._seen[id(value)] = value
        self._depth += 1
        try:
            return self._of_new(value)
        finally:
            self._depth -= 1

    def _of_new(self, value: object) -> object:
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
        if isinstance(value, functools.cached_property):
            return ["cached_property", self.of(value.func)]
        if isinstance(value, types.CodeType):
            return self._of_code(value)
        if isinstance(value, types.BuiltinFunctionType):
            return name_of(value)
        if hasattr(value, "__wrapped__"):
            return [self.of(type(value)), self.of(value.__wrapped__)]
        constant = content_of(value)
        return self._of_object(value) if constant is None else constant

    def _of_container(self, value: Any) -> object:
        self._depth += 1
        self._items += len(value)
        try:
            if isinstance(value, (set, frozenset)):  # its order may differ between processes
                inside = [self._alone(each, {**self._seen, id(value): value}) for each in value]
            elif isinstance(value, dict):
                inside = [[self.of(key), self.of(each)] for key, each in value.items()]
            else:
                inside = [self.of(each) for each in value]
        finally:
            self._depth -= 1
        is_ordered = isinstance(value, (tuple, list))
        return [type(value).__name__, *(inside if is_ordered else sorted(inside, key=json.dumps))]

    def _alone(self, value: object, seen: dict[int, object]) -> object:
        """Describe a value as if it were the first one after those that were seen."""
        other = _Description(self._state, seen, self._depth)
        described = other.of(value)
        self.found.include(other.found)
        self._note_read(other.found.read or (), other.found.reads_all)
        return described

    def _of_function(self, function: types.FunctionType) -> object:
        if is_of_package(function.__module__, function.__code__.co_filename):
            wrapped = getattr(function, "__wrapped__", None)  # a function of the user that a package has decorated
            inside = None if wrapped is None else self.of(wrapped)
            return name_of(function) if inside is None or isinstance(inside, str) else ["wrapped", inside]
        code, uses = function.__code__, uses_of(function.__code__)
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        enclosed = {name: cell.cell_contents for name, cell in cells if not _is_empty(cell)}
        known = {**function.__globals__, **enclosed}
        self._note(function, uses, known)
        named = {
            name: known[name]
            for name in sorted({*uses.names, *enclosed})
            if name in known and not _is_dunder(name) and self._is_constant(_place(function, name), known[name])
        }
        defaults = {
            name: each
            for name, each in _defaults(function).items()
            if not (name in uses.changed and is_changeable(each))
        }
        return {
            "code": self._of_code(code),
            "defaults": {name: self.of(each) for name, each in defaults.items()},
            "names": {name: self._referred_to(each, uses) for name, each in named.items()},
        }

    def _note(self, function: types.FunctionType, uses: Uses, known: Mapping[str, object]) -> None:
        """Note what a function reads, stores and changes."""
        found = self.found
        if function.__name__ not in _SHOWING:
            self._note_read(uses.attributes, uses.reads_all_attributes)
        changed = {*uses.changed, *(name for called, name in uses.given if _changes_arguments(known.get(called)))}
        found.assigned.update(_place(function, name) for name in uses.assigned)
        found.changed.update(_place(function, name) for name in changed)
        is_method = function.__qualname__.rpartition(".")[0].rpartition(".")[2] not in ("", "<locals>")
        found.stored.update(uses.stored if is_method else uses.stored | uses.stored_own)
        found.changed_attributes.update(uses.changed_attributes)
        found.changed_own.update(uses.changed_own)

    def _note_read(self, names: Iterable[str], is_all: bool) -> None:
        assert self.found.read is not None
        self.found.read.update(names)
        self.found.reads_all |= is_all

    def _is_constant(self, place: object, value: object) -> bool:
        """Return whether no code gives a variable another value or changes what it holds."""
        return place not in self._state.assigned and not (place in self._state.changed and is_changeable(value))

    def _is_constant_attribute(self, name: str, value: object) -> bool:
        """Return whether no code gives an attribute of that name another value or changes what it holds."""
        if _is_code(value):
            return True
        is_changed = name in self._state.changed_attributes and is_changeable(value)
        return name not in self._state.stored and not is_changed

    def _is_constant_of_class(self, name: str, value: object) -> bool:
        is_changed = name in self._state.changed_own and is_changeable(value)
        return self._is_constant_attribute(name, value) and not is_changed

    def _referred_to(self, value: object, uses: Uses) -> object:
        """Describe a value that code refers to; of modules, the attributes that it may read."""
        if isinstance(value, types.ModuleType):
            if is_of_package(value.__name__, getattr(value, "__file__", None) or ""):
                return ["module", value.__name__]
            inside = vars(value)
            constant = {
                name: inside[name]
                for name in sorted(uses.attributes & inside.keys())
                if not _is_dunder(name)
                and self._is_constant((id(inside), name), inside[name])
                and self._is_constant_attribute(name, inside[name])
            }
            return ["module", {name: self.of(each) for name, each in constant.items()}]
        return self.of(value)

    def _of_code(self, code: types.CodeType) -> object:
        """Describe the instructions; docstrings are never loaded, positions are in none of them."""
        found: list[object] = [list(arguments_of(code)), code.co_posonlyargcount, code.co_flags & 0x2C]
        for instruction in dis.get_instructions(code):
            if instruction.opname == "STORE_NAME" and instruction.argval in _OF_POSITIONS:
                found.pop()
                continue
            argument = instruction.argval
            is_code = isinstance(argument, types.CodeType)
            found.append([instruction.opname, self._of_code(argument) if is_code else _constant(argument)])
        return found

    def _of_class(self, kind: type) -> object:
        if is_package_class(kind):
            return name_of(kind)
        members = {
            name: self.of(each)
            for name, each in sorted(vars(kind).items())
            if isinstance(each, types.FunctionType)
            or (not name.startswith(("__", "_abc_")) and self._is_constant_of_class(name, each))
        }
        return {"class": members, "bases": [self.of(each) for each in kind.__bases__]}

    def _of_object(self, value: Any) -> object:
        """Describe an object by its class and the attributes that code reads, but no model: that is trained."""
        described: list[object] = ["object", self.of(type(value))]
        if is_model_config(value):
            plain = {name: each for name, each in value.to_dict().items() if not name.startswith("_")}
            return [
                *described,
                repr(sorted((name, str(plain[name])) for name in plain if name not in _OF_TRANSFORMERS)),
            ]
        if hasattr(value, "state_dict"):
            return described
        made_with = dict(init_arguments(value)) if callable(value) else {}
        kept = {name: each for name, each in kept_attributes(value).items() if self._state.is_read(name)}
        changing = changing_attributes(type(value))
        constant = {
            name: each
            for name, each in sorted({**kept, **made_with}.items())
            if name not in changing and self._is_constant_attribute(name, each)
        }
        return [*described, {name: self.of(each) for name, each in constant.items()}]


def _constant(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return repr(value) if isinstance(value, (*_PLAIN, tuple)) else type(value).__name__


def _is_code(value: object) -> bool:
    kinds = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property, type)
    return isinstance(value, kinds)


def _defaults(function: types.FunctionType) -> dict[str, object]:
    """Return the defaults of the arguments of a function, by name."""
    defaults, count = function.__defaults__ or (), function.__code__.co_argcount
    positional = function.__code__.co_varnames[count - len(defaults) : count]
    return {**dict(zip(positional, defaults, strict=True)), **(function.__kwdefaults__ or {})}


def _place(function: types.FunctionType, name: str) -> tuple[int, str]:
    """Return a key that identifies a variable of a function: a cell that it encloses, or a global."""
    code = function.__code__
    if name in code.co_freevars and function.__closure__:
        return id(function.__closure__[code.co_freevars.index(name)]), ""
    return id(function.__globals__), name


def _changes_arguments(function: object) -> bool:
    return isinstance(function, types.FunctionType) and uses_of(function.__code__).changes_arguments


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_empty(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False
