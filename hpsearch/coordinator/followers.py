"""The other processes of a distributed search: they train the trials that the main process chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import CommunicationError
from ..search.ranks import Ranks
from ..search.study import Study
from ..search.time_and_epoch_limits import SearchBudget, TrialBudget
from ..search.trial import TrialRecord
from ..system.interruption import Interruption
from ..system.sockets import keeping_sockets
from ..trial.assignment import AssignedTrial, Assignment
from ..trial.execution import Execution, without_frames
from ..trial.reporter import SilentReporter
from ..trial.searchable import Searchable


@dataclass(frozen=True)
class SearchIsOver:
    """The main process runs no further trial: these are all records, or this error ended the search."""

    records: list[TrialRecord]
    error: BaseException | None = None


def follow(
    trainer: Searchable, study: Study, ranks: Ranks, interruption: Interruption | None = None
) -> list[TrialRecord]:
    """Train the trials that the main process chooses until it ends the search; return its records.

    A signal that this process receives ends the search in all of them.

    Raises:
        BaseException: the error that ended the search in the main process.
        CommunicationError: the processes have lost their connection.
    """
    while True:
        message: Any = ranks.decide(lambda: None)
        if message is None:  # the main process waits for other searches
            continue
        if isinstance(message, SearchIsOver):
            if message.error is not None:
                raise message.error
            return message.records
        assignment: Assignment = message
        budget = TrialBudget(study, SearchBudget(study, interruption=interruption), assignment.others)
        trial = AssignedTrial(assignment)
        trial.ranks = ranks
        reporter = SilentReporter()
        execution = Execution(
            trainer, study, trial, assignment.others, budget, ranks, reporter, plan=assignment.preflight
        )
        try:
            with keeping_sockets(execution.loads_in_processes):
                execution.run()
        except CommunicationError as error:
            without_frames(error)
            raise
        except BaseException as error:  # the main process records it
            without_frames(error)
        finally:
            execution.release()
