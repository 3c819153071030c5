"""The optimizer, its weight-decay groups and the learning-rate schedule of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from transformers import get_scheduler
from transformers.trainer_optimizer import is_optimizer_factory
from transformers.trainer_pt_utils import get_parameter_names
from transformers.trainer_utils import SchedulerType

from ..arguments import TrainingArguments
from ..errors import ArgumentError, UnknownArgumentError, one_of
from ..system.spelling import nearest_name

OptimizerClass = Callable[..., Any]
"""A class of optimizers, or a factory of transformers, which returns a function that makes one of a model."""
ParameterGroup = dict[str, Any]
"""A group of an optimizer's parameters, or only its hyperparameters, by the optimizer's names for them."""

_NO_DECAY_NAMES = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


# Names under which the arguments of an optimizer may carry its parameters, in place of ours.
GROUPS_BY_NAME = ("params", "model", "optimizer_dict")


def decay_parameter_names(model: torch.nn.Module) -> list[str]:
    """Return the names of the parameters that weight decay applies to: all but biases and normalisation layers."""
    return get_parameter_names(model, [torch.nn.LayerNorm], _NO_DECAY_NAMES)


def parameter_groups(model: torch.nn.Module, weight_decay: float, decayed: list[str]) -> list[ParameterGroup]:
    """Return two groups of trainable parameters: those in `decayed` with `weight_decay`, the others with none."""
    names = set(decayed)
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [
        {"params": [each for name, each in trainable if name in names], "weight_decay": weight_decay},
        {"params": [each for name, each in trainable if name not in names], "weight_decay": 0.0},
    ]


def optimizer_class_and_kwargs(
    args: TrainingArguments, model: torch.nn.Module | None = None
) -> tuple[OptimizerClass, dict[str, Any]]:
    """Return the optimizer class that `args.optim` names and the arguments it takes from `args`."""
    return transformers.Trainer.get_optimizer_cls_and_kwargs(args, model)


def make_optimizer(
    model: torch.nn.Module,
    groups: list[ParameterGroup],
    kind: OptimizerClass,
    kwargs: Mapping[str, object],
    overrides: Mapping[str, object],
) -> torch.optim.Optimizer:
    """Build an optimizer over `groups`; `overrides` (the `optim.*` parameters of a trial) win over `kwargs`.

    Raises:
        UnknownArgumentError: the optimizer does not take one of the overrides.
    """
    for name, value in overrides.items():
        check_override(kind, name, value)
    arguments: dict[str, Any] = {**kwargs, **overrides}
    if is_optimizer_factory(kind):
        return kind()(model, **arguments)
    for special in GROUPS_BY_NAME:
        groups = arguments.pop(special, groups)
    return kind(groups, **arguments)


def make_schedule(
    args: TrainingArguments, optimizer: torch.optim.Optimizer, num_training_steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    """Build the schedule `args.lr_scheduler_type` over `num_training_steps` updates, with its warm-up.

    Raises:
        ArgumentError: the schedule does not take one of `lr_scheduler_kwargs`, or needs one that is not there.
    """
    if args.lr_scheduler_kwargs and args.lr_scheduler_type in (
        SchedulerType.CONSTANT,
        SchedulerType.CONSTANT_WITH_WARMUP,
    ):
        raise _bad_schedule(args, "a constant rate takes no arguments")
    try:
        return get_scheduler(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(num_training_steps),
            num_training_steps=num_training_steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    except (TypeError, ValueError) as error:
        raise _bad_schedule(args, str(error)) from error


def check_schedule(args: TrainingArguments) -> None:
    """Check that the schedule `args.lr_scheduler_type` can be built with `args.lr_scheduler_kwargs`.

    Raises:
        ArgumentError: it cannot.
    """
    parameter = torch.nn.Parameter(torch.zeros(1))
    make_schedule(args, torch.optim.SGD([parameter], lr=args.learning_rate or 1.0), num_training_steps=100)


def _bad_schedule(args: TrainingArguments, reason: str) -> ArgumentError:
    return ArgumentError(
        f"lr_scheduler_type={str(args.lr_scheduler_type.value)!r} cannot be made with "
        f"lr_scheduler_kwargs={args.lr_scheduler_kwargs!r}: {reason}."
    )


def follows_a_metric(schedule: object) -> bool:
    """Return whether the schedule steps on an evaluation metric rather than on every update."""
    return isinstance(schedule, (torch.optim.lr_scheduler.ReduceLROnPlateau, transformers.optimization.GreedyLR))


def current_learning_rate(optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler) -> float:
    """Return the learning rate of the first parameter group for the next update."""
    rate = optimizer.param_groups[0]["lr"] if follows_a_metric(schedule) else schedule.get_last_lr()[0]
    return rate.item() if torch.is_tensor(rate) else rate


def check_override(kind: OptimizerClass, name: str, value: object, shown_as: str = "optim.") -> None:
    """Check that optimizer class `kind` takes an argument `name` (the part of ``optim.name`` behind the dot).

    Raises:
        UnknownArgumentError: it does not; the message lists what it takes.
    """
    parameters = inspect.signature(kind).parameters
    allowed = [each for each in parameters if each != "params"]
    if name not in allowed and not any(each.kind == each.VAR_KEYWORD for each in parameters.values()):
        raise UnknownArgumentError(
            f"{shown_as}{name}={value!r}: {kind.__name__} does not take it; it takes {one_of(allowed)}."
            f"{nearest_name(name, allowed)}"
        )
