"""The interface of a trainer for the loop, evaluation and checkpoints: its recipe, and the hooks that users override.

`hpsearch.Trainer` satisfies this protocol; so may any other recipe.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ..arguments import TrainingArguments
from .optimization import OptimizerClass

if TYPE_CHECKING:
    from transformers import BaseImageProcessor, FeatureExtractionMixin, PreTrainedTokenizerBase, ProcessorMixin

    from .run import TrainingRun

    ProcessingClass = Union[PreTrainedTokenizerBase, BaseImageProcessor, FeatureExtractionMixin, ProcessorMixin]
    """What makes a model's inputs of texts, images or sound; it is saved with the model."""

Batch = dict[str, Any]
"""A micro-batch as the data collator made it: tensors by name, and whatever else the model takes."""


class Hooks(Protocol):
    """A recipe and its hooks; every hook is called through the trainer, so that an override takes effect."""

    args: TrainingArguments
    data_collator: Callable[..., object]
    train_dataset: Any
    eval_dataset: Any
    processing_class: ProcessingClass | None
    compute_loss_func: Callable[..., torch.Tensor] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[..., object] | None
    optimizers: tuple[torch.optim.Optimizer | None, LRScheduler | None]
    optimizer_cls_and_kwargs: tuple[OptimizerClass, dict[str, Any]] | None
    optimizer_parameters: Mapping[str, object]
    loss_is_scaled_for_ga: bool | None

    @property
    def run(self) -> TrainingRun: ...

    def get_train_dataloader(self) -> DataLoader[object]: ...

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], torch.Tensor | int | None]: ...

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None: ...

    def create_scheduler(self, num_training_steps: int) -> LRScheduler: ...

    def training_step(
        self, model: torch.nn.Module, inputs: Batch, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor: ...

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any: ...

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[object]: ...

    def _prepare_inputs(self, inputs: Batch) -> Batch: ...

    def floating_point_ops(self, inputs: Batch) -> int: ...

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]: ...

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]: ...

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None: ...

    def save_model(self, output_dir: str | None = None) -> None: ...

    @property
    def create_model_card(self) -> Callable[..., None]: ...

    def is_world_process_zero(self) -> bool: ...


def takes_argument(hook: Callable[..., object], name: str) -> bool:
    """Return whether an override of a hook accepts argument `name`; the documented older forms leave some out."""
    parameters = inspect.signature(hook).parameters
    return name in parameters or any(each.kind == inspect.Parameter.VAR_KEYWORD for each in parameters.values())
