"""A group of actors that train each trial together, and a trial that they train.

A worker of Tune starts them in the placement group of its trial, and passes on what the first of them reports. None of
them ends because another one has. The worker, which alone knows the first cause, ends the whole group.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ...errors import CommunicationError
from ...search.study import Study
from ...trial.assignment import Assignment
from ...trial.ending import Ended
from ...trial.messages import Message, Progress
from ..processes.group_outcomes import GroupBroken, GroupFailed
from ..processes.rendezvous import LOOPBACK, Rendezvous
from .group_member import GroupMember
from .group_places import are_on_one_node, places_of
from .object_store import Sent
from .run_folders import RunFolders

# A process that has died is the reason of a lost connection, and is known in a moment.
_SECONDS_TO_LEARN_OF_A_DEATH = 2.0


class GroupLost(Exception):
    """A process of a group has died, or does not answer: the trial resumes in another group."""


@dataclass(frozen=True)
class GroupSettings:
    """What a group is made of.

    Attributes:
        processes: their number.
        bundle: the resources of each, by the names that Ray has for them.
        timeout: the seconds of silence after which a group is lost.
        paths: where the process that searches finds modules.
    """

    processes: int
    bundle: Mapping[str, float]
    timeout: float
    paths: tuple[str, ...]


class Group:
    """The processes of a group, which stay for the next trial; after one by which they are broken they are replaced.

    Args:
        recipe: the trainer that trials are made from.
        study: the settings of the search.
        settings: of the group.
    """

    def __init__(self, recipe: ray.ObjectRef[Sent], study: Study, settings: GroupSettings) -> None:
        self._recipe, self._study, self._settings = recipe, study, settings
        self._members: list[Any] = []
        self._rendezvous: Rendezvous | None = None
        self.has_trainer = False

    def load(self) -> None:
        """Start the processes, and let them load the trainer and meet, unless there are any.

        Raises:
            Exception: one of them cannot load the trainer.
            GroupLost: one of them has died, or they do not meet in time.
        """
        if self._members:
            return
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        self.has_trainer = True

    def begin(self, assignment: Assignment, folders: RunFolders) -> GroupTraining:
        """Begin a trial in all processes."""
        main, *others = self._members
        main.begin.remote(assignment, folders)
        follows = {each.follow.remote(assignment, folders.folder): rank for rank, each in enumerate(others, start=1)}
        return GroupTraining(self, main, follows, self._settings)

    def end(self) -> None:
        """Kill the processes, which may be unable to end by themselves."""
        for each in self._members:
            ray.kill(each)
        self._members, self._rendezvous, self.has_trainer = [], None, False

    def _start(self) -> None:
        processes = self._settings.processes
        self._members = [_member(self._settings.bundle, rank) for rank in range(processes)]
        locations = self._all([each.location.remote() for each in self._members])
        is_local = are_on_one_node(locations)
        # This process is on the node of the first one.
        rendezvous = self._rendezvous = Rendezvous(processes, LOOPBACK if is_local else locations[0].address)
        places = enumerate(zip(self._members, locations, places_of(locations), strict=True))
        self._all(
            [
                member.join.remote(
                    rendezvous.variables(rank, place.local_rank, place.local_size),
                    place,
                    LOOPBACK if is_local else location.address,
                )
                for rank, (member, location, place) in places
            ]
        )
        loaded = ([self._recipe], self._study, self._settings.paths, processes)
        self._all([each.load.remote(*loaded) for each in self._members])

    def _all(self, asked: Sequence[ray.ObjectRef[Any]]) -> list[Any]:
        """Return the answers of all processes; raise the first one that is an error, as the others may wait for it."""
        until = time.monotonic() + self._settings.timeout
        left = dict(zip(asked, range(len(asked)), strict=True))
        answers = {}
        while left:
            ready, _ = ray.wait(list(left), timeout=max(0.0, until - time.monotonic()))
            if not ready:
                raise GroupLost(no_answer_for(self._settings.timeout))
            rank = left.pop(ready[0])
            answers[rank] = answer_of(ready[0], rank, len(asked))
            if isinstance(answers[rank], CommunicationError):
                self._raise_a_death(left)
                raise GroupLost(str(answers[rank]))
            if isinstance(answers[rank], BaseException):
                raise answers[rank]
        return [answers[rank] for rank in range(len(asked))]

    def _raise_a_death(self, asked: Mapping[ray.ObjectRef[Any], int]) -> None:
        """Wait a moment for the death of a process that was asked.

        Raises:
            GroupLost: one has died.
        """
        ready, _ = ray.wait(list(asked), timeout=_SECONDS_TO_LEARN_OF_A_DEATH) if asked else ([], [])
        for each in ready:
            answer_of(each, asked[each], self._settings.processes)


class GroupTraining:
    """A trial that a group trains; it waits after every event until it may continue.

    Args:
        group: is ended if it cannot train another trial.
        main: the process that reports.
        follows: what the other processes return at the end of the trial, with their ranks.
        settings: of the group.
    """

    def __init__(
        self, group: Group, main: Any, follows: dict[ray.ObjectRef[Any], int], settings: GroupSettings
    ) -> None:
        self._group, self._main, self._follows, self._settings = group, main, follows, settings
        self._asked: ray.ObjectRef[Any] | None = None
        self._progress = Progress(0, 0)
        self._heard_at = time.monotonic()
        self._has_ended = False
        self._failed: GroupFailed | None = None  # in a process that does not report

    def next_event(self, seconds: float) -> Message | Ended:
        """Let the trial continue, and return what it reports next; after `seconds` without anything, how far it is.

        Raises:
            GroupLost: a process has died, or the group does not answer.
        """
        if self._asked is None:
            self._asked = self._main.next_event.remote(seconds)
            self._heard_at = time.monotonic()
        if not self._has_answered(self._asked, seconds):
            return self._progress if self._failed is None else self._end_by(self._failed)
        event, silence = answer_of(self._asked, 0, self._settings.processes)
        self._asked = None
        if isinstance(event, GroupFailed):
            return self._end_by(event)
        if isinstance(event, GroupBroken):
            self._wait_for_a_death()
            raise GroupLost(event.reason)
        if isinstance(event, Progress):
            self._progress = event
            self._heard_at = time.monotonic() - silence
            self._check_silence()
        self._has_ended = isinstance(event, Ended)
        return event  # type: ignore[no-any-return]

    def tell(self, answer: object) -> None:
        """Give the answer that the trial waits for."""
        self._main.tell.remote(answer)

    def save(self) -> int | None:
        """Let a trial with an unanswered report write a checkpoint, and return its step; None if none is due.

        Raises:
            GroupLost: a process has died, or the group does not answer.
        """
        if self._asked is not None or self._has_ended:
            return None
        self._heard_at = time.monotonic()
        asked = self._main.save.remote()
        if not self._has_answered(asked, self._settings.timeout):
            return None
        step: int | None = answer_of(asked, 0, self._settings.processes)
        return step

    def finish_step(self, number: int) -> None:
        """Let the trial end with a checkpoint after the step, because of a signal."""
        self._main.finish_step.remote(number)

    def leave(self) -> None:
        """Leave the trial; if it has not ended, its group ends."""
        if not self._has_ended:
            self._group.end()

    def _end_by(self, failed: GroupFailed) -> Ended:
        """End the group by the error of one process; the others may never leave their collective."""
        self._group.end()
        self._has_ended = True
        return failed.ended

    def _has_answered(self, asked: ray.ObjectRef[Any], seconds: float) -> bool:
        """Wait for an answer of the process that reports, until another one has failed alone, or for `seconds`.

        Raises:
            GroupLost: one of them has died, or the group is silent for too long.
        """
        until = time.monotonic() + seconds
        while self._failed is None:
            ready, _ = ray.wait([asked, *self._follows], timeout=max(0.0, until - time.monotonic()))
            if asked in ready:
                return True
            if not ready:
                self._check_silence()
                return False
            for each in ready:
                self._take(each)
        return False

    def _take(self, follow: ray.ObjectRef[Any]) -> None:
        """Take the end of the trial in a process that follows."""
        rank = self._follows.pop(follow)
        self._failed = answer_of(follow, rank, self._settings.processes) or self._failed

    def _wait_for_a_death(self) -> None:
        """Wait a moment for the death of a process that follows.

        Raises:
            GroupLost: one has died.
        """
        until = time.monotonic() + _SECONDS_TO_LEARN_OF_A_DEATH
        while self._follows and time.monotonic() < until:
            ready, _ = ray.wait(list(self._follows), timeout=max(0.0, until - time.monotonic()))
            for each in ready:
                self._take(each)

    def _check_silence(self) -> None:
        if time.monotonic() - self._heard_at > self._settings.timeout:
            raise GroupLost(no_answer_for(self._settings.timeout))


def answer_of(asked: ray.ObjectRef[Any], rank: int, processes: int) -> Any:
    """Return the answer of a process, which is there.

    Raises:
        GroupLost: the process has died.
    """
    try:
        return ray.get(asked)
    except RayActorError as error:
        raise GroupLost(f"process {rank} of {processes}: {_death(error)}") from error


def no_answer_for(seconds: float) -> str:
    """Return that a group hangs, in words."""
    return f"no answer for {seconds:g} s"


def _death(error: RayActorError) -> str:
    """Return how a process was lost, in words; Ray's own have several lines."""
    if isinstance(error, ActorUnavailableError):
        return "it cannot be reached"
    if isinstance(error, ActorDiedError) and "worker process has died" in str(error):
        return "it has died"
    return str(error).strip().splitlines()[-1].rstrip(".")


def _member(bundle: Mapping[str, float], rank: int) -> Any:
    """Start a process in the bundle of its rank of this actor's placement group."""
    further = dict(bundle)
    amounts: dict[str, Any] = {
        "num_cpus": further.pop("CPU", 0),
        "num_gpus": further.pop("GPU", 0),
        "memory": further.pop("memory", None),
    }
    group = ray.util.get_current_placement_group()
    assert group is not None, "Tune's actor is in the placement group of its trial"
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
    kind: Any = ray.remote(GroupMember)
    return kind.options(**amounts, resources=further, scheduling_strategy=place).remote()
