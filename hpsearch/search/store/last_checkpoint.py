"""The progress of a trial that is running, or whose process was killed, from its last checkpoint.

The record of a running trial is written when it ends. Until then its reports are in its checkpoints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ...system.checkpoint_files import STATE_FILE, TRIAL_FILE
from ...system.json_types import JsonObject
from ..metrics.objective import Objective
from ..metrics.selection import select_report
from ..trial_record import Report, TrialRecord, TrialState
from .checked_json import Unreadable, amount
from .own_files import is_own_folder
from .read_study import read_own_json
from .retention import CHECKPOINT
from .stored_record import so_far_from_json

# The callback that keeps a trial's state in its checkpoints; transformers stores states by the name of their class.
REPORTING_CALLBACK = "ReportingCallback"


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


def so_far_in(state: Mapping[str, object]) -> JsonObject | None:
    """Return what the trainer state of a checkpoint holds of a trial: its reports, its seconds; None: it holds nothing.

    Raises:
        Unreadable: no search has written it.
    """
    return _so_far(_within(state, "stateful_callbacks", REPORTING_CALLBACK))


def with_last_checkpoints(records: Iterable[TrialRecord], study: Scored) -> list[TrialRecord]:
    """Return records of a study, those of running trials as they were at their last checkpoint.

    A trial without a readable checkpoint in its own folder, or with none since it was resumed, is unchanged.
    """
    return [_at_checkpoint(each, study) if each.state is TrialState.RUNNING else each for each in records]


def resumes_at(record: TrialRecord, study: Scored) -> float:
    """Return the epochs of the checkpoint that a half-done trial resumes from; 0: it has none, and starts again."""
    return next((found.epochs for found in _continued(replace(record, seconds=0.0, epochs=0.0), study)), 0.0)


def _at_checkpoint(record: TrialRecord, study: Scored) -> TrialRecord:
    return next((found for found in _continued(record, study) if found.seconds >= record.seconds), record)


def _continued(record: TrialRecord, study: Scored) -> Iterator[TrialRecord]:
    """Yield a record as its checkpoints continue it, the newest first; those that cannot be read are left out."""
    folder = study.folder / record.name
    for checkpoint in sorted(folder.glob(f"{CHECKPOINT}*"), key=_step, reverse=True):
        with contextlib.suppress(Unreadable, OSError, RecursionError):
            if is_own_folder(checkpoint, folder):
                found = _read(record, checkpoint, study)
                if found is not None:
                    yield found


def _read(record: TrialRecord, checkpoint: Path, study: Scored) -> TrialRecord | None:
    """Return a record as a checkpoint continues it; None if the checkpoint is not one that a trial resumes from.

    Raises:
        Unreadable: no search has written it.
    """
    state, beside = _contents(checkpoint / STATE_FILE), _contents(checkpoint / TRIAL_FILE)
    so_far = _so_far(beside) or so_far_in(state)
    if so_far is None or (state and not any(checkpoint.glob("*optim*")) and not any(checkpoint.glob("global_step*"))):
        return None
    reports: tuple[Report, ...] = tuple(so_far["reports"])
    if any(len(each.values) != len(study.objectives) for each in reports):
        raise Unreadable(f"its reports are not of {len(study.objectives)} objectives")
    selected, last = select_report(reports, study.scope, study.objectives), reports[-1] if reports else None
    epochs = amount(state.get("epoch") or beside.get("step") or (0 if last is None else last.epoch))
    steps, most = amount(state.get("global_step") or 0), amount(state.get("max_steps") or 0)
    trained = max(steps / most if most else 0.0, last.fraction if last else 0.0)
    continued = replace(
        record,
        reports=reports,
        epochs=max(record.epochs, float(epochs)),
        fraction=max(record.fraction or 0.0, min(1.0, trained)),
        seconds=so_far["seconds"],
        fallbacks=tuple(so_far.get("fallbacks") or record.fallbacks),
    )
    if selected is None:
        return continued
    return replace(continued, values=selected.values, violations=selected.report.violations)


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


def _step(checkpoint: Path) -> int:
    digits = checkpoint.name.removeprefix(CHECKPOINT)
    return int(digits) if digits.isascii() and digits.isdigit() else -1
