"""The cost of a training run in floating-point operations: counted from sizes, so the same in every repetition.

A token costs two operations per weight in the forward pass, and four in the backward pass: two for the gradient of the
activations, two for the gradient of the weight (Kaplan et al., Scaling Laws for Neural Language Models, 2020, section
2.1). A frozen weight has no gradient, but gradients flow through it to the trained weights below: four in all. The
backward pass ends at the lowest trained weight, which passes no gradient on: four; weights below it cost two.
Embeddings are looked up, at no cost; an output layer that shares their weights multiplies by them.

The trainers of transformers and of hpsearch count six operations per token and per weight outside the embeddings in
`state.total_flos`: over all processes, padding included, kept in checkpoints. So the state holds the number of tokens.
Of images, audio and other features they count every value, but a weight is applied to a patch or a frame, and the
number of these does not follow from the number of values: here the unit is the sample. Attention over long sequences,
activation checkpointing and evaluations are not counted; the tokens of an encoder-decoder are those of its encoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_utils import has_length

if TYPE_CHECKING:
    from transformers import TrainerState, TrainingArguments

_FORWARD, _ACTIVATION_GRADIENT, _WEIGHT_GRADIENT = 2, 2, 2


def operations_so_far(state: TrainerState, model: torch.nn.Module, samples: float, is_own_count: bool = False) -> float:
    """Return the operations of a training run up to now; 0 if its trainer does not count them.

    Args:
        state: the trainer's state.
        model: the model that is trained, with its adapters.
        samples: the number of samples that the run has seen; see `samples_so_far`.
        is_own_count: the user's code counts the operations in the state; they are taken as they are.
    """
    counted = float(state.total_flos or 0.0)
    per_token = 0 if is_own_count else flos_per_token(model)
    if counted and per_token:
        counted = operations_per_token(model) * (counted / per_token if takes_ids(model) else samples)
    # Sums beyond 2 ** 53 are rounded, and a run that was paused is summed in other parts.
    return float(f"{counted:.12g}")


def operations_per_token(model: torch.nn.Module) -> int:
    """Return the operations of a forward and a backward pass that apply every weight once.

    The order of the model's parameters is taken for the order in which they are applied.
    """
    # PEFT registers virtual tokens last, but they are part of the input.
    named = sorted(model.named_parameters(), key=lambda each: not each[0].startswith("prompt_encoder."))
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    looked_up = {id(weight) for module in embeddings for weight in module.parameters(recurse=False)}
    total, is_above_trained = 0, False
    for _, weight in named:
        if id(weight) not in looked_up:
            total += _operations(weight, is_above_trained)
        is_above_trained = is_above_trained or weight.requires_grad
    output = _output_weight(model)
    return total + (_operations(output, is_above_trained) if id(output) in looked_up else 0)


def flos_per_token(model: object) -> int:
    """Return the operations that `state.total_flos` counts per value of the main input; 0 for other models."""
    if not hasattr(model, "num_parameters"):
        return 0
    all_of_them = _FORWARD + _ACTIVATION_GRADIENT + _WEIGHT_GRADIENT
    return all_of_them * int(model.num_parameters(exclude_embeddings=True))


def takes_ids(model: torch.nn.Module) -> bool:
    """Return whether the main input of a model is ids: then its values are tokens, else those of images or features."""
    return str(getattr(model, "main_input_name", "input_ids")).endswith("_ids")


def samples_so_far(state: TrainerState, args: TrainingArguments, loader: object) -> float:
    """Return the number of samples that a run has seen: passes over the training data times their number.

    Of data without a length: optimizer steps times the samples of one.

    Args:
        state: the trainer's state.
        args: the training arguments.
        loader: the loader of the training data; None: it is not known.
    """
    dataset = getattr(loader, "dataset", None)
    if dataset is not None and has_length(dataset):
        return float(state.epoch or 0.0) * len(dataset)
    return float(state.global_step * args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def _operations(weight: Any, is_above_trained: bool) -> int:
    per_weight = _FORWARD + _ACTIVATION_GRADIENT * is_above_trained + _WEIGHT_GRADIENT * weight.requires_grad
    return int(per_weight * weight.numel())


def _output_weight(model: torch.nn.Module) -> torch.Tensor | None:
    find = getattr(model, "get_output_embeddings", None)
    return None if find is None else getattr(find(), "weight", None)
