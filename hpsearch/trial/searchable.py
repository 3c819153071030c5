"""What a search asks of a recipe, and of the trainers that it makes for trials.

Three recipes exist: `trainer/searchable_trainer.py` adapts `hpsearch.Trainer`, `any_trainer/trainer_function.py` adapts
a function that makes trainers of transformers, `any_trainer/plain_function.py` one that trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..search.decisions.evaluation_points import Evaluated
from ..search.space.read_parameters import ReadsParameters
from ..search.trial import Trial
from ..system.json_types import JsonObject

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainingArguments


class Trainable(Protocol):
    """The trainer of one trial."""

    args: TrainingArguments
    eval_dataset: Any

    def with_arguments(self, **parameters: object) -> Trainable:
        """Return a new trainer with other arguments."""

    def add_callback(self, callback: TrainerCallback) -> None:
        """Add a callback to it."""

    def train(self, resume_from_checkpoint: Any = None, *, reapply_arguments: bool = False) -> object:
        """Train a new model to the end, or until a callback stops it.

        With `reapply_arguments`, the run resumes with its own arguments in place of those of the checkpoint.
        """

    def evaluate(self, eval_dataset: Any = None) -> dict[str, float]:
        """Evaluate the model that was trained; default: on the trainer's own evaluation data."""

    def operations_so_far(self) -> float:
        """Return the floating-point operations of the training run up to now; 0 if they are not known."""

    def capture_weights(self) -> object:
        """Return a copy of the model's present weights."""

    def save_weights(self, folder: Path, state_dict: Any = None) -> None:
        """Write the weights, or those captured earlier, with what is needed to load them."""

    def end_trackers(self, state: str, reason: str | None) -> None:
        """Report to the experiment trackers how the trial ended."""

    def release(self) -> None:
        """Drop the model and everything else the training made."""


class PreflightTrainer(NamedTuple):
    """A trainer for a preflight: it has no callbacks of the user and no trackers, and saves nothing.

    Attributes:
        trainer: it trains and evaluates.
        left_out: the user's callbacks, which a preflight does not call.
        skips: why it cannot train a step only to try it, in words that follow "because"; None: it can.
    """

    trainer: Trainable
    left_out: Sequence[object] = ()
    skips: str | None = None


class Searchable(ReadsParameters, Evaluated, Protocol):
    """A recipe from which each trial makes its own trainer."""

    @property
    def cannot_pause(self) -> str | None:
        """Why its trials must not pause; None if they resume with the same numbers."""

    @property
    def cannot_extend(self) -> str | None:
        """Why its trials cannot continue to another length; None if they can."""

    @property
    def writes_its_checkpoints(self) -> bool:
        """True if the user's code trains by itself: it writes checkpoints when it wants, and makes process groups.

        False if a trainer does.
        """

    @property
    def has_fixed_model(self) -> bool:
        """True if it is certain that no parameter of a trial changes the number of weights."""

    def with_arguments(self, **parameters: object) -> Searchable:
        """Return the same recipe with other arguments, and without anything that it has built."""

    def for_trial(self, trial: Trial, output_dir: str) -> Trainable:
        """Return a new trainer with the trial's parameters, which writes to `output_dir`."""

    def preflight_trainer(self, trial: Trial, output_dir: str) -> AbstractContextManager[PreflightTrainer]:
        """Return a trainer with the trial's parameters; after the block it is dropped, the random streams restored."""

    def let_user_code_suggest(self, trial: Trial) -> None:
        """Call the user's code once, so that the trial has the parameters which that code suggests."""

    def check_changeable(self, name: str) -> None:
        """Raise an ArgumentError if training cannot resume from a checkpoint with another value of a parameter."""

    def resumable_checkpoints(self, folder: Path) -> list[Path]:
        """Return the checkpoints in a folder that training can resume from, newest first."""

    def read_state(self, checkpoint: Path) -> JsonObject:
        """Return the trainer state that a checkpoint holds, as JSON gives it; empty if it cannot be read."""

    def smaller_batches(self, args: TrainingArguments) -> dict[str, int] | None:
        """Return arguments for the same optimizer steps with less memory than `args` need.

        None if trainers cannot have other arguments, or the batch cannot be divided any further.
        """
