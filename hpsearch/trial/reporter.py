"""The connection from a running trial to its search: a plain call in this process, a message from another one."""

from __future__ import annotations

from typing import Protocol

from ..search.trial import Verdict
from ..search.trial_record import TrialRecord
from .messages import Reported


class Reporter(Protocol):
    """Receives the reports of a running trial; the main process of the trial calls it, `progress` every process.

    Any method may end the trial by an error, such as one that says that the search has ended.
    """

    def progress(self, step: int, max_steps: int) -> None:
        """Record the number of optimizer steps that the trial has done."""

    def report(self, reported: Reported) -> Verdict:
        """Receive an evaluation, and return the verdict on the trial."""

    def note(self, so_far: TrialRecord) -> None:
        """Record the state of the trial that its checkpoints do not hold; it is on disk when this returns."""

    def checkpoint(self, step: int) -> None:
        """Record that the trial has written a checkpoint."""

    def notice(self, text: str) -> None:
        """Receive a notice for the user."""


class SilentReporter:
    """Reports nothing: for a process that trains with the main process of a trial, which reports."""

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
