"""Parsed JSON, checked: each value has the type that its field must have, and each text can be shown in a terminal.

The values of parameters stay as they are, and are made printable where they are shown.

Pure functions: a check takes a value and returns it, or raises `Unreadable`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ...system.json_types import JsonObject

Check = Callable[[Any], Any]

# Larger numbers of steps, epochs or seconds come from no search, and fit into no database.
_LARGEST = 2**53
_LARGEST_WHOLE = 2**63
# Control characters but newline and tab, what turns the direction of writing, and halves of characters.
_NOT_PRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHOWN = 60


class Unreadable(ValueError):
    """A value from a file is not what its field must hold."""


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped, so that it cannot act on a terminal.

    >>> printable("loss\x1b[2J is 0.1\n")
    'loss\\x1b[2J is 0.1\n'
    """
    return _NOT_PRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def plain(value: object) -> object:
    """Return any value of JSON; its texts are made printable, and its whole numbers fit into 64 bits."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(name)): plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return as_written(value)


def as_written(value: object) -> object:
    """Return any value of JSON as it is, if its whole numbers fit into 64 bits; its texts may not be printable."""
    parts = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for each in parts:
        as_written(each)
    if isinstance(value, int) and not -_LARGEST_WHOLE <= value < _LARGEST_WHOLE:
        raise _refused(value, "a number of at most 64 bits")
    return value


def text(value: object) -> str:
    """Return a text, made printable."""
    if not isinstance(value, str):
        raise _refused(value, "text")
    return printable(value)


def number(value: object) -> Any:
    """Return a number, which may be NaN or infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(value, "a number")
    return plain(value)


def amount(value: Any) -> Any:
    """Return a number of steps, epochs or seconds: finite, and at least 0."""
    if not (math.isfinite(number(value)) and 0 <= value <= _LARGEST):
        raise _refused(value, "a finite number of at least 0")
    return value


def whole(value: Any) -> int:
    """Return a whole number of at least 0."""
    if not isinstance(amount(value), int):
        raise _refused(value, "a whole number of at least 0")
    return int(value)


def is_folder_name(value: Any) -> bool:
    """Return whether a value is one component of a path, as the search names the folders of studies and runs.

    >>> [is_folder_name(name) for name in ("run-3", "lr=0.1", "../run-3", ".", "")]
    [True, True, False, False, False]
    """
    is_plain = isinstance(value, str) and re.fullmatch(r"[^\W_][\w .=,+@-]*", value) and not value.endswith((" ", "."))
    return bool(is_plain) and len(value.encode()) <= 200


def one_of(allowed: Collection[str]) -> Check:
    """Return a check that a text is one of these."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise _refused(value, f"one of {', '.join(sorted(allowed))}")
        return value

    return check


def optional(check: Check) -> Check:
    """Return a check of a value that may be null."""
    return lambda value: None if value is None else check(value)


def items(check: Check) -> Check:
    """Return a check of every item of a list; it gives a tuple."""

    def check_all(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise _refused(value, "a list")
        return tuple(_within(f"item {place}", check, each) for place, each in enumerate(value))

    return check_all


def mapping(check: Check, name: Check = text) -> Check:
    """Return a check of every value of an object, and of every name in it."""

    def check_all(value: object) -> dict[str, object]:
        if not isinstance(value, dict):
            raise _refused(value, "an object")
        return {name(key): _within(repr(key), check, each) for key, each in value.items()}

    return check_all


def fields(value: object, checks: Mapping[str, Check], required: Collection[str]) -> JsonObject:
    """Return an object whose fields are checked one by one; those without a check are `plain`.

    Raises:
        Unreadable: it is no object, a required field is missing, or a field holds something else than it must.
    """
    if not isinstance(value, dict):
        raise _refused(value, "an object")
    for name in required:
        if name not in value:
            raise Unreadable(f"it has no {name!r}")
    return {printable(name): _within(repr(name), checks.get(name, plain), each) for name, each in value.items()}


def _within(where: str, check: Check, value: object) -> object:
    try:
        return check(value)
    except Unreadable as error:
        raise Unreadable(f"{printable(where)}: {error}") from None


def _refused(value: object, allowed: str) -> Unreadable:
    return Unreadable(f"it must be {allowed}, but is {shown(value)}")


def shown(value: object) -> str:
    """Return a value in a few characters that a terminal can show."""
    try:
        shown = printable(repr(value)).replace("\n", "\\n")
    except (ValueError, RecursionError):  # a number with thousands of digits, objects in objects in objects
        shown = f"{type(value).__name__} that is too long to show"
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
