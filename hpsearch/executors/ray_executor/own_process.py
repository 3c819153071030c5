"""Where a worker of Tune trains its trials: in its own process, or in a group of processes that it starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import ray

from ...search.study import Study
from ...trial.assignment import Assignment
from ...trial.ending import Ended
from ...trial.messages import Message
from ...trial.searchable import Searchable
from .object_store import Sent
from .run_folders import RunFolders
from .training_thread import TrainingThread


class Training(Protocol):
    """A trial that is trained up to its next event, and waits after each; see `TrainingThread`."""

    def next_event(self, seconds: float) -> Message | Ended:
        """Let the trial continue, and return what it reports next; after `seconds` without anything, how far it is."""

    def tell(self, answer: object) -> None:
        """Give the answer that the trial waits for."""

    def save(self) -> int | None:
        """Let a trial with an unanswered report write a checkpoint, and return its step; None if none is due."""

    def finish_step(self, number: int) -> None:
        """Let the trial end with a checkpoint after the step, because of a signal."""

    def leave(self) -> None:
        """End the training; the trial resumes from its last checkpoint another time."""


class TrainsTrials(Protocol):
    """One or more processes that train one trial after another."""

    @property
    def has_trainer(self) -> bool:
        """Whether they have loaded the trainer."""

    def load(self) -> None:
        """Load the trainer, unless it is loaded.

        Raises:
            Exception: it cannot be loaded.
        """

    def begin(self, assignment: Assignment, folders: RunFolders) -> Training:
        """Begin a trial."""

    def end(self) -> None:
        """End the processes that were started for this."""


class OwnProcess:
    """The process of the worker itself.

    Args:
        recipe: the trainer that trials are made from.
        study: the settings of the search.
    """

    def __init__(self, recipe: ray.ObjectRef[Sent], study: Study) -> None:
        self._sent, self._study = recipe, study
        self._recipe: Searchable | None = None

    @property
    def has_trainer(self) -> bool:
        """Whether it has loaded the trainer."""
        return self._recipe is not None

    def load(self) -> None:
        """Load the trainer, unless it is loaded."""
        if self._recipe is None:
            self._recipe = ray.get(self._sent).load()

    def begin(self, assignment: Assignment, folders: RunFolders) -> TrainingThread:
        """Begin a trial in a thread."""
        assert self._recipe is not None, "load() comes first"
        study = replace(self._study, folder=folders.folder)
        return TrainingThread(self._recipe, study, assignment, folders)

    def end(self) -> None:
        """Do nothing: Tune ends the process."""
