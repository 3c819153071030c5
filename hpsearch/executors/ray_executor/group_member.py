"""An actor that is one process of a group. It imports torch after it knows which GPUs the group has on its node."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from .group_places import Location, Place

if TYPE_CHECKING:
    from ...search.process_group import Ranks
    from ...search.study import Study
    from ...trial.assignment import Assignment
    from ...trial.ending import Ended
    from ...trial.messages import Message
    from ...trial.searchable import Searchable
    from ..processes.group_outcomes import GroupBroken, GroupFailed
    from .object_store import Sent
    from .run_folders import RunFolders
    from .training_thread import TrainingThread


class GroupMember:
    """Trains trials together with the other members of its group; that of rank 0 reports, the others follow it."""

    _recipe: Searchable
    _study: Study
    _ranks: Ranks

    def __init__(self) -> None:
        self._training: TrainingThread | None = None

    def location(self) -> Location:
        """Return where this process is."""
        context = ray.get_runtime_context()
        gpus = tuple(map(str, context.get_accelerator_ids().get("GPU", ())))
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return Location(context.get_node_id(), address, gpus)

    def join(self, variables: Mapping[str, str], place: Place, address: str) -> None:
        """Take the place in the group: the GPUs of its node, and the way to the other members.

        Args:
            variables: see `Rendezvous.variables`.
            place: of this process.
            address: of this node, at which the other members reach this one.
        """
        if place.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
        import torch

        from ..processes.rendezvous import join_environment

        join_environment(dict(variables), torch.get_num_threads(), not place.gpus, address)

    def load(
        self, recipe: list[ray.ObjectRef[Sent]], study: Study, paths: tuple[str, ...], processes: int
    ) -> BaseException | None:
        """Load the trainer, whose arguments join the group; return the error if that cannot be."""
        from ...trial.remote_trial import sendable
        from ..processes.joined_arguments import ranks_in_group

        try:
            sys.path += [each for each in paths if each not in sys.path]
            self._recipe, self._study = ray.get(recipe[0]).load(), study
            self._ranks = ranks_in_group(self._recipe, processes)
        except Exception as error:
            return sendable(error)
        return None

    def follow(self, assignment: Assignment, folder: Path) -> GroupFailed | None:
        """Train a trial with the member that reports; return how the trial ended, if this member alone has failed."""
        from ...system.interruption import Interruption
        from ..processes.group_outcomes import follow_main

        study = replace(self._study, folder=folder)
        return follow_main(self._recipe, study, assignment, Interruption(), self._ranks)

    def begin(self, assignment: Assignment, folders: RunFolders) -> None:
        """Begin a trial in a thread; in the member that reports."""
        from .training_thread import TrainingThread

        if self._training is not None:  # it has ended
            self._training.leave()
        study = replace(self._study, folder=folders.folder)
        self._training = TrainingThread(self._recipe, study, assignment, folders, self._ranks)

    def next_event(self, seconds: float) -> tuple[Message | Ended | GroupFailed | GroupBroken, float]:
        """Let the trial continue; return what it reports next, and the seconds since the trial has done anything."""
        from ...trial.ending import Ended
        from ..processes.group_outcomes import outcome_in_main

        event = self._begun.next_event(seconds)
        return outcome_in_main(event) if isinstance(event, Ended) else event, self._begun.seconds_of_silence

    def tell(self, answer: object) -> None:
        """Give the answer that the trial waits for."""
        self._begun.tell(answer)

    def save(self) -> int | None:
        """Let the trial write a checkpoint; see `TrainingThread.save`."""
        return self._begun.save()

    def finish_step(self, number: int) -> None:
        """Let the trial end with a checkpoint after the step, because of a signal."""
        self._begun.finish_step(number)

    @property
    def _begun(self) -> TrainingThread:
        assert self._training is not None, "begin() comes first"
        return self._training
