"""The properties of a model that a run needs, determined once when the run is built."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES
from transformers.utils import can_return_loss, find_labels

from ..arguments import TrainingArguments
from ..errors import InvalidInputError
from .flops import flos_per_token


@dataclass(frozen=True)
class ModelTraits:
    """Facts about a model that do not change while it trains.

    Attributes:
        label_names: keys of a batch that hold labels.
        accepts_loss_kwargs: forward takes `num_items_in_batch` and normalises its loss by it.
        loss_shifts_labels: the loss predicts `labels[..., 1:]`, so position 0 is not an item.
        is_causal_lm: the class is a causal language model (label smoothing shifts the labels).
        can_return_loss: forward returns a loss without labels by default (CLIP-like models).
        signature_columns: names of `forward`'s arguments plus the label names.
        flos_per_token: floating-point operations of forward and backward per input token, 0 if unknown.
        counts_own_operations: the model has a `floating_point_ops` of its own, to be asked instead.
        main_input_name: the batch key whose elements count as tokens.
    """

    label_names: list[str]
    accepts_loss_kwargs: bool
    loss_shifts_labels: bool
    is_causal_lm: bool
    can_return_loss: bool
    signature_columns: list[str]
    flos_per_token: int
    counts_own_operations: bool
    main_input_name: str

    @classmethod
    def of(cls, model: torch.nn.Module, args: TrainingArguments) -> ModelTraits:
        """Inspect `model`.

        Raises:
            InvalidInputError: the model has no head, so it cannot compute a loss.
        """
        core = core_model(model)
        kind: Any = type(core)
        if kind.__name__ in MODEL_MAPPING_NAMES.values():
            raise InvalidInputError(
                f"The model you have picked ({kind.__name__}) cannot be used as is for training: it only computes "
                "hidden states and takes no labels. Use a model with a head, such as an AutoModelFor... class."
            )
        parameters = inspect.signature(core.forward).parameters
        label_names = find_labels(type(core)) if args.label_names is None else list(args.label_names)
        is_encoder_decoder = getattr(getattr(core, "config", None), "is_encoder_decoder", False)
        return cls(
            label_names=label_names,
            accepts_loss_kwargs=getattr(core, "accepts_loss_kwargs", normalises_by_item_count(kind)),
            loss_shifts_labels=LOSS_MAPPING.get(getattr(core, "loss_type", None)) is ForCausalLMLoss
            and not is_encoder_decoder,
            is_causal_lm=type(core).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(),
            can_return_loss=can_return_loss(type(core)),
            signature_columns=[*parameters, *dict.fromkeys(["label", "label_ids", *label_names])],
            flos_per_token=flos_per_token(model),
            counts_own_operations=_counts_own_operations(type(model)),
            main_input_name=getattr(model, "main_input_name", "input_ids"),
        )


@functools.lru_cache
def normalises_by_item_count(kind: Any) -> bool:
    """Return whether a class of models divides its loss by `num_items_in_batch`: its forward names it or hands it on.

    A forward that takes ``**kwargs`` but hands them to no function called ``...loss...``, like BERT's classifier,
    averages over the batch it sees. Where the source cannot be read, ``**kwargs`` are taken to reach the loss.
    """
    forward = inspect.unwrap(kind.forward)
    parameters = inspect.signature(forward).parameters
    if "num_items_in_batch" in parameters:
        return True
    rest = next((name for name, each in parameters.items() if each.kind == inspect.Parameter.VAR_KEYWORD), None)
    if rest is None:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, TypeError, SyntaxError):
        return True
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "loss" in ast.unparse(node.func).lower()]
    handed_on = [each.value for call in calls for each in call.keywords if each.arg is None]
    return any(isinstance(value, ast.Name) and value.id == rest for value in handed_on)


def core_model(model: torch.nn.Module) -> Any:
    """Return the model inside a PEFT wrapper, or the model itself."""
    if hasattr(model, "get_base_model") and hasattr(model, "peft_config"):
        return getattr(model, "get_base_model")()  # noqa: B009 - torch types attributes of modules as tensors
    return model


def _counts_own_operations(kind: type) -> bool:
    own = getattr(kind, "floating_point_ops", None)
    return own is not None and own is not getattr(PreTrainedModel, "floating_point_ops", None)
