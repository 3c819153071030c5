"""The other processes of a distributed search: they train the trials that the main process chooses."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import CommunicationError, ProcessFailedError
from ..search.process_group import Ranks
from ..search.store.study_folder import has_ended, write_record
from ..search.study import Study
from ..search.time_and_epoch_limits import SearchBudget, TrialBudget
from ..search.trial import TrialRecord
from ..system.interruption import Interruption
from ..system.sockets import keeping_sockets
from ..trial.assignment import AssignedTrial, Assignment
from ..trial.ending import how_it_ends
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
        message: Assignment | SearchIsOver | None = ranks.decide(lambda: None)
        if message is None:  # the main process waits for other searches
            continue
        if isinstance(message, SearchIsOver):
            if message.error is not None:
                raise message.error
            return message.records
        assignment: Assignment = message
        budget = TrialBudget(
            study, SearchBudget(study, assignment.seconds, interruption=interruption), assignment.others
        )
        trial = AssignedTrial(assignment)
        trial.ranks = ranks
        reporter = SilentReporter()
        execution = Execution(
            trainer, study, trial, assignment.others, budget, ranks, reporter, plan=assignment.preflight
        )
        try:
            with keeping_sockets(execution.loads_in_processes):
                execution.run()
        except ProcessFailedError as failed:
            if failed.rank == ranks.rank:
                _record_in_place_of_main(study, execution, failed, assignment.earlier)
            raise
        except Exception as error:  # the main process records it
            without_frames(error)
            if isinstance(error, CommunicationError):
                raise
        finally:
            execution.release()


def _record_in_place_of_main(
    study: Study, execution: Execution, failed: ProcessFailedError, earlier: TrialRecord | None
) -> None:
    """Write the record of a trial that failed in this process: the main one may never leave its collective (NCCL)."""
    state, reason, trace, _ = how_it_ends(execution, failed)
    record = execution.record(state, reason, trace).going_on_from(earlier)
    if not has_ended(study.folder, record.name):
        write_record(study.folder, record)
