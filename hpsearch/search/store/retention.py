"""Which checkpoints stay on disk: the scoped one of each of the best trials of the whole study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...system.files import entries, leads_out, remove_folder, remove_partial
from ..metrics.objective import Objective
from ..metrics.replicas import SHARE_REPEATED, runs_of, without_replicas
from ..metrics.selection import best_records, dominates, ranking
from ..trial_record import TrialRecord

# Weights that are selected so far, of a trial that writes no checkpoint at that update or has rotated it away.
SELECTED = "selected-"
CHECKPOINT = "checkpoint-"


def is_worth_keeping(
    values: Sequence[float],
    records: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    keep: int | None,
    number: int | None = None,
) -> bool:
    """Return whether a trial with `values` would be among the `keep` best of the study (None: all are kept).

    Of several objectives, whether it would be on the Pareto front. Of equal trials the one with the lower `number`
    comes first; None: the trial comes after all others.
    """
    if keep is None:
        return True
    if keep == 0:
        return False
    if len(objectives) > 1:
        return not any(dominates(each.values, values, objectives) for each in records if each.is_eligible)
    ranked = ranking(records, objectives, keep)
    if len(ranked) < keep:
        return True
    last = ranked[keep - 1]
    is_first_of_equals = values[0] == last.value and number is not None and number < last.number
    return is_first_of_equals or objectives[0].is_better(values[0], last.value)


def remove_surplus(
    records: Sequence[TrialRecord],
    folder: Path,
    objectives: Sequence[Objective],
    keep: int | None,
    among: Sequence[TrialRecord] | None = None,
    may_be_repeated: bool = False,
) -> None:
    """Delete, from the run folders of ended trials, every checkpoint but the scoped ones of the `keep` best trials.

    Of several objectives, those of the Pareto front stay. Of a trial that was repeated with other seeds, those of all
    its runs stay. None keeps everything. Trials that will resume keep theirs.
    A checkpoint that is a link out of its run folder, or holds one, is not read, and so not deleted either.

    Args:
        records: all trials of the study.
        folder: the folder of the study.
        objectives: of the study.
        keep: how many trials keep their scoped checkpoint.
        among: the trials whose folders may hold something to delete; default: all.
        may_be_repeated: whether further trials may be repeated; see `kept_records`.
    """
    kept = {record.checkpoint for record in kept_records(records, objectives, keep, may_be_repeated)}
    surplus = (SELECTED,) if keep is None else (SELECTED, CHECKPOINT)
    for record in records if among is None else among:
        if record.state.is_counted:
            run = folder / record.name
            for each in entries(run, *surplus):
                if each not in kept and not leads_out(each, run):
                    remove_folder(each)


def kept_records(
    records: Sequence[TrialRecord], objectives: Sequence[Objective], keep: int | None, may_be_repeated: bool = False
) -> Sequence[TrialRecord]:
    """Return the trials whose scoped checkpoint stays, with the replicas of them.

    Args:
        records: all trials of the study.
        objectives: of the study.
        keep: how many trials keep their scoped checkpoint; None: all.
        may_be_repeated: whether further trials may be repeated with other seeds: those that have been, and those that
            are next, the best third by their first runs, keep theirs too.
    """
    if keep is None or keep == 0:
        return records if keep is None else []
    trials = without_replicas(records)
    kept = best_records(records, objectives) if len(objectives) > 1 else ranking(records, objectives, keep)
    numbers = {each.number for each in kept}
    if may_be_repeated:
        first = ranking(trials, objectives)
        numbers |= {each.number for each in first[: math.ceil(len(first) * SHARE_REPEATED)]}
        numbers |= {each.replica.trial for each in records if each.replica is not None}
    elif trials is records:
        return kept
    elif len(objectives) == 1:  # one that is better, and has fewer runs, may still turn out to be the best
        numbers |= {each.number for each in ranking([each.mean for each in runs_of(records)], objectives, keep)}
    return [each for each in records if (each.number if each.replica is None else each.replica.trial) in numbers]


def remove_checkpoints(run_folder: Path, kept: Iterable[Path | None]) -> None:
    """Delete every checkpoint of a run but those in `kept`, and what a killed process left half-written."""
    staying = set(kept)
    remove_partial(run_folder)
    for checkpoint in entries(run_folder, CHECKPOINT):
        if checkpoint not in staying:
            remove_folder(checkpoint)
