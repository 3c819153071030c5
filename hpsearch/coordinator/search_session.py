"""One call of a search: its parts, and its notices."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from ..search.listener import SearchListener
from ..search.process_group import Ranks
from ..search.store.study_folder import StudyFolder
from ..search.study import Study
from ..search.time_and_epoch_limits import NO_FIRST_CALL, FirstCall
from ..search.trial import TrialRecord
from ..system.interruption import Interruption
from ..trial.local_trials import LocalTrials
from ..trial.searchable import Searchable
from .model_size import ModelSize
from .reasons_to_end import Limits
from .study_records import StudyRecords
from .trials_on_disk import TrialsOnDisk

logger = logging.getLogger(__name__)


class SearchSession:
    """The parts of one call of a search.

    Args:
        trainer: the recipe of the trials.
        study: the settings.
        folder: of the study.
        listener: shows the search.
        ranks: the processes that train each trial.
        clock: returns the seconds since some moment.
        interruption: notes a signal that ends the search.
        first_call: of the function that is searched.

    Attributes:
        study, listener, interruption: as given.
        records: the trials of the study.
        limits: of time, epochs and failures, and what is used of them.
        local: makes and trains trials in this process.
        on_disk: the records of the trials that this session trains.
    """

    def __init__(
        self,
        trainer: Searchable,
        study: Study,
        folder: StudyFolder,
        listener: SearchListener,
        ranks: Ranks,
        clock: Callable[[], float] = time.monotonic,
        interruption: Interruption | None = None,
        first_call: FirstCall = NO_FIRST_CALL,
    ) -> None:
        self.study, self.listener = study, listener
        self.interruption = interruption or Interruption()
        self.records = StudyRecords(study, folder)
        self.limits = Limits(study, self.records, clock, self.interruption, first_call)
        self.local = LocalTrials(trainer, study, self.limits.budget, ranks)
        self.on_disk = TrialsOnDisk(
            trainer,
            study,
            folder,
            self.records,
            self.limits,
            self.local,
            show=lambda trial: self.listener.on_trial_begin(trial),
        )
        self._trainer = trainer
        self._model_size = ModelSize((), is_fixed=False)

    def at_work(self) -> contextlib.AbstractContextManager[None]:
        """Sign in to the study's folder while the block runs."""
        return self.records.at_work(self.announce)

    def open(self, records: list[TrialRecord]) -> None:
        """Take over the trials on disk; under the study's lock."""
        self._model_size = ModelSize(records, self._trainer.has_fixed_model)
        self.records.open(records)

    def announce(self, notice: str) -> None:
        """Show a notice about the search while it runs, such as the reason for an early end."""
        self.listener.on_notice(notice)

    def settle(self, record: TrialRecord, has_run: bool = True) -> None:
        """Take an ended trial into account: limits, records, listeners; under the study's lock.

        One that has not run since it was settled before is not counted among those that fail or do not.
        """
        if has_run:
            self.limits.count(record)
        self.records.take(record)
        self.listener.on_records(self.records.records)
        self.listener.on_trial_end(record)
        change = self._model_size.change(record)
        if change is not None:
            logger.warning("%s.", change)
            self.announce(change)
