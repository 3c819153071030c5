"""The best value of a search so far: of any trial, also of one that is running or paused. It never gets worse."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..search.decisions.repeats import Repeats
from ..search.metrics.selection import best_records, select_report
from ..search.study import Study
from ..search.trial_record import Report, TrialRecord, TrialState
from ..search.wording import format_value


class Seen(NamedTuple):
    """A value that a trial had at a step: the one that it would have been given if it had ended there."""

    value: float
    number: int
    step: int


class BestSoFar:
    """Follows the evaluations of a search, and describes the best one.

    A trial may lose what it had: it gets worse, or is pruned. Then the best value so far is not that of a result, and
    both are described. Where trials are repeated with other seeds, or on folds, a single value says too little: the
    best one is that of the results, whose means may get worse.

    Args:
        study: the settings.

    Attributes:
        result: the best trial that has ended with a result; of several objectives, the first of the Pareto front.
        seen: the best value at any evaluation; None with several objectives, and where trials are repeated.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._is_followed = len(study.objectives) == 1 and Repeats.of(study).most == 1
        self._counted: dict[int, int] = {}
        self._front: list[TrialRecord] = []
        self.result: TrialRecord | None = None
        self.seen: Seen | None = None

    def take(self, records: Collection[TrialRecord], changed: Iterable[TrialRecord]) -> None:
        """Know all trials that do not run, of which some have changed."""
        if any(each.replica is not None for each in records):  # of a trial that was confirmed
            self._is_followed, self.seen = False, None
        self._front = best_records(records, self._study.objectives)
        self.result = self._front[0] if self._front else None
        for record in changed:
            counted = self._counted.get(record.number, 0)
            for count in range(counted + 1, len(record.reports) + 1):
                self.report(record.number, record.reports[:count])

    def report(self, number: int, reports: Sequence[Report]) -> None:
        """Know the evaluations of a trial so far, of which the last is new."""
        self._counted[number] = len(reports)
        selected = select_report(reports, self._study.scope, self._study.objectives) if self._is_followed else None
        if selected is None or any(by > 0 for by in selected.report.violations.values()):
            return
        value = selected.values[0]
        if self.seen is None or self._study.objective.is_better(value, self.seen.value):
            self.seen = Seen(value, number, selected.report.step)

    def describe(self, records: Mapping[int, TrialRecord], running: Collection[int]) -> str:
        """Return the best value and its trial, and the best result if it is another one, in words.

        Of several objectives, return how many trials are on the front.

        Args:
            records: the trials that have ended or paused, by number.
            running: the numbers of those that run.
        """
        if len(self._study.objectives) > 1 and self._front:
            return f"{len(self._front)} on the Pareto front"
        if self.seen is None and self.result is None:
            return self._describe_nothing(records, running)
        result = None if self.result is None else self.result.value
        if self.seen is None or (result is not None and not self._study.objective.is_better(self.seen.value, result)):
            assert self.result is not None, "one of the two is known"
            return f"best {format_value(result)} (trial {self.result.number})"
        if self.result is not None and self.result.number == self.seen.number:
            return f"best {format_value(result)} (trial {self.result.number}, {format_value(self.seen.value)} before)"
        told = f"best so far {format_value(self.seen.value)} ({self._whose(self.seen, records, running)})"
        end = "" if self.result is None else f"; best result {format_value(result)} (trial {self.result.number})"
        return told + end

    def _whose(self, seen: Seen, records: Mapping[int, TrialRecord], running: Collection[int]) -> str:
        """Return which trial has had a value and what has become of it, in words."""
        record = records.get(seen.number)
        if seen.number in running or record is None:
            return f"trial {seen.number}, running"
        is_earlier = record.values[:1] != (seen.value,)
        return f"trial {seen.number}, " + (f"at step {seen.step}" if is_earlier else record.state.value)

    def _describe_nothing(self, records: Mapping[int, TrialRecord], running: Collection[int]) -> str:
        known = [each for each in records.values() if each.values]
        paused = [each for each in known if each.state is TrialState.PAUSED and each.number not in running]
        holding = [each for each in paused if all(by <= 0 for by in each.violations.values())]
        if holding and len(self._study.objectives) > 1:
            return f"{len(holding)} paused, none complete yet"
        has_result = any(each.state.has_result for each in known)
        return "no trial satisfies the constraints yet" if has_result else "no result yet"
