"""A half-done trial resumes with as many processes as before: their number decides what its batches are."""

from __future__ import annotations

from ..errors import CannotResumeError
from .study import Study
from .trial_record import TrialRecord


def check_processes(study: Study, record: TrialRecord) -> None:
    """Check that a trial, if it resumes from a checkpoint, has as many processes as before.

    Raises:
        CannotResumeError: it has not.
    """
    before, now = record.processes, study.processes
    if before is None or before == now or not record.state.is_open:
        return
    if any((study.folder / record.name).glob("checkpoint-*")):
        raise CannotResumeError(
            f"Trial {record.number} is half done: it was trained with {_in_words(before)}, and this search trains each "
            f"trial with {_in_words(now)}, so its batches would be others. Continue with processes_per_trial={before} "
            f"(or, with torchrun, --nproc_per_node {before}), or pass another study_name."
        )


def _in_words(processes: int) -> str:
    return f"{processes} process{'es' if processes > 1 else ''}"
