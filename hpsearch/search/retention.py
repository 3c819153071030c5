"""Which checkpoints stay on disk: the scoped one of each of the best trials of the whole study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..files import remove_folder
from .objective import Objective
from .selection import ranking
from .trial import TrialRecord, TrialState


def is_worth_keeping(value: float, records: Sequence[TrialRecord], objective: Objective, keep: int | None) -> bool:
    """Tell whether a trial with `value` would be among the `keep` best of the study (None: all are kept)."""
    if keep is None:
        return True
    if keep == 0:
        return False
    ranked = ranking(records, objective)
    return len(ranked) < keep or objective.is_better(value, ranked[keep - 1].value)


def remove_surplus(records: Sequence[TrialRecord], folder: Path, objective: Objective, keep: int | None) -> None:
    """Delete, from the run folders of ended trials, every checkpoint but the scoped ones of the `keep` best trials.

    None keeps everything. Checkpoints of interrupted trials go too, as their parameters are run anew.
    """
    if keep is None:
        return
    kept = {record.checkpoint for record in ranking(records, objective)[:keep]}
    for record in records:
        if record.state is not TrialState.RUNNING:
            for checkpoint in (folder / record.name).glob("checkpoint-*"):
                if checkpoint not in kept:
                    remove_folder(checkpoint)
