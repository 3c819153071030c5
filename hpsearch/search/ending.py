"""How a trial ends: whatever happens while it runs becomes a record, and an error if the search has to end with it."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..errors import CannotResumeError, ObjectiveError, SpaceError, StorageError, StudyError
from ..machine import whereabouts
from ..surroundings import ctrl_c_as_interruption
from .execution import Execution, described, without_frames
from .trial import TrialRecord, TrialState

logger = logging.getLogger(__name__)

MISTAKES_IN_THE_STUDY = (SpaceError, ObjectiveError, StudyError)


@dataclass(frozen=True)
class Ended:
    """What is left of a trial that has ended.

    Attributes:
        record: of the trial.
        cause: what ends the search too; None if it goes on.
        where: the trial was trained; empty if that is not known.
    """

    record: TrialRecord
    cause: BaseException | None = None
    where: str = ""


class TrialEndedSearch(Exception):
    """A trial found that the search must end; `cause` is the error to raise once the storage knows of the trial."""

    def __init__(self, record: TrialRecord, cause: BaseException) -> None:
        super().__init__(record.reason)
        self.record, self.cause = record, cause


def run_to_end(execution: Execution, action: Callable[[], tuple[TrialState, str | None]]) -> Ended:
    """Call `action`, which runs a trial or a part of it, and return how the trial ended; its memory is released.

    An error is the trial's: it failed. A mistake in the study refuses the trial, and ends the search; so does the user,
    a storage that is gone, or a checkpoint of another model: the trial is interrupted, and goes on another time.
    """
    trace: str | None = None
    cause: BaseException | None = None
    try:
        with ctrl_c_as_interruption():
            state, reason = action()
    except CannotResumeError as error:
        state, reason, cause = TrialState.INTERRUPTED, str(error), without_frames(error)
    except MISTAKES_IN_THE_STUDY as error:
        state, reason, cause = TrialState.REFUSED, str(error), without_frames(error)
    except StorageError as error:
        state, reason, cause = TrialState.INTERRUPTED, str(error), without_frames(error)
    except Exception as error:
        state, reason = TrialState.FAILED, described(error)
        trace = traceback.format_exc()
        without_frames(error)
    except BaseException as error:
        said = "interrupted by the user" if isinstance(error, KeyboardInterrupt) else f"ended by {error!r}"
        state, reason, cause = TrialState.INTERRUPTED, said, without_frames(error)
    record = execution.record(state, reason, trace)
    where = ""
    with _going_on(record.number):
        where = whereabouts()
    with _going_on(record.number):
        execution.end_trackers(record)
    with _going_on(record.number):
        execution.release()
    return Ended(record, cause, where)


@contextlib.contextmanager
def _going_on(number: int) -> Iterator[None]:
    """Log an error of what comes after the end of a trial, such as of a GPU that is in no good state any more.

    How the trial has ended counts all the same.
    """
    try:
        yield
    except Exception:
        logger.warning("After the end of trial %d:", number, exc_info=True)
