"""Promotion by hand: the user has a trial trained to completion, whatever the rungs decide."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import StudyError, one_of
from ...system.files import write_text
from ..trial import TrialRecord, TrialState
from .stored_study import TRIALS_WAIT
from .study_folder import STUDY_FILE, read_records, read_settings

# In the folder of a run.
_MARK = "promoted"


def promote(study_folder: str | os.PathLike[str], number: int) -> None:
    """Train a trial to completion, whatever its reports at the rungs.

    The search that is running in the folder, in any process, resumes the trial as soon as a worker is free; if none is
    running, the next search does. A second call has no effect until the trial has ended. The trial counts as promoted
    from its rung, so another trial may have to stay paused. A trial that is being judged at the time of the call may
    still be pruned.

    Args:
        study_folder: the folder of the study, ``<output_dir>/<study_name>``.
        number: the number of a trial that is paused, running or interrupted.

    Raises:
        StudyError: the study or the trial does not exist, the study has no rungs, or the trial has ended.

    Examples:
        >>> promote("runs/study", 7)
        Traceback (most recent call last):
        ...
        hpsearch.errors.StudyError: There is no study in 'runs/study': it has no study.json.
    """
    folder = Path(study_folder)
    settings = read_settings(folder)
    if settings is None:
        raise StudyError(f"There is no study in {str(folder)!r}: it has no {STUDY_FILE}.")
    if not settings.get(TRIALS_WAIT):
        raise StudyError(
            f"In the study in {str(folder)!r} no trial pauses at a rung: its pruner is {settings.get('pruner')}, with "
            f"n_trials={settings.get('n_trials')}."
        )
    record = _record(folder, number)
    _check_may_go_on(record)
    mark = folder / record.name / _MARK
    write_text(mark, "by hand\n")
    try:
        _check_may_go_on(_record(folder, number))  # it may have been pruned just now
    except StudyError:
        mark.unlink(missing_ok=True)
        raise


def _check_may_go_on(record: TrialRecord) -> None:
    if not record.state.is_open:
        allowed = one_of(each.value for each in TrialState if each.is_open)
        raise StudyError(
            f"Trial {record.number} is {record.state.value}; only one that is {allowed} can be promoted. To train its "
            f"parameters again, pass start_with={record.params!r} to another search."
        )


def _record(folder: Path, number: int) -> TrialRecord:
    """Return the record of a trial.

    Raises:
        StudyError: there is no such trial, or a record is damaged.
    """
    records = read_records(folder)
    found = next((each for each in records if each.number == number and type(number) is int), None)
    if found is None:
        known = f"it has {len(records)}, up to {records[-1].number}" if records else "it has none yet"
        raise StudyError(f"The study in {str(folder)!r} has no trial {number!r}; {known}.")
    return found


def is_promoted(study_folder: Path, run: str) -> bool:
    """Return whether the user has promoted the trial of a run."""
    return (study_folder / run / _MARK).exists()
