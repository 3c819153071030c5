"""The selected weights of a running trial: their report and their location."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..search.metrics.selection import select_report
from ..search.peer_summary import PeerTrials
from ..search.process_group import Ranks
from ..search.store.retention import CHECKPOINT, SELECTED, is_worth_keeping, remove_checkpoints
from ..search.study import Study
from ..search.trial_record import Report
from ..system.files import entries, remove_folder, whole_folder


class SavesWeights(Protocol):
    """The interface of a trainer that this module uses."""

    def capture_weights(self) -> object:
        """Return a copy of the model's present weights."""

    def save_weights(self, folder: Path, state_dict: object = None) -> None:
        """Write the weights, or those captured earlier, with what is needed to load them."""


class ScopedWeights:
    """Keeps the weights of the report that is selected so far, if the trial may be among the best of the study.

    They are captured in memory when the report is made, and lie on disk whenever a checkpoint is written: so a trial
    that resumes from that checkpoint in another process still has them.

    Args:
        study: the settings.
        recipe: the trainer of the trial; None if its weights are on disk, or nowhere: of a paused trial, and where the
            user's code writes the checkpoints.
        folder: of the run.
        number: of the trial.
        others: the other trials of the study.
        ranks: the processes of the trial.
    """

    def __init__(
        self,
        study: Study,
        recipe: SavesWeights | None,
        folder: Path,
        number: int,
        others: PeerTrials,
        ranks: Ranks,
    ) -> None:
        self._study, self._recipe, self._folder, self._number = study, recipe, folder, number
        self._others, self._ranks = others, ranks
        self._weights: object = None
        self._step: int | None = None

    def note(self, reports: Sequence[Report]) -> None:
        """Capture the present weights, if the last of these reports is the selected one."""
        if self._selected_step(reports) == reports[-1].step and self._recipe is not None:
            self._weights, self._step = self._recipe.capture_weights(), reports[-1].step

    def write_beside_checkpoint(self, reports: Sequence[Report], newest: int, best_of_run: str | None) -> None:
        """Make sure they are on disk, and delete the checkpoints of this run that are no longer needed.

        Args:
            reports: of the trial so far.
            newest: the step of the checkpoint just written, from which the trial could resume.
            best_of_run: the checkpoint that `load_best_model_at_end` will load.
        """
        step = self._selected_step(reports)
        if not self._ranks.is_main:
            return
        if self._recipe is not None and step is not None and step == self._step and not self._is_on_disk(step):
            with whole_folder(self._beside(step)) as partial:
                self._recipe.save_weights(partial, self._weights)
        if self._study.keep_checkpoints is not None:
            needed = {self._checkpoint(newest), None if best_of_run is None else Path(best_of_run)}
            remove_checkpoints(self._folder, {*needed, None if step is None else self._checkpoint(step)})
        for beside in entries(self._folder, SELECTED):
            if step is None or beside != self._beside(step):
                remove_folder(beside)

    def finish(self, reports: Sequence[Report]) -> Path | None:
        """Return the checkpoint folder with the weights of an ended trial, written if need be; None if not worth it."""
        step = self._selected_step(reports)
        if step is None:
            return None
        folder = self._checkpoint(step)
        if self._ranks.is_main and not folder.is_dir():
            if self._beside(step).is_dir():
                os.replace(self._beside(step), folder)
            elif self._step == step and self._recipe is not None:
                with whole_folder(folder) as partial:
                    self._recipe.save_weights(partial, self._weights)
            else:
                return None
        return folder

    def would_be_there(self, reports: Sequence[Report]) -> bool:
        """Return whether a trial that resumes with these reports finds the weights of the selected one on disk."""
        step = self._choose_step(reports)
        return step is None or self._recipe is None or self._is_on_disk(step)

    def _selected_step(self, reports: Sequence[Report]) -> int | None:
        """Return the step whose weights are selected; None if they are not worth keeping."""
        return self._ranks.decide(lambda: self._choose_step(reports))

    def _choose_step(self, reports: Sequence[Report]) -> int | None:
        study = self._study
        selected = select_report(reports, study.scope, study.objectives)
        if selected is None or any(each > 0 for each in selected.report.violations.values()):
            return None
        keep, kept = study.keep_checkpoints, self._others.kept
        if keep and self._others.may_be_repeated:
            return selected.report.step
        is_worth = is_worth_keeping(selected.values, kept, study.objectives, keep, self._number)
        return selected.report.step if is_worth else None

    def _is_on_disk(self, step: int) -> bool:
        return self._checkpoint(step).is_dir() or self._beside(step).is_dir()

    def _checkpoint(self, step: int) -> Path:
        return self._folder / f"{CHECKPOINT}{step}"

    def _beside(self, step: int) -> Path:
        return self._folder / f"{SELECTED}{step}"
