"""The hyperparameters of a resumed run: which may differ from those before, and how they replace restored ones.

Population-based training resumes from a checkpoint of another trial with hyperparameters of its own. What an optimizer
and a schedule restore holds the values they were written with; here those that the run's arguments give are put back.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch.optim.lr_scheduler import LambdaLR

from ..arguments import TrainingArguments
from ..arguments.casting import argument_names, is_of_library
from ..errors import ArgumentError, CheckpointError, InvalidInputError, UnknownArgumentError
from ..system.spelling import nearest_name
from .optimization import OptimizerClass, ParameterGroup, follows_a_metric, optimizer_class_and_kwargs

CHANGEABLE = (
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "label_smoothing_factor",
    "neftune_noise_alpha",
)
"""The training arguments that can change when a run resumes; `optim.*` can too, see `check_changeable`."""

_SHAPE = "schedule and length of the whole run depend on it"
_SAMPLES = "the length of a run is a number of steps, which would hold another number of samples"
_ORDER = "data and random numbers continue from where the checkpoint was written, in their order"
_KIND = "the state of the optimizer in a checkpoint belongs to it"
_MODEL = "it is read when a model is built, and the weights of a checkpoint belong to the model that was built with it"
_WHOLE_RUN = "it is set for a whole run"
_REASONS = {
    **dict.fromkeys(("num_train_epochs", "max_steps", "warmup_steps"), _SHAPE),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler_kwargs"), _SHAPE),
    **dict.fromkeys(("per_device_train_batch_size", "gradient_accumulation_steps", "auto_find_batch_size"), _SAMPLES),
    **dict.fromkeys(("seed", "data_seed", "full_determinism", "train_sampling_strategy"), _ORDER),
    **dict.fromkeys(("dataloader_drop_last", "length_column_name", "accelerator_config"), _ORDER),
    **dict.fromkeys(("optim", "optim_target_modules"), _KIND),
    "optim_args": f"{_KIND}; name the hyperparameter on its own, as in 'optim.momentum'",
    **dict.fromkeys(("model", "lora", "data"), _MODEL),
}
_ONLY_AT_THE_START = ("initial_accumulator_value",)


def check_changeable(
    name: str, args: TrainingArguments, optimizer: OptimizerClass | None = None, is_for_model: bool = False
) -> None:
    """Check that a run can resume from a checkpoint with another value of `name`, and that it takes effect.

    Those of `CHANGEABLE` can, numbers that the optimizer takes (`optim.momentum`), and arguments that a class derived
    from ours adds: they are for the user's own code to read.

    Args:
        name: a training argument, or a parameter with a dotted name.
        args: of the run.
        optimizer: its class, if it is not the one that `args.optim` names.
        is_for_model: whether it is for `model_init(trial)` to read, whatever its name.

    Raises:
        ArgumentError: it cannot; the message says why.
        UnknownArgumentError: there is no such training argument.

    Examples:
        >>> args = TrainingArguments("out", use_cpu=True, optim="sgd")
        >>> check_changeable("learning_rate", args)
        >>> check_changeable("optim.momentum", args)
        >>> check_changeable("seed", args)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        hpsearch.errors.ArgumentError: 'seed' cannot change when a run resumes: data and random numbers continue...
    """
    group, dot, key = name.partition(".")
    if name in CHANGEABLE:
        return
    if is_for_model:
        reason: str | None = _MODEL
    elif dot and group == "optim":
        reason = _reason_in_optimizer(key, optimizer or optimizer_class_and_kwargs(args)[0])
    elif not dot and name not in argument_names(type(args)):
        raise UnknownArgumentError(
            f"{name!r} is not a training argument.{nearest_name(name, argument_names(type(args)))}"
        )
    else:
        reason = _REASONS.get(group, _WHOLE_RUN) if dot or is_of_library(name, type(args)) else None
    if reason is not None:
        raise ArgumentError(
            f"{name!r} cannot change when a run resumes: {reason}. What can: {', '.join(CHANGEABLE)}, and numbers "
            "that the optimizer takes, such as optim.weight_decay."
        )


def given_hyperparameters(optimizer: torch.optim.Optimizer) -> list[ParameterGroup]:
    """Return, for each parameter group of an optimizer that nothing was restored into, the values it was made with.

    The learning rate is the one at the base of the schedule. What an optimizer merely keeps in its groups, such as
    counters, is not among them: it has a default there, but is no argument of the constructor.
    """
    kind = type(optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer)
    constructors = [vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each)]
    arguments = {name for each in constructors for name in inspect.signature(each).parameters}
    kept_there = optimizer.defaults.keys() - arguments - {"lr"}
    given = []
    for group in optimizer.param_groups:
        own = {name: value for name, value in group.items() if name not in kept_there and name != "params"}
        own["lr"] = own.pop("initial_lr", own["lr"])
        given.append(copy.deepcopy(own))
    return given


def reapply(optimizer: torch.optim.Optimizer, schedule: Any, given: Sequence[ParameterGroup], source: str) -> None:
    """Put the `given` hyperparameters over what was restored into an optimizer and its schedule.

    Moments, counters and the position of the schedule stay. The learning rate becomes what the schedule makes of the
    given one at its position: for one that follows a metric, with the reductions so far.

    Args:
        optimizer, schedule: of a run, restored.
        given: the earlier result of `given_hyperparameters`.
        source: the checkpoint, for messages.

    Raises:
        CheckpointError: a switch of the optimizer has changed, or the checkpoint does not hold its base rates.
        InvalidInputError: the learning rate of the schedule at its position is unknown.
    """
    schedule = schedule.scheduler if isinstance(schedule, AcceleratedScheduler) else schedule
    bases = [each["lr"] for each in given]
    rates = _rates(schedule, optimizer.param_groups, bases, source)
    for group, own, rate in zip(optimizer.param_groups, given, rates, strict=True):
        for name in own.keys() - {"lr"}:
            _check_switch(name, own[name], group.get(name), source)
            group[name] = own[name]
        group["initial_lr"] = own["lr"]
        if torch.is_tensor(group["lr"]):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    schedule._last_lr = list(rates)


def _rates(schedule: Any, groups: list[ParameterGroup], bases: list[float], source: str) -> list[float]:
    """Make `bases` the base rates of a schedule and return the learning rates at its position."""
    if follows_a_metric(schedule):
        return _rates_by_metric(schedule, groups, bases, source)
    if getattr(type(schedule), "get_lr", None) is LambdaLR.get_lr:
        schedule.base_lrs = list(bases)
        factors: list[Callable[[int], float]] = schedule.lr_lambdas
        return [base * factor(schedule.last_epoch) for base, factor in zip(bases, factors, strict=True)]
    if hasattr(schedule, "_get_closed_form_lr"):  # torch's own, where the rate is a function of the position
        schedule.base_lrs = list(bases)
        return list(schedule._get_closed_form_lr())
    raise InvalidInputError(
        f"reapply_arguments=True: a {type(schedule).__name__} does not give the learning rate at its position for "
        "another base rate. Use a schedule that lr_scheduler_type names, or a LambdaLR."
    )


def _rates_by_metric(schedule: Any, groups: list[ParameterGroup], bases: list[float], source: str) -> list[float]:
    """Return the new bases, changed in proportion as the restored ones were, within the limits of the schedule."""
    earlier = getattr(schedule, "_init_lrs", None) or [each.get("initial_lr") for each in groups]
    if None in earlier:
        raise CheckpointError(
            f"{source!r} does not hold the initial learning rates of its {type(schedule).__name__} (it was "
            "written by transformers, or an older hpsearch): reapply_arguments=True cannot resume from it."
        )
    if hasattr(schedule, "_init_lrs"):
        schedule._init_lrs = list(bases)
    rates = []
    most = getattr(schedule, "max_lrs", bases)
    for group, before, base, low, high in zip(groups, earlier, bases, schedule.min_lrs, most, strict=True):
        rate = float(group["lr"])
        if base != before:
            rate = base * (rate / before) if before else base
            rate = max(rate, min(low, base)) if rate < base else min(rate, max(high, base))
        rates.append(rate)
    return rates


def _check_switch(name: str, value: object, restored: object, source: str) -> None:
    """Refuse another value of what decides which state an optimizer keeps."""
    is_switch = isinstance(value, bool) or isinstance(restored, bool) or (value is None) != (restored is None)
    if is_switch and value != restored:
        raise CheckpointError(
            f"{source!r} was written by an optimizer with {name}={restored!r}, and this run has {name}={value!r}. It "
            "decides which state the optimizer keeps, so it cannot change when a run resumes."
        )


def _reason_in_optimizer(key: str, kind: OptimizerClass) -> str | None:
    parameters = inspect.signature(kind).parameters
    if key not in parameters and not any(each.kind == each.VAR_KEYWORD for each in parameters.values()):
        return f"{kind.__name__} does not take it"
    parameter = parameters.get(key)
    if key in _ONLY_AT_THE_START:
        return f"{kind.__name__} reads it only at the start"
    if parameter is not None and (isinstance(parameter.default, bool) or "bool" in str(parameter.annotation)):
        return f"it decides how {kind.__name__} works and which state it keeps"
    return None
