"""Run a trial in a worker: forward its reports to the search, and apply the verdicts."""

from __future__ import annotations

import contextlib
import pickle
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import cloudpickle

from ..errors import HpsearchError, ProcessFailedError
from ..search.process_group import OneProcess, Ranks
from ..search.space.parameters import Parameter
from ..search.study import Study
from ..search.time_and_epoch_limits import SearchBudget, TrialBudget
from ..search.trial import Verdict
from ..search.trial_record import TrialRecord
from ..system.interruption import Interruption
from .assignment import AssignedTrial, Assignment
from .ending import Ended, run_to_end
from .execution import Execution
from .messages import Noted, Notice, Question, Reported, Saved
from .searchable import Searchable


class Abandoned(BaseException):
    """Raised inside a trial that resumes another time, or elsewhere."""


class Line(ABC):
    """The connection from a trial to the search.

    Attributes:
        step, max_steps: how far the trial is.
        interruption: notes that the search is ended by a signal: the trial finishes its step and writes a checkpoint.
    """

    step = 0
    max_steps = 0
    interruption: Interruption

    @abstractmethod
    def ask(self, message: object) -> Any:
        """Send the search a message, and wait for its answer.

        Raises:
            Abandoned: the trial is not to continue here.
        """

    @abstractmethod
    def look(self) -> None:
        """Check after each step whether the trial continues; may report its progress.

        Raises:
            Abandoned: the trial is not to continue here.
        """

    def keep(self) -> None:  # noqa: B027 - most have nothing to do
        """Keep the checkpoints that there are now, wherever the trial may resume."""


def train_remotely(
    recipe: Searchable, study: Study, assignment: Assignment, line: Line, ranks: Ranks | None = None
) -> Ended:
    """Train a trial to completion, and return its outcome in a form that another process can load.

    Args:
        recipe, study: the recipe and the settings.
        assignment: the trial.
        line: to the search.
        ranks: the processes that train it together, of which this is the main one; None: this one alone.
    """
    ranks = OneProcess() if ranks is None else ranks
    trial = _RemoteTrial(assignment, line)
    trial.ranks = ranks
    execution = Execution(
        recipe,
        study,
        trial,
        assignment.others,
        TrialBudget(study, SearchBudget(study, assignment.seconds, interruption=line.interruption), assignment.others),
        ranks,
        RemoteReporter(line),
        plan=assignment.preflight,
    )
    ended = run_to_end(execution, execution.run)
    return replace(ended, cause=sendable(ended.cause))


class _RemoteTrial(AssignedTrial):
    """The trial as training sees it: the search chooses the values that it asks for."""

    def __init__(self, assignment: Assignment, line: Line) -> None:
        super().__init__(assignment)
        self._line = line

    def _choose(self, name: str, parameter: Parameter) -> object:
        value = self._line.ask(Question(name, parameter))
        if isinstance(value, Exception):
            raise value
        return value


class RemoteReporter:
    """Sends the messages of a trial to the process that runs the search, and returns its answers.

    Args:
        line: leads to that process.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._is_checkpoint_wanted = False

    def progress(self, step: int, max_steps: int) -> None:
        """Leave the trial if the search has ended it; report the progress from time to time."""
        self._line.step, self._line.max_steps = step, max_steps
        self._line.look()

    def report(self, reported: Reported) -> Verdict:
        """Send a report, and return the verdict; a trial at its end is neither pruned nor paused."""
        said: Verdict = self._line.ask(reported)
        self._is_checkpoint_wanted = said.save
        return Verdict() if reported.is_last and (said.prune or said.pause) else said

    def note(self, so_far: TrialRecord) -> None:
        """Ask the search to write it."""
        self._line.ask(Noted(so_far))

    def checkpoint(self, step: int) -> None:
        """Keep the checkpoint; if the search has asked for this one, report it, and wait."""
        self._line.keep()
        is_wanted, self._is_checkpoint_wanted = self._is_checkpoint_wanted, False
        if is_wanted:
            self._line.ask(Saved(step))

    def notice(self, text: str) -> None:
        """Ask the search to show it."""
        self._line.ask(Notice(text))


def sendable(error: BaseException | None) -> BaseException | None:
    """Return an error that another process can load; one that it cannot as its text."""
    if error is None:
        return None
    with contextlib.suppress(Exception):
        sent = cloudpickle.dumps(error)
        if isinstance(pickle.loads(sent), BaseException):  # noqa: S301 - our own bytes
            return error
    if isinstance(error, ProcessFailedError):
        return ProcessFailedError(error.rank, HpsearchError(f"{type(error.error).__name__}: {error.error}"))
    return HpsearchError(f"{type(error).__name__}: {error}")
