"""The events of a search, for views."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .trial import Trial
from .trial_record import Report, TrialRecord

if TYPE_CHECKING:
    from .study import Study


class SearchListener:
    """Receive the events of a search; override the methods that you need.

    An error raised here while a trial runs in this process fails that trial. With workers, where no trial runs in this
    process, any error ends the search; its trials resume in the next session.
    """

    def on_first_call(self, news: str) -> None:
        """Handle news of the first call of a function that `tune` searches: that it runs, or how it has ended."""

    def on_activity(self, activity: str) -> None:
        """Handle what takes long before the first trial, such as opening the study; empty when it is done."""

    def on_search_prepare(self, study: Study) -> None:
        """Handle valid settings: next, the search packs the data, and opens the folder and the storage."""

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Handle the begin of the search: `records` are earlier trials, `notes` the decisions of the search."""

    def on_trial_begin(self, trial: Trial) -> None:
        """Handle a trial that has its parameters and is about to train."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """Handle an evaluation of a trial."""

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Handle an optimizer step of a trial."""

    def on_checkpoint(self, trial: Trial, step: int) -> None:
        """Handle a checkpoint that a trial of this process wrote after `step`; workers do not report theirs."""

    def on_records(self, records: Sequence[TrialRecord]) -> None:
        """Handle changed records: those of the trial of the next `on_trial_end`, or of other searches."""

    def on_trial_end(self, record: TrialRecord) -> None:
        """Handle the end of a trial, whatever its state."""

    def on_notice(self, notice: str) -> None:
        """Handle a notice about the search, such as why it ends early; that of Ctrl-C may come in another thread."""

    def on_study_changed(self, study: Study) -> None:
        """Handle other settings: the user has requested trials, or set another total or time limit."""

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Handle the end of the search: all trials are done, a budget is exhausted, or the user ended it."""


class PassingListener(SearchListener):
    """A listener that forwards all events; a subclass also handles some of them.

    Args:
        listener: receives the events.
    """

    def __init__(self, listener: SearchListener) -> None:
        self._listener = listener

    def on_first_call(self, news: str) -> None:
        """Pass on."""
        self._listener.on_first_call(news)

    def on_activity(self, activity: str) -> None:
        """Pass on."""
        self._listener.on_activity(activity)

    def on_search_prepare(self, study: Study) -> None:
        """Pass on."""
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

    def on_study_changed(self, study: Study) -> None:
        """Pass on."""
        self._listener.on_study_changed(study)

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Pass on."""
        self._listener.on_search_end(study, records)


@contextlib.contextmanager
def showing(listener: SearchListener, activity: str) -> Iterator[None]:
    """Notify a listener of an activity before the first trial, and of its end, whatever it comes to."""
    listener.on_activity(activity)
    try:
        yield
    finally:
        listener.on_activity("")
