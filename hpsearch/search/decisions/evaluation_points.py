"""The times at which the trials of a search are evaluated, as far as the arguments determine them beforehand."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from ..study import Study

if TYPE_CHECKING:
    from transformers import TrainingArguments

# What decides when a trial is evaluated; and what does only where evaluations or updates are counted.
_DECIDE = {"eval_delay", "eval_steps", "eval_strategy", "max_steps", "num_train_epochs"}
_DECIDE_UPDATES = {"dataloader_drop_last", "gradient_accumulation_steps", "per_device_train_batch_size"}


class Evaluated(Protocol):
    """The recipe of the trials."""

    @property
    def args(self) -> TrainingArguments:
        """The training arguments that trials have in common."""

    @property
    def training_samples(self) -> int | None:
        """The number of samples to train on; None if it is not known."""

    @property
    def sets_arguments_by_name(self) -> bool:
        """True if a parameter sets the argument of its name, and no other one."""


def points_of(recipe: Evaluated, study: Study) -> tuple[float, ...] | None:
    """Return after which fractions of its training each trial of a search is evaluated; None if that is not known.

    The parameters of a function as space are not known, nor the arguments that user code makes of them. The training of
    a trial ends after its `trial_max_epochs`.
    """
    names = study.parameter_names()
    if not (names and recipe.sets_arguments_by_name):
        return None
    points = evaluation_points(recipe.args, recipe.training_samples, names, study.processes * study.gpus)
    if points is None or study.trial_max_epochs is None:
        return points
    epochs = epochs_of(recipe, study)
    if epochs is None:
        return None
    shortened = (round(each * recipe.args.num_train_epochs / epochs, 6) for each in points)
    return (*(each for each in shortened if each < 1.0), 1.0)


def epochs_of(recipe: Evaluated, study: Study) -> float | None:
    """Return the number of epochs of each trial's training run; None if it is unknown, or trials differ."""
    names, args = study.parameter_names(), recipe.args
    is_known = bool(names) and recipe.sets_arguments_by_name and not {"num_train_epochs", "max_steps"} & set(names)
    if not is_known or args.max_steps > 0:
        return None
    return float(min(args.num_train_epochs, study.trial_max_epochs or math.inf))


def evaluation_points(
    args: TrainingArguments, samples: int | None, searched: Collection[str] = (), devices: int = 1
) -> tuple[float, ...] | None:
    """Return after which fractions of its training a trial is evaluated, in (0, 1]; None if that is not known.

    Where evaluation is by steps, or not asked for, a trial is evaluated at its end too.

    Args:
        args: the training arguments.
        samples: how many there are to train on; None: not known.
        searched: the names of the parameters that trials differ in.
        devices: the number of devices that train each trial, each with a batch of its own.

    >>> from hpsearch import TrainingArguments
    >>> evaluation_points(TrainingArguments(eval_strategy="epoch", num_train_epochs=2), 100)
    (0.5, 1.0)
    >>> evaluation_points(TrainingArguments(eval_strategy="steps", eval_steps=0.25, max_steps=8), None)
    (0.25, 0.5, 0.75, 1.0)
    """
    if _DECIDE & set(searched):
        return None
    if args.eval_strategy == "no":
        return (1.0,)
    is_known = samples is not None and not _DECIDE_UPDATES & set(searched)
    updates = _updates_per_epoch(args, samples, devices) if is_known and samples is not None else None
    if args.max_steps > 0:
        total: int | None = args.max_steps
    elif updates is not None:
        total = math.ceil(args.num_train_epochs * updates)
    else:
        total = None
    found = _by_steps(args, total) if args.eval_strategy == "steps" else _by_epochs(args, total, updates)
    return found if found is None else found or (1.0,)


def _updates_per_epoch(args: TrainingArguments, samples: int, devices: int) -> int | None:
    batch = args.per_device_train_batch_size * devices
    batches = samples // batch if args.dataloader_drop_last else math.ceil(samples / batch)
    return math.ceil(batches / args.gradient_accumulation_steps) or None


def _by_steps(args: TrainingArguments, total: int | None) -> tuple[float, ...] | None:
    """Return the points of evaluations by steps, the last one included; `eval_steps` below 1 is a fraction of them."""
    if total is None and (args.eval_steps >= 1 or args.eval_delay):
        return None
    if total is None:
        count, every = 1.0, float(args.eval_steps)
    else:
        count = float(total)
        every = math.ceil(total * args.eval_steps) if args.eval_steps < 1 else args.eval_steps
    first = max(1, math.ceil(args.eval_delay / every)) if total is not None else 1
    points = tuple(round(k * every / count, 6) for k in range(first, math.floor(count / every + 1e-9) + 1))
    return points if points[-1:] == (1.0,) else (*points, 1.0)


def _by_epochs(args: TrainingArguments, total: int | None, updates: int | None) -> tuple[float, ...] | None:
    """Return the points of evaluations after each epoch, and after the last one, of which there may be a part."""
    if total is not None and updates is not None:
        epochs = total / updates
    elif args.max_steps > 0:
        return None
    else:
        epochs = float(args.num_train_epochs)
    whole = [*range(1, math.floor(epochs + 1e-9) + 1)]
    ends = whole if whole and math.isclose(whole[-1], epochs) else [*whole, epochs]
    return tuple(round(each / epochs, 6) for each in ends if each >= args.eval_delay)
