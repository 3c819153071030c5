"""What a search in groups of processes checks and prints before its first trial."""

from __future__ import annotations

import math
from typing import Any

from ...errors import StudyError
from ...search.study import Study
from ...trial.searchable import Searchable

_GROUP_TIMEOUT = 600.0
_OF_THE_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


def check_group(recipe: Searchable, processes: int, has_gpus: bool) -> None:
    """Check that several processes can train a trial of the recipe together.

    Args:
        recipe: of the trials.
        processes: the number of processes of each group.
        has_gpus: whether they train on GPUs.

    Raises:
        StudyError: they cannot.
    """
    asked = f"processes_per_trial={processes}"
    if recipe.writes_its_checkpoints:  # only the function knows how its processes communicate
        return
    backend = recipe.args.ddp_backend
    if backend == "nccl" and not has_gpus:
        raise StudyError(
            f"{asked} with ddp_backend='nccl' needs GPUs, and these trials train on the CPU; leave ddp_backend out "
            "(gloo is used), or use GPUs."
        )


def check_alone(recipe: Searchable) -> None:
    """Check that a trial of the recipe can be trained by one process.

    Raises:
        StudyError: its model is to be sharded over several.
    """
    fsdp = getattr(recipe.args, "fsdp", None)
    if fsdp and recipe.args.world_size == 1:
        raise StudyError(
            f"fsdp={fsdp!r} shards the model of a trial over several processes, but each trial has one: pass "
            "processes_per_trial=2 or more, or start the program with torchrun or accelerate launch."
        )


def effective_batch(recipe: Searchable, study: Study, processes: int) -> str:
    """Return the number of samples of an optimizer step, in words; parameters that are searched by name."""
    args, searched = recipe.args, study.parameter_names()
    is_known = bool(searched) and recipe.sets_arguments_by_name
    known = {name: getattr(args, name) for name in _OF_THE_BATCH if is_known and name not in searched}
    parts = [f"{known[name]} ({name})" if name in known else name for name in _OF_THE_BATCH if known.get(name) != 1]
    product = " x ".join([f"{processes} (processes_per_trial)", *parts])
    if len(known) < len(_OF_THE_BATCH):
        return f"effective batch: {product}"
    return f"effective batch {math.prod([processes, *known.values()])}: {product}"


def checked_timeout(group_timeout: Any, processes: int) -> float:
    """Return the number of seconds of silence after which a group is lost.

    Raises:
        StudyError: it is not a number of seconds above 0, or there are no groups.
    """
    if group_timeout is None:
        return _GROUP_TIMEOUT
    is_number = isinstance(group_timeout, (int, float)) and not isinstance(group_timeout, bool)
    if not (is_number and group_timeout > 0):
        raise StudyError(f"group_timeout must be None or a number of seconds above 0, but got {group_timeout!r}.")
    if processes == 1:
        raise StudyError(
            f"group_timeout={group_timeout!r} is about groups of processes; pass processes_per_trial=2 or more with it."
        )
    return float(group_timeout)
