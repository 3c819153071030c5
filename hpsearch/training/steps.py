"""The default training step: forward and backward of one micro-batch."""

from __future__ import annotations

import torch
from accelerate.utils import DistributedType
from accelerate.utils.memory import clear_device_cache

from .evaluation import compute_loss_through_hook, set_mode
from .hooks import Batch, Hooks, takes_argument


def training_step(
    trainer: Hooks, model: torch.nn.Module, inputs: Batch, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """Compute the loss of one micro-batch and its gradients; return the detached loss.

    The loss is divided by the number of micro-batches in the update, unless it is already normalised over all of
    them: as `loss_is_scaled_for_ga` says; if that is None, by `compute_loss_func`, or by a model that takes
    `num_items_in_batch` (and a `compute_loss` that passes it).
    """
    run = trainer.run
    if not model.training:
        set_mode(run, training=True)
    inputs = trainer._prepare_inputs(inputs)
    if len(inputs) == 0:
        raise ValueError(
            "The batch is empty: none of the dataset's columns is an argument of the model's forward "
            f"({', '.join(run.traits.signature_columns)})."
        )
    with trainer.compute_loss_context_manager():
        loss = compute_loss_through_hook(trainer, model, inputs, num_items_in_batch)
    every = run.args.torch_empty_cache_steps
    if every is not None and run.state.global_step % every == 0:
        clear_device_cache()
    if run.args.n_gpu > 1:
        loss = loss.mean()
    is_normalised = trainer.loss_is_scaled_for_ga
    if is_normalised is None:
        counts_items = run.traits.accepts_loss_kwargs and num_items_in_batch is not None
        is_normalised = trainer.compute_loss_func is not None or (
            counts_items and takes_argument(trainer.compute_loss, "num_items_in_batch")
        )
    if not is_normalised and run.micro_batches_in_update > 1:
        loss = loss / run.micro_batches_in_update
    scaling = {"scale_wrt_gas": False} if run.accelerator.distributed_type == DistributedType.DEEPSPEED else {}
    run.accelerator.backward(loss, **scaling)
    return loss.detach()
