"""One call of a search: its parts, and its notices."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ..search.decisions.repeats import Repeats
from ..search.listener import SearchListener
from ..search.process_group import Ranks
from ..search.requests.in_effect import InEffect
from ..search.store.study_folder import StudyFolder
from ..search.study import Study
from ..search.time_and_epoch_limits import NO_FIRST_CALL, FirstCall
from ..search.trial_record import TrialRecord
from ..system.interruption import Interruption
from ..trial.local_trials import LocalTrials
from ..trial.searchable import Searchable
from .model_size import ModelSize
from .reasons_to_end import Limits
from .requests_in_effect import RequestsInEffect
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
        own_trials: the total number of trials without those that the user has requested; None: that of the study.
        first_call: of the function that is searched.

    Attributes:
        listener, interruption: as given.
        study: the settings; the total changes if the user requests trials, or another total.
        requests: of the user.
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
        own_trials: int | None = None,
        first_call: FirstCall = NO_FIRST_CALL,
    ) -> None:
        self.study, self.listener = study, listener
        self._folder, self._own_trials = folder, study.n_trials if own_trials is None else own_trials
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
        self.requests = RequestsInEffect(study.folder, self.records.is_alive, self.announce)
        self._timeout = study.timeout
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

    @property
    def resumes_trials(self) -> bool:
        """Whether an interrupted trial resumes: always, but for a function that does not read its checkpoint."""
        return not (self._trainer.writes_its_checkpoints and self._trainer.cannot_pause is not None)

    def follow_requests(self) -> InEffect:
        """Return the requests that are in effect; another total of trials, or time limit, applies from now on."""
        requested = self.requests.now()
        self.records.may_be_repeated = Repeats.of(self.study).is_possible or bool(requested.confirmations)
        total, earlier = requested.total(self._own_trials), (self.study.n_trials, self._timeout)
        if total != self.study.n_trials:
            self.study = replace(self.study, n_trials=total)
            self._folder.note_total(total, len(requested.new))
        timeout = requested.settings.get("timeout", self.study.timeout)
        if timeout != self._timeout and isinstance(timeout, int | float):
            self._timeout = timeout
            self.limits.set_timeout(timeout)
        if (total, self._timeout) != earlier:
            self.listener.on_study_changed(self.study_in_effect)
        return requested

    @property
    def study_in_effect(self) -> Study:
        """The settings with the time limit that is in effect."""
        return replace(self.study, timeout=self._timeout)

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
