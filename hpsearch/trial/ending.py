"""The end of a trial: it becomes a record, and an error if the search has to end with it."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import (
    CannotResumeError,
    CommunicationError,
    HpsearchError,
    ObjectiveError,
    ProcessFailedError,
    SpaceError,
    StorageError,
    StudyError,
)
from ..search.trial_record import TrialRecord, TrialState
from ..system.ctrl_c import ctrl_c_as_interruption
from ..system.files import disk_problem, is_disk_of
from ..system.machine import whereabouts
from ..training.batch_size import is_out_of_memory
from .execution import Execution, described, without_frames

logger = logging.getLogger(__name__)

MISTAKES_IN_THE_STUDY = (SpaceError, ObjectiveError, StudyError)
NO_FAULT_OF_THE_TRIAL = (StorageError, CommunicationError)


@dataclass(frozen=True)
class Ended:
    """The outcome of a trial that has ended.

    Attributes:
        record: of the trial.
        cause: what ends the search too; None if it continues.
        where: the trial was trained; empty if that is not known.
        is_out_of_memory: whether it failed because memory, of the machine or of its GPU, was exhausted.
    """

    record: TrialRecord
    cause: BaseException | None = None
    where: str = ""
    is_out_of_memory: bool = False


class TrialEndedSearch(Exception):
    """A trial found that the search must end; `cause` is the error to raise once the storage knows of the trial."""

    def __init__(self, record: TrialRecord, cause: BaseException) -> None:
        super().__init__(record.reason)
        self.record, self.cause = record, cause


def run_to_end(execution: Execution, action: Callable[[], tuple[TrialState, str | None]]) -> Ended:
    """Call `action`, which runs a trial or a part of it, and return how the trial ended; its memory is released.

    An error is the trial's: it failed; also one of a disk that its folder is not on, and of parameters that the user
    has requested. A mistake in the study refuses the trial, and ends the search; so does the user, a storage that
    cannot be reached, a disk that is full, a checkpoint of another model, or processes that have lost their
    connection: the trial is interrupted, and resumes another time.
    If one process of several failed, the trial ends by the error of that process, and the search ends too.
    """
    trace: str | None = None
    cause: BaseException | None = None
    is_short_of_memory = False
    try:
        with ctrl_c_as_interruption():
            state, reason = action()
    except BaseException as error:
        state, reason, trace, cause = how_it_ends(execution, error)
        is_short_of_memory = state is TrialState.FAILED and is_out_of_memory(error)
        without_frames(error)
    record = execution.record(state, reason, trace)
    where = ""
    with _going_on(record.number):
        where = whereabouts()
    with _going_on(record.number):
        execution.end_trackers(record)
    with _going_on(record.number):
        execution.release()
    return Ended(record, cause, where, is_short_of_memory)


def how_it_ends(execution: Execution, error: BaseException) -> tuple[TrialState, str, str | None, BaseException | None]:
    """Return the state, the reason and the traceback of a trial that raised, and the error that ends the search."""
    if isinstance(error, ProcessFailedError):
        state, reason, trace, cause = how_it_ends(execution, error.error)
        return state, reason, trace, cause or error
    if isinstance(error, SpaceError) and execution.is_requested:  # the request is mistaken, not the study
        return TrialState.FAILED, str(error), None, None
    if isinstance(error, MISTAKES_IN_THE_STUDY):
        is_resumed = isinstance(error, CannotResumeError)
        return TrialState.INTERRUPTED if is_resumed else TrialState.REFUSED, str(error), None, error
    if isinstance(error, NO_FAULT_OF_THE_TRIAL):
        return TrialState.INTERRUPTED, str(error), None, error
    if not isinstance(error, Exception):
        said = "interrupted by the user" if isinstance(error, KeyboardInterrupt) else f"ended by {error!r}"
        return TrialState.INTERRUPTED, said, None, error
    problem = disk_problem(error)
    if problem is not None and is_disk_of(execution.folder, error):
        return TrialState.INTERRUPTED, problem, None, StorageError(disk_message(execution.folder, problem))
    return TrialState.FAILED, described(error), "".join(traceback.format_exception(error)), None


def disk_message(folder: Path, problem: str) -> str:
    """Return a message for the user about a disk that is full or read-only."""
    return (
        f"{str(folder)!r} cannot be written: {problem}. Earlier files are not lost: free disk space, or make the "
        "disk writable, then the same call continues."
    )


@contextlib.contextmanager
def naming_the_disk(folder: Path) -> Iterator[None]:
    """Turn an error of a full or read-only disk, outside of trials, into one that names the remedy.

    Raises:
        StorageError: in place of the system's error, and of those of libraries.
    """
    try:
        yield
    except HpsearchError:
        raise
    except Exception as error:
        problem = disk_problem(error)
        if problem is None:
            raise
        raise StorageError(disk_message(folder, problem)) from error


@contextlib.contextmanager
def _going_on(number: int) -> Iterator[None]:
    """Log an error of what comes after the end of a trial, such as of a GPU that is in no good state any more.

    How the trial has ended counts all the same.
    """
    try:
        yield
    except Exception:
        logger.warning("After the end of trial %d:", number, exc_info=True)
