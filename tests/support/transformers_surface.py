"""The public surface of transformers' trainers and arguments, and of ours: names and signatures."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def public_names(kind: Any) -> set[str]:
    """Return the public names of a class: its members, and the attributes that its methods set on their object."""
    members = {name for name in dir(kind) if not name.startswith("_")}
    return members | {name for base in kind.__mro__ for name in _assigned(base) if not name.startswith("_")}


def _assigned(base: type) -> set[str]:
    """Return the names that the methods of a class assign on `self`, read from its source."""
    if base.__module__.partition(".")[0] not in ("transformers", "hpsearch"):
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def shared_methods(theirs: Any, ours: Any) -> list[str]:
    """Return the public methods that both classes have."""
    names = public_names(theirs) & public_names(ours)
    return sorted(name for name in names if all(callable(getattr(each, name, None)) for each in (theirs, ours)))


def signature_differences(theirs: Any, ours: Any) -> list[str]:
    """Return, in words, what a call of one function can rely on and a call of the other cannot."""
    expected, present = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    found = []
    order = [name for name, each in present.items() if each.kind in _POSITIONAL]
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in present.values())
    for place, (name, each) in enumerate(expected.items()):
        if each.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            if not takes_any:
                found.append(f"**{name} is not taken")
        elif name not in present:
            found.append(f"{name} is not taken")
        elif each.kind in _POSITIONAL and order[place : place + 1] != [name]:
            found.append(f"{name} is in another place")
        elif _default(present[name].default) != _default(each.default) and each.default is not each.empty:
            found.append(f"{name} is {present[name].default!r} by default, not {each.default!r}")
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    needed = [name for name, each in present.items() if each.default is each.empty and each.kind not in optional]
    return found + [f"{name} must be given" for name in needed if name not in expected]


def _default(value: Any) -> Any:
    return getattr(value, "value", value)
