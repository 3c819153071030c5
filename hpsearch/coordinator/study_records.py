"""The trials of a study as this session knows them, and its place among the sessions that share the study."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from ..errors import SpaceError
from ..search.decisions.repeats import Repeats
from ..search.metrics.replicas import has_replicas
from ..search.metrics.selection import best_records
from ..search.peer_summary import PeerTrials
from ..search.space.tried_configurations import Tried, TriedSoFar, is_everything_tried
from ..search.store.live_sessions import Session
from ..search.store.memory_of_0_8_0 import copy_to_disk
from ..search.store.retention import kept_records, remove_surplus
from ..search.store.study_folder import StudyFolder, remove_leftovers
from ..search.study import Study
from ..search.trial import FixedTrial
from ..search.trial_record import TrialRecord, TrialState, configuration
from ..search.trials_by_number import updated, with_number
from ..system.files import remove_partial
from ..system.temporary_folders import remove_scratch_of_the_dead


class StudyRecords:
    """Reads the trials of a study from its folder, and keeps best run and checkpoints there in order.

    Args:
        study: the settings.
        folder: of the study.

    Attributes:
        session: the name of this session, by which other processes identify the owner of a trial.
        records: the trials that have ended or will resume, those of other processes included, by number.
        running: by number, the records so far of the trials that this session trains, here or in other processes.
        may_be_repeated: whether trials may still be repeated with other seeds, so that more weights stay.
    """

    def __init__(self, study: Study, folder: StudyFolder) -> None:
        self._study, self._folder = study, folder
        self._session = Session(study.folder)
        self.session = self._session.name
        self.records: list[TrialRecord] = []
        self.running: dict[int, TrialRecord] = {}
        self.may_be_repeated = Repeats.of(study).is_possible
        self._running_elsewhere: list[TrialRecord] = []
        self._leading: tuple[list[TrialRecord], list[TrialRecord]] = [], []  # of which records, and these
        self._epochs: tuple[list[TrialRecord], float] = [], 0.0  # the sum, and of which records
        self._tried: TriedSoFar | None = None
        self._has_replicas = False

    @contextlib.contextmanager
    def at_work(self, announce: Callable[[str], None]) -> Iterator[None]:
        """Sign in to the study's folder while the block runs, so that other processes know whose trials these are."""
        remove_scratch_of_the_dead()
        with self._folder.locked():
            self._session.begin()
            try:
                lost = copy_to_disk(self._study.folder) if self._session.is_alone() else []
            except BaseException:
                self._session.end()
                raise
        try:
            for run in lost:
                announce(f"{run} has lost its checkpoint, which 0.8.0 kept in memory: it starts again if resumed")
            yield
        finally:
            with self._folder.locked():
                if self._session.end():
                    remove_partial(self._study.folder)  # what killed sessions have left there

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from deciding anything about the study while the block runs."""
        return self._folder.locked()

    def open(self, records: list[TrialRecord]) -> None:
        """Take over the trials on disk; under `locked()`."""
        self.records = []
        self._tidy(records, among=None)

    def refresh(self) -> None:
        """Read what other processes have done since; under `locked()`."""
        if self._session.others_were_here():
            records = self._folder.read_records()
            self.records = _present(records)
            self._running_elsewhere = [each for each in records if each.state is TrialState.RUNNING]

    def take(self, record: TrialRecord) -> None:
        """Take a trial that has ended: the best is written, surplus checkpoints are deleted; under `locked()`."""
        self.refresh()
        before = self.ended(record.number)
        is_better_before = before is not None and before.is_eligible
        is_of_several = self.may_be_repeated or record.replica is not None or self._has_replicas
        others = self.records if is_better_before or is_of_several else self._leaders()
        others = [each for each in others if each.number != record.number]
        remove_leftovers(self._study.folder / record.name)
        keeping = [each for each in others if each.checkpoint is not None]
        self._tidy([*others, record], among=[record, *keeping])

    def ended(self, number: int) -> TrialRecord | None:
        """Return a trial that has ended or will resume; None if it has not come so far, as far as is known."""
        return with_number(number, self.records)

    def earlier(self, number: int) -> TrialRecord | None:
        """Return the record of a trial from an earlier session; None if it has none; under `locked()`."""
        return next((each for each in self._folder.read_records() if each.number == number), None)

    def is_last(self) -> bool:
        """Return whether no session trains a trial of the study any more, nor will; under `locked()`.

        Asked when no further trial may begin in this one.
        """
        if self.running:
            return False
        self._session.leave()
        return self._session.is_last()

    def is_alone(self) -> bool:
        """Return whether no other session is at work in the study's folder; under `locked()`."""
        return self._session.is_alone()

    def is_alive(self, session: str | None) -> bool:
        """Return whether the process of a session is still there."""
        return self._session.is_alive(session)

    def known(self) -> list[TrialRecord]:
        """Return all trials of the study that are known, by number, running ones as far as they have reported.

        Those that other sessions train are as they were when these began with them.
        """
        elsewhere = (each for each in self._running_elsewhere if self.ended(each.number) is None)
        return updated(self.records, [*elsewhere, *self.running.values()])

    def others(self, number: int) -> PeerTrials:
        """Return the trials beside one of this session."""
        running = {number, *self.running}
        leading = [each for each in self._leaders() if each.number not in running]
        were_evaluated = any(each.reports for each in self.records if each.number not in running)
        return PeerTrials.of(leading, self._study, self.epochs(but=number), were_evaluated, self.may_be_repeated)

    def end_repeats(self) -> None:
        """Delete the weights that stay only while trials may be repeated, unless another session is at work."""
        with self.locked():
            if self._has_replicas and self.is_alone():
                self.may_be_repeated = False
                self._tidy(self.records, among=None)

    def write_best(self) -> None:
        """Write which trial is the best, and where its model is, when that has changed otherwise than by a trial."""
        with self.locked():
            self._folder.write_best(self.records)

    def epochs(self, but: int | None = None) -> float:
        """Return the epochs that all trials have trained together, but for one; running ones as far as is known."""
        if self._epochs[0] is not self.records:
            self._epochs = self.records, sum(map(attrgetter("epochs"), self.records))
        before = filter(None, map(self.ended, {*self.running, *([] if but is None else [but])}))
        under_way = (each for number, each in self.running.items() if number != but)
        return self._epochs[1] - sum(each.epochs for each in before) + sum(each.epochs for each in under_way)

    def tried(self) -> Tried:
        """Return which configurations have been tried; under `locked()`."""
        settings = self._study, self._folder.same_sessions, self._folder.ended_before
        if self._tried is None or self._tried.settings != settings:
            self._tried = TriedSoFar(*settings)
        return self._tried.of(self.known())

    def known_trial(self, params: Mapping[str, object]) -> TrialRecord | None:
        """Return the trial that has these proposed parameters, if its result is known or will be; under `locked()`.

        What the space adds to them, such as constants, is compared too.
        """
        proposed = FixedTrial(params)
        try:
            arguments = self._study.suggest(proposed)
        except SpaceError:  # it asks for more than is proposed, or the trial will show it
            return None
        if self._study.goes_by_number:
            return None
        return self.tried().known.get(configuration({**proposed.params.values_by_name, **arguments}))

    def is_everything_tried(self, number: int, begun: Collection[int]) -> bool:
        """Return whether no configuration is left for trial `number`; `begun` are those that processes train."""
        reserved = len(set(begun) - {each.number for each in self.known()})
        found = is_everything_tried(self._study.suggest, number, self.tried(), reserved)
        return found and not self._study.goes_by_number  # what a function returns is known when it has been called

    def _tidy(self, records: list[TrialRecord], among: list[TrialRecord] | None) -> None:
        """Write the best, delete the checkpoints of the others, and remember the records as they are now.

        Args:
            records: the trials that have changed, and all that may be the best.
            among: those whose folders may hold something to delete; None: all.
        """
        study = self._study
        self._folder.write_best(records)
        keep = study.keep_checkpoints
        remove_surplus(records, study.folder, study.objectives, keep, among, self.may_be_repeated)
        self._has_replicas = self._has_replicas or has_replicas(records)
        present = _present(records)
        self.records = updated(self.records, present)
        self._leading = self.records, self._leaders_of(present)

    def _leaders(self) -> list[TrialRecord]:
        """Return the trials that are the best, or whose weights are kept: a trial that ends is compared with these."""
        if self._leading[0] is not self.records:
            self._leading = self.records, self._leaders_of(self.records)
        return self._leading[1]

    def _leaders_of(self, records: list[TrialRecord]) -> list[TrialRecord]:
        objectives, keep = self._study.objectives, self._study.keep_checkpoints
        best = [*best_records(records, objectives), *kept_records(records, objectives, keep)]
        with_weights = (each for each in records if each.checkpoint is not None)
        return list({each.number: each for each in (*best, *with_weights)}.values())


def _present(records: list[TrialRecord]) -> list[TrialRecord]:
    """Return the records of trials that are not running, without checkpoints that were deleted."""
    ended = (each for each in records if each.state is not TrialState.RUNNING)
    return [
        replace(each, checkpoint=None) if each.checkpoint is not None and not each.checkpoint.is_dir() else each
        for each in ended
    ]
