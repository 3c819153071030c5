"""Allowed values of single training arguments; transformers checks their combinations.

Checked before anything is derived from them, so that a message can name the argument, the value and what is allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from transformers.debug_utils import DebugOption
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames, trainer_log_levels

from ..errors import ArgumentError, one_of
from ..system.scope_names import SCOPES
from ..system.spelling import nearest_name

_ENUMS: dict[str, type[Enum]] = {
    "eval_strategy": IntervalStrategy,
    "hub_strategy": HubStrategy,
    "logging_strategy": IntervalStrategy,
    "lr_scheduler_type": SchedulerType,
    "optim": OptimizerNames,
    "save_strategy": SaveStrategy,
}
_CHOICES: dict[str, tuple[object, ...]] = {
    "include_num_input_tokens_seen": ("all", "non_padding", "no", True, False),
    "log_level": tuple(trainer_log_levels),
    "log_level_replica": tuple(trainer_log_levels),
    "ray_scope": SCOPES,
    "train_sampling_strategy": ("random", "sequential", "group_by_length", "batch_rebalance"),
}
_LARGEST_SEED = 2**32 - 1
_BELOW_ONE = math.nextafter(1.0, 0.0)
# Least and greatest value of each number that is given; None: no limit.
_RANGES: dict[str, tuple[float, float | None]] = {
    "adam_beta1": (0.0, _BELOW_ONE),
    "adam_beta2": (0.0, _BELOW_ONE),
    "adam_epsilon": (0.0, None),
    "data_seed": (0, _LARGEST_SEED),
    "dataloader_num_workers": (0, None),
    "eval_accumulation_steps": (1, None),
    "eval_delay": (0, None),
    "eval_steps": (0, None),
    "generation_max_length": (1, None),
    "generation_num_beams": (1, None),
    "gradient_accumulation_steps": (1, None),
    "label_smoothing_factor": (0.0, 1.0),
    "learning_rate": (0.0, None),
    "logging_steps": (0, None),
    "max_grad_norm": (0.0, None),
    "neftune_noise_alpha": (0.0, None),
    "per_device_eval_batch_size": (1, None),
    "per_device_train_batch_size": (1, None),
    "save_steps": (0, None),
    "seed": (0, _LARGEST_SEED),
    "torch_empty_cache_steps": (1, None),
    "warmup_steps": (0, None),
    "weight_decay": (0.0, None),
}
_SHOWN_TO_METRICS = ("inputs", "loss")


def check_values(args: object) -> None:
    """Check every value of `args` on its own.

    Raises:
        ArgumentError: a value is not allowed; the message says what is.

    Examples:
        >>> from types import SimpleNamespace
        >>> check_values(SimpleNamespace(eval_strategy="epochs"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        hpsearch.errors.ArgumentError: ...allowed: 'epoch', 'no', 'steps'. Did you mean 'epoch'?
    """
    for name, kind in _ENUMS.items():
        _check_choice(args, name, [each.value for each in kind], kind)
    for name, choices in _CHOICES.items():
        _check_choice(args, name, choices, choices.index)
    for name, (least, greatest) in _RANGES.items():
        _check_range(args, name, least, greatest)
    _check_members(args, "debug", [each.value for each in DebugOption])
    _check_members(args, "include_for_metrics", _SHOWN_TO_METRICS)
    _check_members(args, "report_to", [*INTEGRATION_TO_CALLBACK, "all", "none"])
    _check_combinations(args)


def _check_combinations(args: Any) -> None:
    max_steps, epochs = getattr(args, "max_steps", -1), getattr(args, "num_train_epochs", 1.0)
    if max_steps < -1:
        raise ArgumentError(
            f"max_steps must be a number of steps, or -1 to use num_train_epochs, but got {max_steps!r}."
        )
    if max_steps < 0 and epochs < 0:
        raise ArgumentError(f"num_train_epochs must not be negative, but got {epochs!r}.")
    if getattr(args, "dataloader_persistent_workers", False) and not args.dataloader_num_workers:
        raise ArgumentError(
            "dataloader_persistent_workers=True needs workers: set dataloader_num_workers to at least 1."
        )
    never_evaluates = getattr(args, "eval_strategy", None) in ("no", IntervalStrategy.NO)
    if never_evaluates and getattr(args, "save_strategy", None) in ("best", SaveStrategy.BEST):
        raise ArgumentError("save_strategy='best' needs evaluations; set eval_strategy to 'steps' or 'epoch'.")
    if never_evaluates and getattr(args, "load_best_model_at_end", False):
        raise ArgumentError("load_best_model_at_end=True needs evaluations; set eval_strategy to 'steps' or 'epoch'.")
    if getattr(args, "save_strategy", None) in ("steps", SaveStrategy.STEPS) and args.save_steps == 0:
        raise ArgumentError("save_steps=0 never saves; if you mean that, set save_strategy='no'.")
    for name in getattr(args, "_VALID_DICT_FIELDS", ()):
        value = getattr(args, name, None)
        if isinstance(value, str) and value.startswith("{"):
            _check_json(name, value)
    for part in (getattr(args, "optim_args", None) or "").replace(" ", "").split(","):
        if part and part.count("=") != 1:
            raise ArgumentError(f"optim_args={args.optim_args!r} must read 'name=value,name=value'; {part!r} does not.")


def _check_json(name: str, value: str) -> None:
    try:
        json.loads(value)
    except ValueError as error:
        raise ArgumentError(f"{name}={value!r} is not JSON: {error}.") from None


def _check_choice(args: object, name: str, allowed: Sequence[object], take: Callable[[Any], object]) -> None:
    if not hasattr(args, name):
        return
    value = getattr(args, name)
    try:
        take(value)
    except (ValueError, TypeError):
        raise _not_allowed(name, value, allowed) from None


def _check_members(args: object, name: str, allowed: Sequence[str]) -> None:
    given = getattr(args, name, None) or ()
    if isinstance(given, str):
        given = given.split() if name == "debug" else [given]
    for each in given:
        if getattr(each, "value", each) not in allowed:
            raise _not_allowed(name, each, allowed)


def _not_allowed(name: str, value: object, allowed: Sequence[object]) -> ArgumentError:
    hint = nearest_name(str(value), [str(each) for each in allowed])
    return ArgumentError(f"{name}={value!r} is not allowed; allowed: {one_of(allowed)}.{hint}")


def _check_range(args: object, name: str, least: float, greatest: float | None) -> None:
    value = getattr(args, name, None)
    if value is None:
        return
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ArgumentError(f"{name}={value!r} ({type(value).__name__}) must be a number.")
    if not (least <= value and (greatest is None or value <= greatest)):
        limits = f"at least {least:g}"
        if greatest is not None:
            limits += " and below 1" if greatest == _BELOW_ONE else f" and at most {greatest:.10g}"
        raise ArgumentError(f"{name} must be {limits}, but got {value!r}.")
