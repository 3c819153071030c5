"""The way from a running trial to its search: a plain call in this process, a message from another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .listener import SearchListener
from .messages import Reported
from .trial import Trial, TrialRecord, Verdict


class Reporter(Protocol):
    """Receives what a running trial reports; the main process of the trial calls it, `progress` every process.

    Any method may end the trial by an error, such as one that says that the search has ended.
    """

    def progress(self, step: int, max_steps: int) -> None:
        """Take note that the trial has done this many optimizer steps."""

    def report(self, reported: Reported) -> Verdict:
        """Take an evaluation, and return what the trial does next."""

    def note(self, so_far: TrialRecord) -> None:
        """Take how far the trial is, where its checkpoints do not tell; it is on disk when this returns."""

    def checkpoint(self, step: int) -> None:
        """Take note that the trial has written a checkpoint."""

    def notice(self, text: str) -> None:
        """Take something to say to the user."""


class DirectReporter:
    """Reports a trial of the searching process to its study, and shows it.

    Args:
        trial: of the study.
        listener: shows what happens.
        write: writes how far the trial is.
    """

    def __init__(self, trial: Trial, listener: SearchListener, write: Callable[[TrialRecord], None]) -> None:
        self._trial, self._listener, self._write = trial, listener, write

    def progress(self, step: int, max_steps: int) -> None:
        """Show it."""
        self._listener.on_progress(self._trial, step, max_steps)

    def report(self, reported: Reported) -> Verdict:
        """Report to the study, show the report, and return what the study says."""
        for value, resource in reported.new_values:
            self._trial.report(value, resource)
        self._listener.on_report(self._trial, reported.report)
        return self._trial.verdict(reported.so_far, reported.is_comparable, reported.is_last)

    def note(self, so_far: TrialRecord) -> None:
        """Write it to the trial's record."""
        self._write(so_far)

    def checkpoint(self, step: int) -> None:
        """Show it."""
        self._listener.on_checkpoint(self._trial, step)

    def notice(self, text: str) -> None:
        """Show it."""
        self._listener.on_notice(text)


class SilentReporter:
    """Says nothing: for a process that trains with the main process of a trial, which reports."""

    def progress(self, step: int, max_steps: int) -> None:
        """Do nothing."""

    def report(self, reported: Reported) -> Verdict:
        """Return that the trial continues."""
        return Verdict()

    def note(self, so_far: TrialRecord) -> None:
        """Do nothing."""

    def checkpoint(self, step: int) -> None:
        """Do nothing."""

    def notice(self, text: str) -> None:
        """Do nothing."""
