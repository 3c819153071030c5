"""Everything about a search that can be found wrong before its first trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ArgumentError, InvalidInputError, SpaceError, StudyError
from ..study import SET_BY_THE_SEARCH, known_space

if TYPE_CHECKING:
    from transformers import TrainingArguments


class TakesParameters(Protocol):
    """The recipe of the trials, which knows what a parameter can be."""

    def check_parameter(self, name: str, value: object, conditions: Mapping[str, object] | None = None) -> None:
        """Raise an ArgumentError if a trial could not set `name` to `value` under `conditions`."""

    def check_changeable(self, name: str) -> None:
        """Raise an ArgumentError if training cannot resume from a checkpoint with another value of a parameter."""


class Checkable(Protocol):
    """The attributes of a trainer that these checks use."""

    args: TrainingArguments
    model_init: Any
    eval_dataset: Any

    @property
    def has_training_data(self) -> bool:
        """True if there is something to train on."""


def check_trainer(trainer: Checkable, has_folds: bool = False) -> None:
    """Check that a trainer has what a search needs; with folds, it needs no evaluation data, and must not have any.

    Raises:
        StudyError: it has no `model_init`, no training data or no evaluation data, or would
            change a trial's batch size.
    """
    if trainer.model_init is None:
        raise StudyError(
            "A search builds a new model for every trial, so the Trainer needs model_init=..., a function that "
            "returns one; it has a model instead."
        )
    if trainer.args.auto_find_batch_size:
        raise StudyError(
            "auto_find_batch_size=True would train trials with other batch sizes than their parameters say. A trial "
            "that runs out of memory is recorded as failed; search per_device_train_batch_size instead."
        )
    if not trainer.has_training_data:
        raise StudyError("A search needs a train_dataset; the Trainer has none.")
    if has_folds and trainer.eval_dataset is not None:
        raise StudyError(
            "folds evaluate on parts of the train_dataset, but the Trainer has an eval_dataset too: leave it out, or "
            "pass it as test_dataset, which is evaluated once, at the end (with refit=True)."
        )
    if has_folds:
        return
    if trainer.eval_dataset is None or (isinstance(trainer.eval_dataset, dict) and not trainer.eval_dataset):
        raise StudyError(
            "A search compares evaluations, so the Trainer needs an eval_dataset; it has none. (folds=5 evaluates on "
            "parts of the train_dataset.)"
        )


def check_space(space: object, trainer: TakesParameters) -> None:
    """Check that trials could take the values of a static space: its bounds and every choice, in their branch.

    A define-by-run function is checked as it suggests, in the first trial; its known `parameters` are checked here.

    Raises:
        SpaceError: a parameter does not exist or the arguments refuse a value; the message says which and why.
    """
    known = known_space(space)
    for name, parameter, conditions in () if known is None else known.walk():
        if name in SET_BY_THE_SEARCH:
            raise SpaceError(f"The search space has {name!r}, which the search itself sets; remove it.")
        for value in parameter.edges():
            try:
                trainer.check_parameter(name, value, conditions)
            except (ArgumentError, InvalidInputError) as error:
                raise SpaceError(f"The search space asks for {name}={value!r}: {error}") from error
