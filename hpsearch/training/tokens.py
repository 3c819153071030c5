"""The number of input tokens that a run has seen, for `include_num_input_tokens_seen`."""

from __future__ import annotations

import logging

import torch

from .hooks import Batch, Hooks

logger = logging.getLogger(__name__)


def track_input_tokens(trainer: Hooks, micro_batches: list[Batch]) -> None:
    """Add the input tokens of one update, on all processes, to `state.num_input_tokens_seen`.

    ``"all"`` counts every element of the model's main input, ``"non_padding"`` what the attention mask, or else the
    padding token of the processing class, does not exclude. Batches without a main input count nothing.
    """
    run = trainer.run
    how = run.args.include_num_input_tokens_seen
    if how == "no":
        return
    name = run.traits.main_input_name
    if any(name not in batch for batch in micro_batches):
        logger.warning("The batch has no %r, the model's main_input_name: its tokens are not counted.", name)
        counted = 0
    else:
        counted = sum(_tokens(batch, name, how, trainer.processing_class) for batch in micro_batches)
    if run.accelerator.num_processes > 1:
        total = torch.tensor(counted, dtype=torch.int64, device=run.accelerator.device)
        counted = int(run.accelerator.reduce(total, reduction="sum"))
    run.state.num_input_tokens_seen += counted


def _tokens(batch: Batch, name: str, how: str, processing_class: object) -> int:
    if how == "non_padding":
        padding = getattr(processing_class, "pad_token_id", None)
        if "attention_mask" in batch:
            return int(batch["attention_mask"].sum())
        if padding is not None:
            return int((batch[name] != padding).sum())
        logger.warning("There is no attention mask and no padding token: every token is counted.")
    return int(batch[name].numel())
