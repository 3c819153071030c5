"""Hooks that a model has only during training: NEFTune's noise and the overflow detector.

They are removed when the training ends, which leaves the model as it was before.
"""

from __future__ import annotations

import torch
from transformers.debug_utils import DebugOption, DebugUnderflowOverflow
from transformers.integrations.neftune import activate_neftune, deactivate_neftune

from ..arguments import TrainingArguments
from ..errors import ArgumentError, InvalidInputError
from .model_traits import core_model


class ModelHooks:
    """The hooks that the arguments of a run ask for, on its model.

    Raises:
        InvalidInputError: `neftune_noise_alpha` is set, but the model does not expose its embeddings.
        ArgumentError: `debug="underflow_overflow"` is asked for with several GPUs in one process.
    """

    def __init__(self, model: torch.nn.Module, args: TrainingArguments, accelerator: object) -> None:
        self._model, self._accelerator = model, accelerator
        self._noise: object = None
        self._detector: DebugUnderflowOverflow | None = None
        if args.neftune_noise_alpha is not None:
            _check_embeddings(model)
            self._noise = activate_neftune(model, args.neftune_noise_alpha, accelerator)
        if DebugOption.UNDERFLOW_OVERFLOW in args.debug:
            if args.n_gpu > 1:
                raise ArgumentError(
                    f"debug='underflow_overflow' cannot look into the copies that DataParallel makes for {args.n_gpu} "
                    "GPUs; start one process per GPU with `accelerate launch` or `torchrun`."
                )
            self._detector = DebugUnderflowOverflow(model)

    def remove(self) -> None:
        """Take everything off again."""
        if self._noise is not None:
            deactivate_neftune(self._model, self._noise, self._accelerator)
            self._noise = None
        if self._detector is not None:
            for module in self._model.modules():
                for key, hook in list(module._forward_hooks.items()):
                    if hook == self._detector.forward_hook:
                        del module._forward_hooks[key]
            self._detector = None


def _check_embeddings(model: torch.nn.Module) -> None:
    core = core_model(model)
    try:
        embeddings = core.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        embeddings = None
    if not isinstance(embeddings, torch.nn.Module):
        raise InvalidInputError(
            f"neftune_noise_alpha puts noise on the input embeddings, but {type(core).__name__} does not expose "
            "them; give it a method get_input_embeddings() that returns its torch.nn.Embedding."
        )
