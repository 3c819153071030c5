"""Weights and optimizer state that are spread over processes (FSDP, DeepSpeed ZeRO): put together to save, and back.

With FSDP a checkpoint has the files of any other run, so it resumes in any number of processes, sharded or not.
DeepSpeed keeps its own files beside them. Every process must call these functions together.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule

if TYPE_CHECKING:
    from .run import TrainingRun

_WHOLE_ON_HOST = StateDictOptions(full_state_dict=True, cpu_offload=True)
_WHOLE = StateDictOptions(full_state_dict=True)


def is_sharded(run: TrainingRun) -> bool:
    """Return whether the processes of a run each hold a part of the model."""
    return run.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED)


def uses_deepspeed(run: TrainingRun) -> bool:
    """Return whether DeepSpeed runs the training."""
    return bool(run.accelerator.distributed_type == DistributedType.DEEPSPEED)


def shard(run: TrainingRun) -> None:
    """Spread model and optimizer of a run over its processes."""
    if type(run.lr_scheduler).__name__ == "DummyScheduler":  # the configuration of DeepSpeed has one of its own
        run.model_wrapped, run.optimizer, run.lr_scheduler = run.accelerator.prepare(
            run.model, run.optimizer, run.lr_scheduler
        )
    else:
        run.model_wrapped, run.optimizer = run.accelerator.prepare(run.model, run.optimizer)
    if not uses_deepspeed(run):
        run.model = run.model_wrapped
        if hasattr(run.model, "generate"):
            torch.distributed.fsdp.register_fsdp_forward_method(run.model, "generate")


def reshard(model: torch.nn.Module) -> None:
    """Give every process its part of the weights alone again; an evaluation leaves the outermost ones whole."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole_weights(run: TrainingRun) -> dict[str, Any] | None:
    """Return all weights, on the host of the main process (empty on others); None if the model is not sharded."""
    if not is_sharded(run):
        return None
    if uses_deepspeed(run):
        return dict(run.accelerator.get_state_dict(run.model_wrapped) or {})
    return get_model_state_dict(run.model, options=_WHOLE_ON_HOST)


def whole_optimizer_state(run: TrainingRun) -> dict[str, Any]:
    """Return the optimizer's state; if it is sharded, all of it, on the main process, by parameter name."""
    if not is_sharded(run):
        return dict(run.optimizer.state_dict())
    return get_optimizer_state_dict(run.model, run.optimizer.optimizer, options=_WHOLE_ON_HOST)


def load_optimizer_state(run: TrainingRun, state: dict[str, Any]) -> None:
    """Give a run's optimizer the state that `whole_optimizer_state` returned, for its own part of the model."""
    if not is_sharded(run):
        run.optimizer.load_state_dict(state)
        return
    set_optimizer_state_dict(run.model, run.optimizer.optimizer, state, options=_WHOLE)


def has_shards(model: torch.nn.Module) -> bool:
    """Return whether a model holds only its process's part of each weight (FSDP)."""
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def load_whole_weights(model: torch.nn.Module, weights: dict[str, Any]) -> Any:
    """Load all weights into a model that is sharded, for its own part; return what was missing or unexpected."""
    return set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=False))


def engine_has_schedule(run: TrainingRun) -> bool:
    """Return whether DeepSpeed's configuration has a schedule, which its engine then steps, saves and loads."""
    return type(run.lr_scheduler).__name__ == "DeepSpeedSchedulerWrapper"


def save_engine(run: TrainingRun, folder: Path) -> None:
    """Let DeepSpeed write its own files (weights, optimizer and schedule, in parts) into a checkpoint folder."""
    run.model_wrapped.save_checkpoint(str(folder))


def load_engine(run: TrainingRun, folder: Path) -> None:
    """Let DeepSpeed read what `save_engine` wrote."""
    run.model_wrapped.load_checkpoint(str(folder), load_optimizer_states=True, load_lr_scheduler_states=True)
