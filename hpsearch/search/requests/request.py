"""One request of the user to a search, as the study's folder holds it."""

from __future__ import annotations

import enum
import math
import time
import uuid
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ...system.json_types import JsonObject
from ..space.parameters import Params
from ..store.checked_json import (
    Unreadable,
    amount,
    as_written,
    items,
    mapping,
    one_of,
    optional,
    printable,
    shown,
    text,
    whole,
)
from ..store.checked_json import fields as checked


class Kind(enum.StrEnum):
    """What a request asks for; see `hpsearch.searching.opened_study.OpenedStudy`, where each has a method."""

    STOP = "stop"
    RETRY = "retry"
    ADD = "add"
    EXTEND = "extend"
    CONFIRM = "confirm"
    PROMOTE = "promote"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    SET = "set"

    @property
    def is_for_new_trial(self) -> bool:
        """Whether the request asks for a new trial, which raises the total by one."""
        return self in (Kind.RETRY, Kind.ADD, Kind.EXTEND)

    @property
    def ends_with_the_search(self) -> bool:
        """Whether the request is in effect only while the search runs that it was made to."""
        return self in (Kind.PAUSE, Kind.UNPAUSE, Kind.SET)


@dataclass(frozen=True)
class Request:
    """A request of the user to a search.

    Attributes:
        kind: what it asks for.
        trial: the number of the trial that it is about; of a new trial, the one that it is like; None: none.
        params: of a new trial; the sampler chooses missing ones.
        arguments: the training arguments of an extended trial, the settings to set, or the trials to repeat and how
            often to train each.
        sessions: the sessions that were at work in the study when it was made.
        made: when, in seconds since 1970.
        id: identifies it.
    """

    kind: Kind
    trial: int | None = None
    params: Params = field(default_factory=dict)
    arguments: JsonObject = field(default_factory=dict)
    sessions: tuple[str, ...] = ()
    made: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def __str__(self) -> str:
        """Return the request as in a command: ``add --like 7 learning_rate=0.0003``."""
        like = "" if self.trial is None else f" --like {self.trial}" if self.kind is Kind.ADD else f" {self.trial}"
        if self.kind is Kind.CONFIRM:
            trials, repeats = (self.arguments[each] for each in OF_A_CONFIRMATION)
            return f"confirm --repeats {repeats} --top {len(trials)}"
        given = {} if self.kind is Kind.RETRY else {**self.params, **self.arguments}
        if self.kind is Kind.EXTEND:
            given = self.arguments
        return f"{self.kind.value}{like}{''.join(_bare(f' {name}={value}') for name, value in given.items())}"

    @property
    def origin(self) -> JsonObject:
        """What the record of a new trial says of the request; see `TrialRecord.origin`."""
        return {"request": self.id, "kind": self.kind.value, "trial": self.trial, "arguments": dict(self.arguments)}

    def to_json(self) -> JsonObject:
        """Return the request as JSON-ready values."""
        return {**asdict(self), "kind": self.kind.value, "sessions": list(self.sessions)}

    @classmethod
    def from_json(cls, values: object) -> Request:
        """Return a request from its fields, as they were read from a file.

        Raises:
            Unreadable: a field has a type, or a value, that no request has.
        """
        read = checked(values, _FIELDS, ("kind", "id"))
        known = {each.name for each in fields(cls)}
        unknown = next((name for name in read if name not in known), None)
        if unknown is not None:
            raise Unreadable(f"this version of hpsearch does not know its field {unknown!r}")
        _check_arguments(read["kind"], read.get("arguments", {}))
        return cls(**read)


SETTINGS, LENGTHS = ("n_trials", "timeout"), ("num_train_epochs", "max_steps")
OF_A_CONFIRMATION = ("trials", "repeats")
_ALLOWED = {Kind.SET: SETTINGS, Kind.EXTEND: LENGTHS, Kind.CONFIRM: OF_A_CONFIRMATION}


def is_allowed(name: str, value: object) -> bool:
    """Return whether a setting or a length has an allowed value: a whole number of trials or steps, else a number.

    >>> is_allowed("n_trials", 50), is_allowed("max_steps", 1.5), is_allowed("timeout", float("inf"))
    (True, False, False)
    """
    if name == "trials":
        numbers = value if isinstance(value, list) else []
        are_unique = len({str(each) for each in numbers}) == len(numbers) > 0
        return are_unique and all(type(each) is int and each >= 0 for each in numbers)
    if name in ("n_trials", "max_steps", "repeats"):
        return type(value) is int and value >= (2 if name == "repeats" else 1)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _check_arguments(kind: Kind, arguments: JsonObject) -> None:
    if kind is Kind.CONFIRM and set(arguments) != set(OF_A_CONFIRMATION):
        raise Unreadable(f"a request to confirm has {', '.join(OF_A_CONFIRMATION)}, not {shown(arguments)}")
    for name, value in arguments.items():
        if name not in _ALLOWED.get(kind, ()) or not is_allowed(name, value):
            raise Unreadable(f"a request to {kind.value} cannot have {printable(name)}={shown(value)}")


def _bare(text: str) -> str:
    """Return a text on one line, so that it cannot act on a terminal."""
    return printable(text).replace("\n", "\\n")


def _values(value: Any) -> Any:
    return mapping(as_written, text)(value)


_FIELDS = {
    "kind": lambda value: Kind(one_of(list(Kind))(value)),
    "trial": optional(whole),
    "params": _values,
    "arguments": _values,
    "sessions": items(text),
    "made": amount,
    "id": text,
}
