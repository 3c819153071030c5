"""A trial in a process that does not search: it tells the one that does what happens, and does as it is told."""

from __future__ import annotations

import contextlib
import pickle
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import cloudpickle

from ..errors import HpsearchError
from ..interruption import Interruption
from .assignment import AssignedTrial, Assignment
from .budgets import SearchBudget, TrialBudget
from .ending import Ended, run_to_end
from .execution import Execution, Searchable
from .folder import write_record
from .listener import SearchListener
from .messages import Notice, Progress, Question, Reported
from .parameters import Parameter
from .ranks import OneProcess
from .study import Study
from .trial import Report, Trial, TrialRecord, TrialState, Verdict


class Abandoned(BaseException):
    """Raised inside a trial that goes on another time, or elsewhere."""


class Line(ABC):
    """Leads from the trial to the search.

    Attributes:
        step, max_steps: how far the trial is.
        interruption: notes that the search is ended by a signal: the trial finishes its step and writes a checkpoint.
    """

    step = 0
    max_steps = 0
    interruption: Interruption

    @abstractmethod
    def ask(self, message: Any) -> Any:
        """Tell the search something, and wait for its answer.

        Raises:
            Abandoned: the trial is not to go on here.
        """

    @abstractmethod
    def look(self) -> None:
        """Look whether the trial is to go on, after each update; may tell how far it is.

        Raises:
            Abandoned: the trial is not to go on here.
        """

    def keep(self) -> None:  # noqa: B027 - most have nothing to do
        """Keep the checkpoints that there are now, wherever the trial may go on."""


def train_as_told(recipe: Searchable, study: Study, told: Assignment, line: Line) -> Ended:
    """Train a trial to its end, and return how it ended, in what another process can load."""
    trial = _DistantTrial(told, line)
    execution = Execution(
        recipe,
        study,
        trial,
        told.others,
        TrialBudget(study, SearchBudget(study, told.seconds, interruption=line.interruption), told.others),
        OneProcess(),
        _Teller(trial, line),
        on_fallback=lambda record: write_record(study.folder, record.going_on_from(told.earlier)),
        plan=told.preflight,
    )
    trial.execution = execution
    ended = run_to_end(execution, execution.run)
    return replace(ended, cause=sendable(ended.cause))


class _DistantTrial(AssignedTrial):
    """The trial as training sees it: what it reports and asks goes to the search, which answers."""

    execution: Execution

    def __init__(self, told: Assignment, line: Line) -> None:
        super().__init__(told)
        self._line = line
        self._told: list[tuple[float, int]] = []
        self._answer = Verdict()
        self._is_at_first_update = True

    def report(self, value: float, resource: int) -> None:
        """Remember it for the next message."""
        self._told.append((value, resource))

    def show(self, report: Report) -> None:
        """Tell the search of a report, and wait for what it makes of it."""
        told, self._told = tuple(self._told), []
        is_comparable = bool(told) and told[-1][1] == report.comparable_resource
        is_last = self.execution.is_ending
        so_far = self.execution.record(TrialState.RUNNING)
        self._answer = self._line.ask(Reported(report, told, is_comparable, is_last, so_far))

    def verdict(self, so_far: TrialRecord, is_comparable: bool, is_last: bool) -> Verdict:
        """Return what the search said; a trial at its end is neither pruned nor paused."""
        said = self._answer
        return Verdict() if is_last and (said.prune or said.pause) else said

    def begin(self) -> None:
        """Tell the search, at the first update, that the trial has gone on with other parameters than before."""
        if not self._is_at_first_update:
            return
        self._is_at_first_update = False
        so_far = self.execution.record(TrialState.RUNNING)
        if so_far.schedule and so_far.schedule != (self.earlier.schedule if self.earlier is not None else ()):
            self._line.ask(Progress(self._line.step, self._line.max_steps, so_far))

    def grants_checkpoint(self) -> bool:
        """Tell whether the search waits for a checkpoint, which it has now: it wants one only."""
        is_wanted, self._answer = self._answer.save, Verdict()
        return is_wanted

    def _choose(self, name: str, parameter: Parameter) -> Any:
        value = self._line.ask(Question(name, parameter))
        if isinstance(value, Exception):
            raise value
        return value


class _Teller(SearchListener):
    """Tells the search of what happens in a trial, and lets it wait."""

    def __init__(self, trial: _DistantTrial, line: Line) -> None:
        self._trial, self._line = trial, line

    def on_report(self, trial: Trial, report: Report) -> None:
        self._trial.show(report)

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        self._line.step, self._line.max_steps = step, max_steps
        self._line.look()
        self._trial.begin()

    def on_notice(self, notice: str) -> None:
        self._line.ask(Notice(notice))

    def on_checkpoint(self, trial: Trial, step: int) -> None:
        """Keep the checkpoint; if the search waits for it, tell of it, and wait."""
        self._line.keep()
        if self._trial.grants_checkpoint():
            self._line.ask(step)


def sendable(error: BaseException | None) -> BaseException | None:
    """Return an error that another process can load; one that it cannot as its text."""
    if error is None:
        return None
    with contextlib.suppress(Exception):
        sent = cloudpickle.dumps(error)
        if isinstance(pickle.loads(sent), BaseException):  # noqa: S301 - our own bytes
            return error
    return HpsearchError(f"{type(error).__name__}: {error}")
