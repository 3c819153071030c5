"""What the last checkpoint of a trial knows of it, where its record does not: it is running, or its process was killed.

The record of a running trial is written when it ends. Until then its reports are in its checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ...system.checkpoint_files import STATE_FILE, TRIAL_FILE
from ...system.json_types import JsonObject
from ..metrics.objective import Objective
from ..metrics.selection import select_report
from ..trial import TrialRecord, TrialState
from .checked_json import Unreadable
from .read_study import read_own_json
from .stored_record import so_far_from_json


class Scored(Protocol):
    """A study: its folder, and what determines the value of a trial."""

    @property
    def folder(self) -> Path:
        """The folder of the study."""

    @property
    def scope(self) -> str:
        """Which reports of a trial give its value."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What is optimised."""


# The callback that keeps a trial's state in its checkpoints; transformers stores states by the name of their class.
REPORTING_CALLBACK = "ReportingCallback"
_PREFIX = "checkpoint-"


def so_far_in(state: Mapping[str, object]) -> JsonObject | None:
    """Return what the trainer state of a checkpoint holds of a trial: its reports, its seconds; None: it holds nothing.

    Raises:
        Unreadable: no search has written it.
    """
    return _so_far(_within(state, "stateful_callbacks", REPORTING_CALLBACK))


def with_last_checkpoints(records: Iterable[TrialRecord], study: Scored) -> list[TrialRecord]:
    """Return records of a study, those of running trials as they were at their last checkpoint.

    A trial without a readable checkpoint, or with none since it was resumed, is unchanged.
    """
    return [_at_checkpoint(each, study) if each.state is TrialState.RUNNING else each for each in records]


def _at_checkpoint(record: TrialRecord, study: Scored) -> TrialRecord:
    folder = study.folder / record.name
    for checkpoint in sorted(folder.glob(f"{_PREFIX}*"), key=_step, reverse=True):
        try:
            found = _read(record, checkpoint)
        except (Unreadable, OSError, RecursionError):
            continue
        if found is not None:
            selected = select_report(found.reports, study.scope, study.objectives)
            return found if selected is None else replace(found, values=selected.values)
    return record


def _read(record: TrialRecord, checkpoint: Path) -> TrialRecord | None:
    """Return a record as a checkpoint continues it; None if the checkpoint is not later, or not one of a trial."""
    state, beside = _contents(checkpoint / STATE_FILE), _contents(checkpoint / TRIAL_FILE)
    so_far = _so_far(beside) or so_far_in(state)
    if so_far is None or so_far["seconds"] < record.seconds:
        return None
    last = so_far["reports"][-1] if so_far["reports"] else None
    epochs = _number(state, "epoch") or _number(beside, "step") or (last.epoch if last else 0.0)
    most = _number(state, "max_steps")
    fraction = _number(state, "global_step") / most if most else (last.fraction if last else 0.0)
    return replace(
        record,
        reports=tuple(so_far["reports"]),
        epochs=max(record.epochs, epochs),
        fraction=max(record.fraction or 0.0, min(1.0, fraction)),
        seconds=so_far["seconds"],
    )


def _so_far(callback: object) -> JsonObject | None:
    kept = _within(callback, "attributes", "so_far")
    return so_far_from_json(kept) if kept else None


def _within(values: Any, *names: str) -> Any:
    for name in names:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _contents(path: Path) -> JsonObject:
    try:
        found = read_own_json(path)
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(values: JsonObject, name: str) -> float:
    """Return a number of a state, at least 0; 0 if it has none."""
    found = values.get(name)
    is_number = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found) and found > 0
    return float(found) if is_number and isinstance(found, int | float) else 0.0


def _step(checkpoint: Path) -> int:
    digits = checkpoint.name.removeprefix(_PREFIX)
    return int(digits) if digits.isascii() and digits.isdigit() else -1
