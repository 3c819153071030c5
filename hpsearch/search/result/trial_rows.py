"""The trials of a study as rows for a reader: one for each trial, or one for each training run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ...system.json_types import JsonObject
from ..metrics.replicas import Runs, runs_of, without_replicas
from ..trial_record import FOLD, TrialRecord

Given = TypeVar("Given")


@dataclass(frozen=True)
class TrialRow:
    """A trial as a reader compares it with others.

    Attributes:
        trial: its record, that of its first training run.
        record: the same; if the trial was repeated, with the means of its runs as values, and with the epochs and the
            seconds of all of them.
        evaluations: the number of evaluations, of all runs.
        runs: the number of training runs that the values are the mean of; 1 if the trial was not repeated.
        deviations: the standard deviation of each objective over these runs; empty of one run.
    """

    trial: TrialRecord
    record: TrialRecord
    evaluations: int
    runs: int = 1
    deviations: tuple[float, ...] = ()

    @property
    def repeats(self) -> int | None:
        """The number of the trial that this training run repeats; None of a trial."""
        return None if self.trial.replica is None else self.trial.replica.trial

    def to_json(self) -> JsonObject:
        """Return the row of a trial as JSON-ready values."""
        found = self.trial.to_json()
        counted = {name: getattr(self.record, name) for name in ("violations", "seconds", "epochs")}
        return {**found, **counted, "values": list(self.record.values), "std": list(self.deviations), "runs": self.runs}

    def run_to_json(self, has_folds: bool) -> JsonObject:
        """Return the row of a training run as JSON-ready values.

        Args:
            has_folds: whether the run is that of a fold of a cross-validation.
        """
        fold = {FOLD: offset_of(self.trial)} if has_folds else {}
        return {**self.trial.to_json(), "repeats": self.repeats, **fold}


def trial_rows(records: Iterable[TrialRecord]) -> list[TrialRow]:
    """Return a row for each trial, by number; replicas and folds are part of the row of their trial."""
    records = list(records)
    known = {each.trial.number: each for each in runs_of(records)}
    further: dict[int, list[TrialRecord]] = {}
    for each in records:
        if each.replica is not None:
            further.setdefault(each.replica.trial, []).append(each)
    trials = sorted(without_replicas(records), key=lambda each: each.number)
    return [_row(known.get(each.number, Runs((each,))), further.get(each.number, [])) for each in trials]


def run_rows(records: Iterable[TrialRecord]) -> list[TrialRow]:
    """Return a row for each training run, by number."""
    return [TrialRow(each, each, len(each.reports)) for each in sorted(records, key=lambda each: each.number)]


def below_their_trials(given: Sequence[Given], record_of: Callable[[Given], TrialRecord]) -> list[Given]:
    """Return trials in their order, but each further run below its trial; at the end, those whose trial is missing.

    Args:
        given: the trials.
        record_of: returns the record of one.
    """
    trials, further = list[Given](), dict[int, list[Given]]()
    for each in sorted(given, key=lambda each: offset_of(record_of(each))):  # of several trials, the order stays
        replica = record_of(each).replica
        (trials if replica is None else further.setdefault(replica.trial, [])).append(each)
    grouped = [each for one in trials for each in (one, *further.pop(record_of(one).number, []))]
    return [*grouped, *(each for some in further.values() for each in some)]


def offset_of(record: TrialRecord) -> int:
    """Return the offset of a replica, which is the number of its fold in a cross-validation; 0 of a trial."""
    return 0 if record.replica is None else record.replica.offset


def _row(runs: Runs, further: Sequence[TrialRecord]) -> TrialRow:
    trial, several = runs.trial, [runs.trial, *further]
    record = replace(
        runs.mean,
        epochs=math.fsum(each.epochs for each in several),
        seconds=math.fsum(each.seconds for each in several),
    )
    by_objective = list(zip(*(each.values for each in runs.records), strict=True))
    deviations = tuple(map(statistics.stdev, by_objective)) if len(runs.records) > 1 else ()
    evaluations = sum(len(each.reports) for each in several)
    return TrialRow(trial, record if further else trial, evaluations, len(runs.records), deviations)
