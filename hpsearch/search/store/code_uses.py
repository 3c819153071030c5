"""The names that compiled code refers to, stores and changes, read from its instructions without running them.

The instructions are followed with a stack that holds, in place of values, where each comes from: a name, an argument,
an attribute. So it is known which list `x.append(1)` or `x["a"] = 1` changes, also through a local name or a loop.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# Methods that change a list, a dict or a set in place; those of torch that change a tensor end with an underscore.
_CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"),
    *("reverse", "setdefault", "sort", "update"),
}
# Methods that return a part of what they are called of.
_PARTS = {"get", "items", "setdefault", "values"}
# Functions and attributes that show all attributes of an object.
_ALL_ATTRIBUTES = {"asdict", "astuple", "vars", "__dict__"}
_NO_WAY_ON = ("JUMP_FORWARD", "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")


class _Origin(NamedTuple):
    """The origin of a value.

    Attributes:
        kind: "name" of a global or of a value that is enclosed, "argument", "self" (the first argument), "own" (its
            attribute) or "attribute" (of anything else).
        name: of that.
        is_view: whether it is a method that returns a part of the value.
    """

    kind: str
    name: str
    is_view: bool = False


@dataclass
class Uses:
    """The names that code refers to, stores and changes, including those of its inner functions.

    Attributes:
        names: globals that it reads.
        attributes: the names of the attributes that it reads.
        reads_all_attributes: whether it asks an object for all of them, as `vars` does.
        assigned: globals and enclosed values that it gives other values.
        changed: globals, enclosed values and arguments that it changes in place.
        stored: attributes that it assigns, except those of its first argument.
        stored_own: those of its first argument, such as `self`.
        changed_attributes, changed_own: attributes whose values it changes in place.
        given: names of functions, with the names that they are called with.
        changes_arguments: whether it changes an argument in place.
    """

    names: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    reads_all_attributes: bool = False
    assigned: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    stored_own: set[str] = field(default_factory=set)
    changed_attributes: set[str] = field(default_factory=set)
    changed_own: set[str] = field(default_factory=set)
    given: set[tuple[str, str]] = field(default_factory=set)
    changes_arguments: bool = False


@functools.lru_cache(maxsize=4096)
def uses_of(code: types.CodeType) -> Uses:
    """Return the names that the code of a function uses.

    >>> def function(x):
    ...     seen = STORE["seen"]
    ...     seen.append(RATE * x)
    >>> uses = uses_of(function.__code__)
    >>> sorted(uses.names), sorted(uses.changed)
    (['RATE', 'STORE'], ['STORE'])
    """
    uses = Uses()
    names = arguments_of(code)
    arguments = {name: _Origin("argument", name) for name in names}
    if names and names[0] != "cls":
        arguments[names[0]] = _Origin("self", names[0])
    for inner in codes_of(code):
        _Follower(uses, code, arguments, inner).follow()
        if "getattr" in inner.co_names:
            uses.attributes.update(each for each in inner.co_consts if isinstance(each, str))
        uses.reads_all_attributes |= not _ALL_ATTRIBUTES.isdisjoint(inner.co_names)
    return uses


def arguments_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of the arguments of a function."""
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code, and those of the functions and classes inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


class _Follower:
    """Follows the instructions of a code, and notes what they use.

    Args:
        uses: what is found.
        outer: the code of the function.
        arguments: its arguments, which a function inside it may enclose.
        code: of the function itself, or of one inside it.
    """

    def __init__(self, uses: Uses, outer: types.CodeType, arguments: dict[str, _Origin], code: types.CodeType) -> None:
        self._uses, self._outer, self._code = uses, outer, code
        self._enclosed = arguments
        self._locals: dict[str, _Origin | None] = dict(arguments) if code is outer else {}
        self._stack: list[_Origin | None] = []

    def follow(self) -> None:
        """Follow all instructions in their order; after a jump, with the stack that it arrives with."""
        arriving: dict[int, list[_Origin | None]] = {}
        for each in dis.get_instructions(self._code):
            self._stack = arriving.get(each.offset, self._stack)
            before = list(self._stack)
            self._take(each)
            if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
                effect = dis.stack_effect(each.opcode, each.arg, jump=True)
                arriving.setdefault(each.argval, _moved(before, effect))
            if each.opname in _NO_WAY_ON or each.opname.startswith("JUMP_BACKWARD"):
                self._stack = []

    def _take(self, each: dis.Instruction) -> None:
        kind = each.opname
        if kind == "LOAD_SUPER_ATTR":
            self._uses.attributes.add(each.argval)
        own = getattr(self, f"_on_{kind.lower()}", None)
        if own is not None:
            own(each)
        elif kind.startswith("LOAD") and kind.endswith(("_GLOBAL", "_GLOBALS", "_NAME", "DEREF")):
            self._on_name(each)
        elif kind.startswith("LOAD_FAST"):
            loaded = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            self._stack += [self._locals.get(name) for name in loaded]
        elif kind in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"):
            if "GLOBAL" in kind or each.argval in self._outer.co_freevars:
                self._uses.assigned.add(each.argval)
            self._pop(1 if kind.startswith("STORE") else 0)
        else:
            effect = dis.stack_effect(each.opcode, each.arg, jump=False)
            if kind.startswith("POP_"):
                self._pop(-effect)
            else:
                self._stack = _moved(self._stack, effect)

    def _on_name(self, each: dis.Instruction) -> None:
        name = each.argval
        is_argument = "DEREF" in each.opname and name in self._enclosed
        if "DEREF" not in each.opname:
            self._uses.names.add(name)
        origin = self._enclosed[name] if is_argument else _Origin("name", name)
        self._stack += [origin] * dis.stack_effect(each.opcode, each.arg)

    def _on_store_fast(self, each: dis.Instruction) -> None:
        self._locals[each.argval] = self._pop()

    def _on_store_fast_load_fast(self, each: dis.Instruction) -> None:  # of Python 3.13, as the next one
        stored, loaded = each.argval
        self._locals[stored] = self._pop()
        self._stack.append(self._locals.get(loaded))

    def _on_store_fast_store_fast(self, each: dis.Instruction) -> None:
        for name in each.argval:
            self._locals[name] = self._pop()

    def _on_load_attr(self, each: dis.Instruction) -> None:
        owner, name = self._pop(), each.argval
        self._uses.attributes.add(name)
        if name in _CHANGES or (name.endswith("_") and not name.startswith("_")):
            self._change(owner)
        origin = _Origin("own" if owner is not None and owner.kind == "self" else "attribute", name)
        loaded = 1 + dis.stack_effect(each.opcode, each.arg)
        if owner is not None and name in _PARTS and loaded == 2:  # a method and its object, to be called
            origin = owner._replace(is_view=True)
        self._stack += [origin] * loaded

    _on_load_method = _on_load_attr  # of Python 3.11

    def _on_store_attr(self, each: dis.Instruction) -> None:
        owner = self._pop()
        is_own = owner is not None and owner.kind == "self"
        (self._uses.stored_own if is_own else self._uses.stored).add(each.argval)
        self._pop(1 if each.opname == "STORE_ATTR" else 0)

    _on_delete_attr = _on_store_attr

    def _on_store_subscr(self, each: dis.Instruction) -> None:
        self._change(self._at(2))
        self._pop(3 if each.opname == "STORE_SUBSCR" else 2)

    _on_delete_subscr = _on_store_subscr

    def _on_store_slice(self, each: dis.Instruction) -> None:
        self._change(self._at(3))
        self._pop(4)

    def _on_binary_subscr(self, each: dis.Instruction) -> None:
        container = self._at(2)
        self._pop(2)
        self._stack.append(container)

    def _on_binary_op(self, each: dis.Instruction) -> None:
        left = self._at(2)
        self._pop(2)
        if each.argrepr.endswith("="):  # of an array or a list, in place
            self._change(left)
        self._stack.append(left if each.argrepr in ("[]", "+=") else None)

    def _on_copy(self, each: dis.Instruction) -> None:
        self._stack.append(self._at(each.arg or 1))

    def _on_swap(self, each: dis.Instruction) -> None:
        place = each.arg or 1
        if place <= len(self._stack):
            self._stack[-1], self._stack[-place] = self._stack[-place], self._stack[-1]

    def _on_for_iter(self, each: dis.Instruction) -> None:
        self._stack.append(self._at(1))

    def _on_get_iter(self, each: dis.Instruction) -> None:
        """Leave the stack: what an iterator yields is of what it was made from."""

    def _on_unpack_sequence(self, each: dis.Instruction) -> None:
        self._stack += [self._pop()] * (each.arg or 0)

    def _on_precall(self, each: dis.Instruction) -> None:
        """Leave the stack to the call itself; only Python 3.11 has this instruction."""

    def _on_call(self, each: dis.Instruction) -> None:
        count = (each.arg or 0) + 2
        called = [self._at(place) for place in range(count, 0, -1)]
        self._pop(count)
        function = next((found for found in called[:2] if found is not None), None)
        if function is not None and function.kind == "name":
            named = {given.name for given in called[2:] if given is not None and given.kind == "name"}
            self._uses.given.update((function.name, name) for name in named)
        self._stack.append(function._replace(is_view=False) if function is not None and function.is_view else None)

    def _at(self, place: int) -> _Origin | None:
        return self._stack[-place] if place <= len(self._stack) else None

    def _pop(self, count: int = 1) -> _Origin | None:
        top = self._at(1)
        if count:
            del self._stack[-count:]
        return top

    def _change(self, origin: _Origin | None) -> None:
        if origin is None:
            return
        if origin.kind in ("argument", "self"):
            self._uses.changes_arguments = True
        found = {"own": self._uses.changed_own, "attribute": self._uses.changed_attributes}
        found.get(origin.kind, self._uses.changed).add(origin.name)


def _moved(stack: list[_Origin | None], effect: int) -> list[_Origin | None]:
    """Return the stack after an instruction of which only the effect on its depth is known."""
    if effect >= 0:
        return [*stack, *[None] * effect]
    return [*stack[: max(len(stack) + effect - 1, 0)], None] if len(stack) + effect > 0 else []
