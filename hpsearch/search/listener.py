"""The events of a search, for views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .trial import Report, Trial, TrialRecord

if TYPE_CHECKING:
    from .study import Study


class SearchListener:
    """A receiver of the events of a search; every method may be left out.

    An error raised while a trial runs in this process fails that trial; with workers, where no trial runs in this
    process, any error ends the search, whose trials resume another time.
    """

    def on_search_prepare(self, study: Study) -> None:
        """The settings are valid; the search packs the data, and opens the folder and the storage."""

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """The search begins; `records` are trials of an earlier session, `notes` say what was decided."""

    def on_trial_begin(self, trial: Trial) -> None:
        """A trial has its parameters and is about to train."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """A trial was evaluated."""

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """A trial finished an update."""

    def on_checkpoint(self, trial: Trial, step: int) -> None:
        """A trial of this process wrote a checkpoint, after step `step`; workers do not report theirs."""

    def on_records(self, records: Sequence[TrialRecord]) -> None:
        """The records have changed, by the trial of the coming `on_trial_end`, or by other searches."""

    def on_trial_end(self, record: TrialRecord) -> None:
        """A trial ended, in whichever way."""

    def on_notice(self, notice: str) -> None:
        """There is something to say about the search, such as why it ends early."""

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """The search ends: all trials are done, a budget is spent, or the user ended it."""


class PassingListener(SearchListener):
    """A listener that forwards all events; a subclass also handles some of them.

    Args:
        listener: receives the events.
    """

    def __init__(self, listener: SearchListener) -> None:
        self._listener = listener

    def on_search_prepare(self, study: Study) -> None:
        """Pass it on."""
        self._listener.on_search_prepare(study)

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Pass on."""
        self._listener.on_search_begin(study, records, notes)

    def on_trial_begin(self, trial: Trial) -> None:
        """Pass on."""
        self._listener.on_trial_begin(trial)

    def on_report(self, trial: Trial, report: Report) -> None:
        """Pass on."""
        self._listener.on_report(trial, report)

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Pass on."""
        self._listener.on_progress(trial, step, max_steps)

    def on_checkpoint(self, trial: Trial, step: int) -> None:
        """Pass on."""
        self._listener.on_checkpoint(trial, step)

    def on_records(self, records: Sequence[TrialRecord]) -> None:
        """Pass on."""
        self._listener.on_records(records)

    def on_trial_end(self, record: TrialRecord) -> None:
        """Pass on."""
        self._listener.on_trial_end(record)

    def on_notice(self, notice: str) -> None:
        """Pass on."""
        self._listener.on_notice(notice)

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Pass on."""
        self._listener.on_search_end(study, records)
