"""The processes that follow the main process of a trial: they train what it trains, and decide nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ..errors import CommunicationError, ProcessFailedError
from ..search.process_group import Ranks
from ..search.store.study_folder import has_ended, write_record
from ..search.study import Study
from ..search.time_and_epoch_limits import SearchBudget, TrialBudget
from ..search.trial_record import TrialRecord
from ..system.interruption import Interruption
from ..system.sockets import keeping_sockets
from ..trial.assignment import AssignedTrial, Assignment
from ..trial.ending import Ended, how_it_ends
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
        train_with_main(trainer, study, ranks, message, interruption, partial(_record_in_place_of_main, study))


def train_with_main(
    trainer: Searchable,
    study: Study,
    ranks: Ranks,
    assignment: Assignment,
    interruption: Interruption | None,
    record: Callable[[Ended], None],
) -> None:
    """Train a trial together with the main process, which records it.

    An error that all processes meet is not raised: the processes can train the next trial.

    Args:
        trainer, study: the recipe and the settings.
        ranks: the processes.
        assignment: the trial.
        interruption: of this process.
        record: records how the trial has ended, if this process alone has failed: the main one may never leave its
            collective (NCCL).

    Raises:
        ProcessFailedError: one process has failed, and the processes cannot work together again.
        CommunicationError: they have lost their connection.
        BaseException: what is not an Exception, such as KeyboardInterrupt.
    """
    search = SearchBudget(study, assignment.seconds, interruption=interruption)
    budget = TrialBudget(study, search, assignment.others)
    trial = AssignedTrial(assignment)
    trial.ranks = ranks
    execution = Execution(
        trainer, study, trial, assignment.others, budget, ranks, SilentReporter(), plan=assignment.preflight
    )
    try:
        with keeping_sockets(execution.loads_in_processes):
            execution.run()
    except BaseException as error:
        is_alone = isinstance(error, ProcessFailedError) and error.rank == ranks.rank
        if is_alone or not isinstance(error, Exception):
            record(_ended(execution, error, assignment.earlier, has_reports=not trainer.writes_its_checkpoints))
            raise
        without_frames(error)
        if isinstance(error, CommunicationError):
            raise  # else the main process records it
    finally:
        execution.release()


def _ended(execution: Execution, error: BaseException, earlier: TrialRecord | None, has_reports: bool) -> Ended:
    state, reason, trace, cause = how_it_ends(execution, error)
    record = execution.record(state, reason, trace)
    if not has_reports:  # those of its checkpoint may be fewer than the search has received from the main process
        return Ended(replace(record, reports=()), cause)
    return Ended(record.going_on_from(earlier), cause)


def _record_in_place_of_main(study: Study, ended: Ended) -> None:
    """Write the record of a trial that failed in this process; an interruption reaches the main one in any case."""
    if isinstance(ended.cause, Exception) and not has_ended(study.folder, ended.record.name):
        write_record(study.folder, ended.record)
