"""Transfer the files of trials between the location that workers write to and the study's folder."""

from __future__ import annotations

from dataclasses import replace

from ...search.study import Study
from ...search.trial_record import TrialRecord, TrialState
from .run_folders import RunFolders


class TrialArtifacts:
    """Brings the checkpoints of trials to where they are needed, as seen by the process that searches.

    Args:
        folders: where the workers keep them.
        study: in its folder they end.
    """

    def __init__(self, folders: RunFolders, study: Study) -> None:
        self._folders, self._study = folders, study

    def send(self, run: str) -> None:
        """Let workers resume from what an earlier search has left of a trial."""
        self._folders.send(run, self._study.folder)

    def fetch(self, record: TrialRecord) -> TrialRecord:
        """Bring what an ended trial has left, and return its record with the checkpoint where it is now.

        Raises:
            StorageError: it cannot be brought.
        """
        if record.state is TrialState.INTERRUPTED:
            return record
        study = self._study
        is_all = study.keep_checkpoints is None or record.state in (TrialState.RUNNING, TrialState.PAUSED)
        kept = [] if record.checkpoint is None else [record.checkpoint.name]
        self._folders.fetch(record.name, study.folder, None if is_all else kept)
        checkpoint = None if record.checkpoint is None else study.folder / record.name / record.checkpoint.name
        return replace(record, checkpoint=checkpoint)

    def forget(self, record: TrialRecord) -> None:
        """Delete what only workers need of a trial that has ended, once its record is written."""
        if record.state not in (TrialState.INTERRUPTED, TrialState.RUNNING):
            self._folders.forget(record.name)
