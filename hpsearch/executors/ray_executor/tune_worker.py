"""The actor that trains trials, one after another; Tune calls it, and receives the events with every result."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.result import TRAINING_ITERATION

from ...search.metrics.added_metrics import by_every_name
from ...search.study import Study
from ...trial.assignment import Assignment
from ...trial.ending import Ended
from ...trial.execution import described
from ...trial.messages import Message, Reported
from .events import KEY, TuneConfig, TuneResult, Unusable
from .group_training import Group, GroupLost, GroupSettings
from .object_store import Sent
from .own_process import OwnProcess, Training, TrainsTrials
from .run_folders import RunFolders

# Tune's key of the objective, by which schedulers and searchers compare trials.
OBJECTIVE = "objective"
# What every report has besides the metrics of the evaluation.
IN_EVERY_REPORT = (TRAINING_ITERATION, "resource", "step", "epoch")
_NOTE = "checkpoint.json"


@dataclass(frozen=True)
class Shared:
    """The settings that all workers of a search share.

    Attributes:
        recipe: refers to the trainer, which lies in Ray's object store once.
        study: the settings.
        folders: where the checkpoints of running trials lie.
        paths: where the process that searches finds modules.
        seconds_between_progress: the interval at which a worker reports the progress of its trial.
        are_copied: whether trials may resume from the checkpoints of others.
        group: the group of processes that trains a trial; None: the worker trains it alone.
    """

    recipe: ray.ObjectRef[Sent]
    study: Study
    folders: RunFolders
    paths: tuple[str, ...]
    seconds_between_progress: float
    are_copied: bool
    group: GroupSettings | None = None


class TrialWorker(tune.Trainable):
    """Trains a trial up to its next event, with every step; then another trial, in the same process."""

    _assignment: Assignment

    def setup(self, config: TuneConfig, shared: Shared | None = None) -> None:
        """Take the first trial; what takes time is left to the first step."""
        assert shared is not None
        self._shared = shared
        sys.path += [each for each in shared.paths if each not in sys.path]
        trained = (shared.recipe, shared.study)
        self._processes: TrainsTrials = OwnProcess(*trained) if shared.group is None else Group(*trained, shared.group)
        self._numbers: dict[str, object] = {}
        self._training: Training | None = None
        self._copy: str | None = None
        self._take(config)

    def reset_config(self, new_config: TuneConfig) -> bool:
        """Take another trial, or the same one with other parameters."""
        self._leave()
        self._take(new_config)
        return True

    def begin(self, seconds: float | None) -> None:
        """Note the time that the search has left, which counts from now; it comes before the first step of a trial."""
        self._assignment = replace(self._assignment, seconds=seconds)
        self._received = time.monotonic()

    def step(self) -> TuneResult:
        """Train up to the next event and return it, with what schedulers and searchers compare.

        Raises:
            GroupLost: Tune resumes the trial in another worker, with a group in another placement group.
        """
        event: Message | Ended | Unusable
        try:
            training = self._training or self._begin()
        except GroupLost:
            raise
        except Exception as error:
            event = Unusable(described(error).strip().splitlines()[-1], has_trainer=self._processes.has_trainer)
        else:
            event = training.next_event(self._shared.seconds_between_progress)
        if isinstance(event, Reported):
            self._numbers = _numbers(event)
        return {**self._numbers, KEY: event, "done": isinstance(event, (Ended, Unusable))}

    def tell(self, answer: object) -> None:
        """Answer the event of the last step; the trial continues with the next one."""
        if self._training is not None:
            self._training.tell(answer)

    def finish_step(self, number: int) -> None:
        """Let the trial end with a checkpoint after the step, because of a signal that the search has received."""
        self._signal = number
        if self._training is not None:
            self._training.finish_step(number)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint of the trial where it stands; Tune keeps a note of where that is."""
        has_saved = self._training is not None and self._training.save() is not None
        copy = self._shared.folders.copy(self._assignment.name) if has_saved and self._shared.are_copied else None
        Path(checkpoint_dir, _NOTE).write_text(json.dumps({"number": self._assignment.number, "copy": copy}))

    def load_checkpoint(self, checkpoint_dir: Any) -> None:
        """Resume from a checkpoint of another trial; of its own, that is the newest in its folder anyway."""
        note = json.loads(Path(checkpoint_dir, _NOTE).read_text())
        self._copy = None if note["number"] == self._assignment.number else note["copy"]

    def cleanup(self) -> None:
        """Leave the trial, which resumes from its last checkpoint another time."""
        self._leave()
        self._processes.end()

    def _take(self, config: TuneConfig) -> None:
        self._assignment = config[KEY]
        self._received = time.monotonic()
        self._copy = None
        self._signal = 0
        self._numbers = {TRAINING_ITERATION: 0}

    def _begin(self) -> Training:
        self._processes.load()
        folders, run = self._shared.folders, self._assignment.name
        folders.begin(run)
        if self._copy is not None:
            folders.take(self._copy, run)
            folders.keep(run)
        assignment = self._assignment.after(time.monotonic() - self._received)
        training = self._training = self._processes.begin(assignment, folders)
        if self._signal:
            training.finish_step(self._signal)
        return training

    def _leave(self) -> None:
        if self._training is not None:
            self._training.leave()
            self._training = None


def _numbers(event: Reported) -> dict[str, object]:
    """Return the values that Tune's schedulers and searchers may read."""
    report = event.report
    return {
        **by_every_name(report.metrics),
        OBJECTIVE: event.new_values[-1][0] if event.is_comparable else math.nan,
        TRAINING_ITERATION: len(event.so_far.reports),
        "resource": report.resource,
        "step": report.step,
        "epoch": report.epoch,
    }
