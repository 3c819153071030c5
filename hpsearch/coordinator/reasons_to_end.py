"""The limits of a session - time, epochs, consecutive failures - and their use."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..search.study import Study
from ..search.time_and_epoch_limits import NO_FIRST_CALL, FirstCall, SearchBudget
from ..search.trial_record import TrialRecord, TrialState
from ..system.interruption import Interruption
from .study_records import StudyRecords


class Limits:
    """The reasons why no further trial may start: a limit of the study, too many failures, or a callback.

    Args:
        study: the settings.
        records: of the study.
        clock: returns the seconds since some moment.
        interruption: notes a signal that ends the search.
        first_call: took a part of the time.

    Attributes:
        budget: of this session, for its trials.
        failures: how the last trials of this session failed, one after the other.
    """

    def __init__(
        self,
        study: Study,
        records: StudyRecords,
        clock: Callable[[], float] = time.monotonic,
        interruption: Interruption | None = None,
        first_call: FirstCall = NO_FIRST_CALL,
    ) -> None:
        self._study, self._records, self._first_call = study, records, first_call
        left = None if study.timeout is None else max(study.timeout - first_call.seconds, 0.0)
        self.budget = SearchBudget(study, left, clock, interruption)
        self.failures: list[TrialRecord] = []
        self._ended_by: str | None = None

    @property
    def has_too_many_failures(self) -> bool:
        """Whether enough consecutive trials have failed to end the search."""
        limit = self._study.max_failures
        return limit is not None and len(self.failures) >= limit

    @property
    def seconds_left(self) -> float | None:
        """The remaining time of the search; None if there is no limit."""
        return self.budget.seconds

    def reason_to_stop(self) -> str | None:
        """Return why no further trial may begin in this session; None if one may."""
        if self.has_too_many_failures:
            return f"{self._study.max_failures} consecutive trials failed"
        return self._ended_by or (None if self._has_a_result_to_record() else self.exhausted())

    def set_timeout(self, seconds: float) -> None:
        """Set another limit of time, counted from the beginning of the search, the first call included."""
        self.budget.set_timeout(seconds, earlier=self._first_call.seconds)

    def end_early(self, reason: str) -> None:
        """Let no further trial begin in this session; those that run continue to their end."""
        self._ended_by = reason

    def exhausted(self) -> str | None:
        """Return which limit of the study is exhausted; None while something is left for the running trials."""
        stop = self.budget.passed(self._records.epochs())
        return None if stop is None else stop.reason

    def _has_a_result_to_record(self) -> bool:
        """Return whether no trial has begun, and the first one takes no time, as its result is known."""
        return self._first_call.is_first_trial and not (self._records.records or self._records.running)

    def count(self, record: TrialRecord) -> None:
        """Count a trial that has ended: a failure, or the end of a row of them."""
        if not self.has_too_many_failures:  # those that have ended the search stay
            self.failures = [*self.failures, record] if record.state is TrialState.FAILED else []
