"""What the other processes of a search do: they train the trials that the main one chooses, and decide nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .budgets import SearchBudget, TrialBudget
from .execution import Execution, Searchable, without_frames
from .listener import SearchListener
from .parameters import Parameter
from .ranks import Ranks
from .study import Study
from .trial import Trial, TrialRecord


@dataclass(frozen=True)
class Assignment:
    """A trial that all processes are about to train: what the main one tells the others of it."""

    number: int
    name: str
    params: dict[str, Any]
    arguments: dict[str, Any]
    suggested_by_space: set[str]
    earlier: TrialRecord | None
    records: list[TrialRecord]

    @classmethod
    def of(cls, trial: Trial, records: Sequence[TrialRecord]) -> Assignment:
        """Return what is to be told of a trial, beside these other ones."""
        return cls(
            trial.number,
            trial.name,
            dict(trial.params.values_by_name),
            dict(trial.arguments),
            set(trial.suggested_by_space),
            trial.earlier,
            list(records),
        )


@dataclass(frozen=True)
class SearchIsOver:
    """The main process runs no further trial: these are all there are, or this error ended the search."""

    records: list[TrialRecord]
    error: BaseException | None = None


def follow(trainer: Searchable, study: Study, ranks: Ranks) -> list[TrialRecord]:
    """Train the trials that the main process chooses until it says that the search is over; return its records.

    Raises:
        BaseException: the error that ended the search in the main process.
    """
    while True:
        told: Any = ranks.decide(lambda: None)
        if told is None:  # the main process waits for other searches
            continue
        if isinstance(told, SearchIsOver):
            if told.error is not None:
                raise told.error
            return told.records
        budget = TrialBudget(study, SearchBudget(study), told.records)
        trial = _FollowedTrial(told, ranks)
        execution = Execution(trainer, study, trial, told.records, budget, ranks, SearchListener())
        try:
            execution.run()
        except BaseException as error:  # the main process has heard of it, and records it
            without_frames(error)
        finally:
            execution.release()


class _FollowedTrial(Trial):
    """A trial whose values come from the main process."""

    def __init__(self, told: Assignment, ranks: Ranks) -> None:
        super().__init__(told.number, told.earlier)
        self.name, self.arguments = told.name, told.arguments
        self.suggested_by_space, self.ranks = told.suggested_by_space, ranks
        self.params.values_by_name.update(told.params)

    def report(self, value: float, resource: int) -> None:
        """Do nothing: the main process reports."""

    def should_prune(self) -> bool:
        """Return False: the main process asks."""
        return False

    def _choose(self, name: str, parameter: Parameter) -> Any:
        raise AssertionError("the main process chooses")
