"""A trial that continues from the checkpoints of another one, to a new length: see `OpenedStudy.extend`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..search.store.retention import CHECKPOINT, SELECTED
from ..search.store.stored_record import so_far_from_json
from ..search.trial import Trial
from ..search.trial_record import Report, TrialRecord
from ..system.files import entries, leads_out, read_json, whole_folder, write_json
from ..training.checkpoints import STATE_FILE
from ..trial.reporting_callback import ReportingCallback
from ..trial.searchable import Searchable


def continue_from(extended: TrialRecord | None, trial: Trial, study_folder: Path, recipe: Searchable) -> None:
    """Copy the checkpoints of a trial into the folder of the one that extends it, unless this one has all of them.

    Args:
        extended: None: there is no record of it any more.
        trial: extends it; its folder exists.
        study_folder: the folder of the study.
        recipe: that trials are made from.

    Raises:
        CheckpointError: training cannot resume from a checkpoint of the trial.
    """
    assert trial.origin is not None, "it extends a trial"
    run = study_folder / trial.name
    if trial.earlier is not None and trial.earlier.reports:
        return
    if recipe.cannot_extend is not None:
        raise CheckpointError(f"Only trials of an hpsearch.Trainer can be extended: {recipe.cannot_extend}.")
    folder = None if extended is None else study_folder / extended.name
    present = (
        []
        if folder is None
        else [each for each in entries(folder, CHECKPOINT, SELECTED) if not leads_out(each, folder)]
    )
    newest = None if folder is None else next(iter(recipe.resumable_checkpoints(folder)), None)
    own = recipe.resumable_checkpoints(run)
    if own and (newest is None or _step(own[0]) >= _step(newest)):  # else it was killed while they were copied
        return
    if newest not in present:
        raise CheckpointError(f"No checkpoint of trial {trial.origin['trial']} is left that training can resume from.")
    for each in sorted(present, key=lambda each: each == newest):  # that one last, as its copy says that all is there
        with whole_folder(run / each.name) as partial:
            shutil.copytree(each, partial, dirs_exist_ok=True)
            if (partial / STATE_FILE).is_file():
                _continue_to(partial / STATE_FILE, trial.origin["arguments"])


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(CHECKPOINT))


def _continue_to(file: Path, to: Mapping[str, Any]) -> None:
    """Let the saved state of a trial be that of one that has a new length, and has not come to its end."""
    state: Any = read_json(file)
    kept = state.get("stateful_callbacks", {}).get(ReportingCallback.__name__, {}).get("attributes", {})
    if "so_far" not in kept:
        return
    so_far = so_far_from_json(kept["so_far"])
    reports = [asdict(_of_length(each, to)) for each in so_far["reports"]]
    kept["so_far"] = {**kept["so_far"], "reports": reports, "is_over": False, "paused_at": 0}
    write_json(file, state)


def _of_length(report: Report, to: Mapping[str, Any]) -> Report:
    """Return a report with the resource at which training to the new length is complete."""
    done = report.epoch if "num_train_epochs" in to else float(report.step)
    (length,) = to.values()
    return replace(report, horizon=report.resource * length / done) if done else report
