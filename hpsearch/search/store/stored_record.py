"""A trial's record as `trial.json` holds it: every field is checked when it is read, never where it is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ...system.json_types import JsonObject
from ..trial_record import KINDS_OF_REPLICAS, Report, Span, TrialRecord, TrialState, replica_of
from .checked_json import (
    Check,
    Unreadable,
    amount,
    as_written,
    fields,
    is_folder_name,
    items,
    mapping,
    number,
    one_of,
    optional,
    printable,
    shown,
    text,
    whole,
)

# The last second of the year 9999: no later time can be shown.
_LAST_SECOND = 253402300799
_MOST_TRIALS = 1_000_000
_OF_FALLBACKS = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size")


def record_from_json(values: object, folder: Path) -> TrialRecord:
    """Return the record that `TrialRecord.to_json` gave, from the run folder `folder`; no file is looked at.

    Raises:
        Unreadable: a field has a type, or a value, that no search writes.
    """
    read = fields(values, _FIELDS, ("number", "name", "state", "params"))
    _check_known(read, TrialRecord)
    checkpoint = read.get("checkpoint")
    record = TrialRecord(**{**read, "checkpoint": None if checkpoint is None else folder / checkpoint})
    counts = {len(each.values) for each in record.reports} | ({len(record.values)} if record.values else set())
    if len(counts) > 1 or 0 in counts:
        raise Unreadable("its reports and its result have different numbers of objectives")
    return record


def so_far_from_json(values: Any) -> JsonObject:
    """Return the trial state in a checkpoint; the schedule is unchanged, for comparison with the trial's own.

    Raises:
        Unreadable: a field has a type, or a value, that no search writes.
    """
    read = fields(values, _FIELDS_OF_A_CHECKPOINT, ("reports", "seconds", "is_over"))
    return {**read, "schedule": values.get("schedule", [])}


def _check_known(read: JsonObject, kind: type[TrialRecord] | type[Report]) -> None:
    unknown = next((name for name in read if name not in kind.__dataclass_fields__), None)
    if unknown is not None:
        raise Unreadable(f"this version of hpsearch does not know its field {unknown!r}")


def _trial_number(value: Any) -> int:
    if whole(value) >= _MOST_TRIALS:
        raise Unreadable(f"no study has a trial {value}")
    return int(value)


def _run_name(value: object) -> str:
    if not is_folder_name(value):
        raise Unreadable(f"{shown(value)} cannot be the name of a run")
    return str(value)


def _checkpoint_name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"(checkpoint|selected)-[0-9]+", value):
        raise Unreadable(f"{shown(value)} cannot be the name of a checkpoint")
    return value


def _parameter_name(value: str) -> str:
    if not value.strip() or value.startswith(".") or value.endswith("."):
        raise Unreadable(f"{shown(value)} cannot be the name of a parameter")
    return printable(value)


def _metric(value: object) -> object:
    return value if isinstance(value, bool) else number(value)


def _report(value: object) -> Report:
    read = fields(value, _FIELDS_OF_A_REPORT, ("values", "resource", "step", "epoch", "metrics"))
    _check_known(read, Report)
    return Report(**read)


def _span(value: object) -> Span:
    if not isinstance(value, list) or not 2 <= len(value) <= 3:
        raise Unreadable(f"it must be a begin, an end and a place, but is {shown(value)}")
    times = [amount(each) for each in value[:2]]
    if max(times) > _LAST_SECOND:
        raise Unreadable(f"{shown(value)} is after the year 9999")
    return Span(*times, *map(text, value[2:]))


def _part(value: object) -> dict[str, object]:
    return fields(value, {"trial": whole, "step": whole, "arguments": _PARAMETERS}, ("trial", "step", "arguments"))


def _origin(value: object) -> dict[str, object]:
    checks = {"request": text, "kind": text, "trial": optional(whole), "arguments": _PARAMETERS}
    origin = fields(value, checks, tuple(checks))
    replica = replica_of(origin)
    if (replica is None) == (origin["kind"] in KINDS_OF_REPLICAS) or (replica is not None and replica.origin != origin):
        raise Unreadable(f"{shown(origin)} is not the origin of a replica")
    return origin


def _fallback(value: object) -> dict[str, object]:
    return fields(value, {"arguments": _batches, "reason": text}, ("arguments",))


def _batches(value: object) -> dict[str, int]:
    """Return the changes of a trial that has run out of memory: smaller batches, and nothing else."""
    return dict(mapping(_at_least_one, one_of(_OF_FALLBACKS))(value))


def _at_least_one(value: Any) -> int:
    if whole(value) == 0:
        raise Unreadable("it must be at least 1, but is 0")
    return int(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unreadable(f"it must be true or false, but is {shown(value)}")
    return value


_PARAMETERS = mapping(as_written, _parameter_name)
_FIELDS_OF_A_REPORT: dict[str, Check] = {
    "values": items(number),
    "resource": amount,
    "step": whole,
    "epoch": amount,
    "metrics": mapping(_metric),
    "violations": mapping(number),
    "horizon": amount,
    "operations": amount,
}
_FIELDS: dict[str, Check] = {
    "number": _trial_number,
    "name": _run_name,
    "state": lambda value: TrialState(one_of(list(TrialState))(value)),
    "params": _PARAMETERS,
    "arguments": _PARAMETERS,
    "hyperparameters": _PARAMETERS,
    "seed": optional(whole),
    "values": items(number),
    "violations": mapping(number),
    "reports": items(_report),
    "checkpoint": optional(_checkpoint_name),
    "reason": optional(text),
    "traceback": optional(text),
    "seconds": amount,
    "epochs": amount,
    "fraction": optional(amount),
    "fallbacks": items(_fallback),
    "session": whole,
    "schedule": items(_part),
    "spans": items(_span),
    "user_attrs": mapping(as_written, text),
    "origin": optional(_origin),
    "processes": optional(_at_least_one),
}
_FIELDS_OF_A_CHECKPOINT: dict[str, Check] = {
    **{name: _FIELDS[name] for name in ("reports", "schedule", "fallbacks", "seconds")},
    "is_over": _flag,
    "paused_at": whole,
}
