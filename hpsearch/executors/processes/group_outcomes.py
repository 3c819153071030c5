"""How a trial has ended in the processes of a group, and whether these can train another trial together."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ...coordinator.follower_processes import train_with_main
from ...errors import CommunicationError, ProcessFailedError
from ...search.process_group import Ranks
from ...search.study import Study
from ...system.interruption import Interruption
from ...trial.assignment import Assignment
from ...trial.ending import Ended
from ...trial.execution import described
from ...trial.remote_trial import sendable
from ...trial.searchable import Searchable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupFailed:
    """A trial has ended by an error of one process of its group, which cannot train another trial."""

    ended: Ended


@dataclass(frozen=True)
class GroupBroken:
    """The processes of a group have lost their connection, so one of them has died, or will be found to hang."""

    reason: str


def outcome_in_main(ended: Ended) -> Ended | GroupFailed | GroupBroken:
    """Return what the end of a trial in the process that reports means for its group."""
    if isinstance(ended.cause, ProcessFailedError):
        return GroupFailed(replace(ended, cause=None))
    if isinstance(ended.cause, CommunicationError):
        return GroupBroken(described(ended.cause.__cause__ or ended.cause))
    return ended


def follow_main(
    recipe: Searchable, study: Study, assignment: Assignment, interruption: Interruption, ranks: Ranks
) -> GroupFailed | None:
    """Train a trial with the process that reports; return what there is to send, if that process cannot."""
    outcomes: list[Ended] = []
    try:
        train_with_main(recipe, study, ranks, assignment, interruption, outcomes.append)
    except BaseException as error:
        logger.warning("This process leaves the trial: %s", described(error))
    if not outcomes:
        return None
    [ended] = outcomes
    cause = None if isinstance(ended.cause, ProcessFailedError) else sendable(ended.cause)
    return GroupFailed(replace(ended, cause=cause))
