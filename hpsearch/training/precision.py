"""The precision of a model: accelerate's autocast taken off, and evaluations in half precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ..arguments import TrainingArguments


def unwrap_forward(model: torch.nn.Module) -> None:
    """Take accelerate's autocast off the model's `forward`, and its mark, so that another run can prepare the model.

    The wrapper refers to the model, which would outlive the run; a model with the mark is never prepared again.
    """
    if model is None:
        return
    if "_original_forward" in model.__dict__:
        for name in ("forward", "_original_forward"):
            model.__dict__.pop(name, None)
    model.__dict__.pop("_is_accelerate_prepared", None)


@contextlib.contextmanager
def full_eval_precision(model: torch.nn.Module, args: TrainingArguments, is_in_train: bool) -> Iterator[None]:
    """Cast the model to half precision for an evaluation outside training, if `bf16_full_eval` or `fp16_full_eval`.

    Afterwards it has its weights back as they were, so that neither a later training nor a checkpoint is rounded; the
    price is that both are in memory for as long as the evaluation takes.
    """
    if is_in_train or not (args.fp16_full_eval or args.bf16_full_eval):
        yield
        return
    parameters = [(parameter, parameter.data) for parameter in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    model.to(dtype=torch.float16 if args.fp16_full_eval else torch.bfloat16, device=args.device)
    try:
        yield
    finally:
        for parameter, data in parameters:
            parameter.data = data
        for module, earlier in buffers:
            module._buffers.update(earlier)
