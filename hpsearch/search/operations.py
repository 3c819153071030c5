"""How many floating-point operations a training run has cost: counted from sizes, so the same in every repetition.

A token costs two operations per weight in the forward pass, and four in the backward pass: two for the gradient of the
activations, two for the gradient of the weight (Kaplan et al., Scaling Laws for Neural Language Models, 2020, section
2.1). A frozen weight has no gradient, but gradients flow through it to the trained weights below: four in all.

The trainers of transformers and of hpsearch count six operations per token (or per value of an image) and per weight
outside the embeddings in `state.total_flos`: over all processes, padding included, kept in checkpoints. Here the frozen
weights are taken into account. Attention over long sequences, activation checkpointing and evaluations are not counted.
"""

from __future__ import annotations

from typing import Any

_TRAINED, _FROZEN = 6.0, 4.0


def operations_so_far(state: Any, model: Any) -> float:
    """Return the operations of a training run up to now; 0 if its trainer does not count them.

    Args:
        state: the trainer's state.
        model: that is trained, with its adapters; None: all of its weights are taken to be trained.
    """
    sizes = [(each.numel(), each.requires_grad) for each in ([] if model is None else model.parameters())]
    weights, trained = sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)
    fraction = trained / weights if weights else 1.0
    counted = float(state.total_flos or 0.0) * (fraction * _TRAINED + (1.0 - fraction) * _FROZEN) / _TRAINED
    # Sums beyond 2 ** 53 are rounded, and a run that was paused is summed in other parts.
    return float(f"{counted:.12g}")
