"""The way from a running trial to its search: a plain call in this process, a message from another one."""

from __future__ import annotations

from typing import Protocol

from ..search.trial import TrialRecord, Verdict
from .messages import Reported


class Reporter(Protocol):
    """Receives what a running trial reports; the main process of the trial calls it, `progress` every process.

    Any method may end the trial by an error, such as one that says that the search has ended.
    """

    def progress(self, step: int, max_steps: int) -> None:
        """Take note that the trial has done this many optimizer steps."""

    def report(self, reported: Reported) -> Verdict:
        """Take an evaluation, and return what the trial does next."""

    def note(self, so_far: TrialRecord) -> None:
        """Record the state of the trial that its checkpoints do not hold; it is on disk when this returns."""

    def checkpoint(self, step: int) -> None:
        """Take note that the trial has written a checkpoint."""

    def notice(self, text: str) -> None:
        """Take something to say to the user."""


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
