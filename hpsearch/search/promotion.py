"""Promotion by hand: a trial that the user wants to see trained to its end, whatever the rungs make of it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import StudyError, one_of
from ..files import read_json, write_text
from .folder import STUDY_FILE, TRIAL_FILE, read_settings
from .trial import TrialRecord, TrialState

# In the folder of a run.
_MARK = "promoted"
# What `study.json` calls the pruner.
_RUNGS = "rungs"
_MAY_BE_PROMOTED = (TrialState.PAUSED, TrialState.RUNNING, TrialState.INTERRUPTED)


def promote(study_folder: str | os.PathLike[str], number: int) -> None:
    """Let a trial train to its end, although it waits at a rung, or would wait or be pruned at the next one.

    The search that is at work in the folder, in whatever process, takes it up as soon as a worker is free; if there is
    none, the next one does. A second call changes nothing.

    Args:
        study_folder: of the study, ``<output_dir>/<study_name>``.
        number: of the trial; it waits, runs, or was interrupted.

    Raises:
        StudyError: there is no such study or trial, the study has no rungs, or the trial has ended.

    Example:
        >>> promote("runs/study", 7)
        Traceback (most recent call last):
        ...
        hpsearch.errors.StudyError: There is no study in 'runs/study': it has no study.json.
    """
    folder = Path(study_folder)
    settings = read_settings(folder)
    if settings is None:
        raise StudyError(f"There is no study in {str(folder)!r}: it has no {STUDY_FILE}.")
    if settings["pruner"] != _RUNGS:
        raise StudyError(
            f"In the study in {str(folder)!r} trials do not wait at rungs: its pruner is {settings['pruner']}."
        )
    runs = {read_json(path)["number"]: path.parent for path in folder.glob(f"[!.]*/{TRIAL_FILE}")}
    if number not in runs:
        raise StudyError(
            f"The study in {str(folder)!r} has no trial {number!r}; it has {len(runs)}, up to {max(runs, default=-1)}."
        )
    record = TrialRecord.from_json(read_json(runs[number] / TRIAL_FILE), runs[number])
    if record.state not in _MAY_BE_PROMOTED:
        allowed = one_of(each.value for each in _MAY_BE_PROMOTED)
        raise StudyError(
            f"Trial {number} is {record.state.value}; only one that is {allowed} can be promoted. To "
            f" train its parameters again, pass start_with={record.params!r} to another search."
        )
    write_text(runs[number] / _MARK, "by hand\n")


def is_promoted(study_folder: Path, run: str) -> bool:
    """Tell whether the user has promoted the trial of a run."""
    return (study_folder / run / _MARK).exists()
