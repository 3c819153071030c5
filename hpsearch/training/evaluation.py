"""Evaluation and prediction: a pass over a loader without gradients, its outputs gathered, its metrics named."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate.utils import slice_tensors
from torch.utils.data import DataLoader
from transformers import EvalPrediction
from transformers.trainer_pt_utils import EvalLoopContainer, find_batch_size, nested_detach
from transformers.trainer_utils import EvalLoopOutput, denumpify_detensorize, has_length, speed_metrics

from ..errors import InvalidInputError
from . import data
from .hooks import Hooks, takes_argument
from .losses import count_items
from .precision import full_eval_precision


def evaluation_loop(
    trainer: Hooks,
    dataloader: DataLoader[Any],
    description: str,
    prediction_loss_only: bool | None,
    ignore_keys: list[str] | None,
    metric_key_prefix: str,
) -> EvalLoopOutput:
    """Run the model over `dataloader` and return predictions, labels, prefixed metrics and the sample count.

    The loss is the mean over samples, exact also when the last batch is short. Predictions of unequal length are
    padded on the right with -100.
    """
    run = trainer.run
    run.prepare_for_evaluation()
    with full_eval_precision(run.model_wrapped, run.args, run.is_in_train):
        return _pass_over(trainer, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)


def _pass_over(
    trainer: Hooks,
    dataloader: DataLoader[Any],
    description: str,
    prediction_loss_only: bool | None,
    ignore_keys: list[str] | None,
    metric_key_prefix: str,
) -> EvalLoopOutput:
    run, args = trainer.run, trainer.run.args
    loss_only = args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
    model = run.model_wrapped
    set_mode(run, training=False)
    run.callback_handler.eval_dataloader = dataloader
    kept = _Outputs.for_run(run)
    seen = 0
    batch_metrics: dict[str, Any] | None = None
    for step, inputs in enumerate(dataloader):
        size = find_batch_size(inputs) or 0
        share = _Share.of(run, size)
        inputs = share.without_padding(inputs)
        seen += share.samples
        loss, logits, labels = trainer.prediction_step(model, inputs, loss_only, ignore_keys=ignore_keys)
        batch = kept.gather(trainer, inputs, share, loss, logits, labels)
        run.control = run.callback_handler.on_prediction_step(args, run.state, run.control)
        if args.batch_eval_metrics:
            is_last = run.accelerator.gradient_state.end_of_dataloader
            batch_metrics = _batch_metrics(trainer, batch, is_last) or batch_metrics
            if description == "Evaluation":
                kept.add_loss(batch)
                continue
        kept.add(batch)
        if args.eval_accumulation_steps is not None and (step + 1) % args.eval_accumulation_steps == 0:
            kept.to_host()
    num_samples = _num_samples(run, dataloader, seen)
    metrics = (batch_metrics or {}) if args.batch_eval_metrics else _whole_metrics(trainer, kept)
    metrics = denumpify_detensorize(metrics)
    loss = kept.mean_loss(args.logging_nan_inf_filter)
    if loss is not None:
        metrics[f"{metric_key_prefix}_loss"] = loss
    return EvalLoopOutput(
        predictions=kept.predictions.get_arrays(),
        label_ids=kept.labels.get_arrays(),
        metrics=with_prefix(metrics, metric_key_prefix),
        num_samples=num_samples,
    )


def prediction_step(
    trainer: Hooks,
    model: torch.nn.Module,
    inputs: dict[str, Any],
    prediction_loss_only: bool,
    ignore_keys: list[str] | None,
) -> tuple[Any, Any, Any]:
    """Return (loss, logits, labels) of one batch, each None where there is none.

    A single tensor of logits or labels comes bare, several as a tuple.
    """
    run = trainer.run
    names = run.traits.label_names
    has_labels = bool(names) and all(inputs.get(name) is not None for name in names)
    returns_loss = inputs.get("return_loss")
    loss_without_labels = not names and (run.traits.can_return_loss if returns_loss is None else returns_loss)
    inputs = data.move_to(inputs, run.args.device)
    if ignore_keys is None:
        ignore_keys = getattr(getattr(run.model, "config", None), "keys_to_ignore_at_inference", [])
    with torch.no_grad(), trainer.compute_loss_context_manager():
        if not (has_labels or loss_without_labels):
            outputs = model(**inputs)
            return None, None if prediction_loss_only else _logits(outputs, ignore_keys), None
        labels = _alone_or_all(nested_detach(tuple(inputs.get(name) for name in names)))
        loss, outputs = compute_loss_through_hook(trainer, model, inputs, count_items(trainer, [inputs]), outputs=True)
        loss = loss.detach().mean()
        if prediction_loss_only:
            return loss, None, None
        first = 0 if isinstance(outputs, dict) else 1
        return loss, _logits(outputs, [*ignore_keys, "loss"], first), labels


def compute_loss_through_hook(
    trainer: Hooks, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any, outputs: bool = False
) -> Any:
    """Call `trainer.compute_loss`, in its present form or in the documented older one without the item count."""
    if takes_argument(trainer.compute_loss, "num_items_in_batch"):
        return trainer.compute_loss(model, inputs, return_outputs=outputs, num_items_in_batch=num_items_in_batch)
    return trainer.compute_loss(model, inputs, return_outputs=outputs)


def set_mode(run: Any, training: bool) -> None:
    """Put the model, and an optimizer that has modes, into training or evaluation mode."""
    for part in (run.model_wrapped, run.optimizer):
        switch = getattr(part, "train" if training else "eval", None)
        if callable(switch):
            switch()


def add_speed_metrics(run: Any, output: EvalLoopOutput, prefix: str, start_time: float) -> None:
    """Add `_runtime`, `_samples_per_second` and `_steps_per_second` to the metrics of `output`."""
    total_batch = run.args.eval_batch_size * run.args.world_size
    steps = math.ceil(output.num_samples / total_batch)
    output.metrics.update(speed_metrics(prefix, start_time, num_samples=output.num_samples, num_steps=steps))


def with_prefix(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the metrics, every key starting with ``<prefix>_``."""
    named = {key: value for key, value in metrics.items() if key.startswith(f"{prefix}_")}
    named.update({f"{prefix}_{key}": value for key, value in metrics.items() if not key.startswith(f"{prefix}_")})
    return named


@dataclass(frozen=True)
class _Share:
    """This process's share of one batch; of the last batch, some rows may only pad it to the size of the others.

    Attributes:
        samples: rows that are samples, not padding.
        samples_of_all: the same, over all processes.
    """

    run: Any
    size: int
    samples: int
    samples_of_all: int

    @classmethod
    def of(cls, run: Any, size: int) -> _Share:
        """Find the share: accelerate pads the last batch with samples of the first one."""
        processes, remainder = run.accelerator.num_processes, run.accelerator.gradient_state.remainder
        if processes == 1:
            return cls(run, size, size, size)
        if not run.accelerator.gradient_state.end_of_dataloader or remainder <= 0:
            return cls(run, size, size, size * processes)
        return cls(run, size, min(max(remainder - run.args.process_index * size, 0), size), remainder)

    def without_padding(self, inputs: Any) -> Any:
        """Return the samples alone; a process that has none keeps one row, without a label, so that it takes part."""
        if self.samples == self.size:
            return inputs
        rows = slice_tensors(inputs, slice(0, max(self.samples, 1)))
        labels = rows.get("labels")
        if self.samples == 0 and isinstance(labels, torch.Tensor) and not labels.is_floating_point():
            rows["labels"] = torch.full_like(labels, -100)
        return rows

    def gather_rows(self, rows: Any) -> Any:
        """Return the rows of all processes, padding dropped."""
        accelerator = self.run.accelerator
        if self.samples_of_all < self.size * accelerator.num_processes:
            rows = accelerator.pad_across_processes(rows, dim=0)
        return accelerator.gather_for_metrics(rows, use_gather_object=self.run.args.eval_use_gather_object)

    def loss_of_all(self, trainer: Hooks, loss: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return the loss of the whole batch, once for every sample: what one process would have computed.

        A loss that is normalised over the items of all processes is their mean, another one that over the samples.
        """
        reduce = self.run.accelerator.reduce
        uses_count = self.run.traits.accepts_loss_kwargs or trainer.compute_loss_func is not None
        counts_items = uses_count and "labels" in inputs and self.run.args.average_tokens_across_devices
        weight = torch.tensor(1.0 if counts_items else float(self.samples), device=loss.device)
        own = loss.float() * weight if self.samples else torch.zeros_like(loss, dtype=torch.float32)
        return (reduce(own, "sum") / reduce(weight, "sum")).repeat(self.samples_of_all)


@dataclass(frozen=True)
class _Batch:
    losses: Any = None
    predictions: Any = None
    labels: Any = None
    inputs: Any = None


@dataclass(frozen=True)
class _Outputs:
    """What an evaluation keeps of every batch."""

    losses: EvalLoopContainer
    predictions: EvalLoopContainer
    labels: EvalLoopContainer
    inputs: EvalLoopContainer
    wanted: tuple[str, ...] = field(default=())

    @classmethod
    def for_run(cls, run: Any) -> _Outputs:
        make = functools.partial(EvalLoopContainer, run.args.eval_do_concat_batches, padding_index=-100)
        return cls(make(), make(), make(), make(), tuple(run.args.include_for_metrics))

    def gather(self, trainer: Hooks, inputs: Any, share: _Share, loss: Any, logits: Any, labels: Any) -> _Batch:
        """Bring one batch together from all processes; the samples that padded the last batch are dropped."""
        run = trainer.run
        shown = data.move_to(_main_input(run, inputs), run.args.device) if "inputs" in self.wanted else None
        if run.accelerator.num_processes == 1:
            if logits is not None and trainer.preprocess_logits_for_metrics is not None:
                logits = trainer.preprocess_logits_for_metrics(logits, labels)
            return _Batch(None if loss is None else loss.repeat(max(share.samples, 1)), logits, labels, shown)
        pad, gather = run.accelerator.pad_across_processes, share.gather_rows
        if labels is not None:
            labels = pad(labels, dim=1, pad_index=-100)
        if logits is not None:
            logits = pad(logits, dim=1, pad_index=-100)
            if trainer.preprocess_logits_for_metrics is not None:
                logits = trainer.preprocess_logits_for_metrics(logits, labels)
        return _Batch(
            None if loss is None else share.loss_of_all(trainer, loss, inputs),
            None if logits is None else gather(logits),
            None if labels is None else gather(labels),
            None if shown is None else gather(pad(shown, dim=1, pad_index=-100)),
        )

    def add(self, batch: _Batch) -> None:
        self.add_loss(batch)
        for container, value in ((self.predictions, batch.predictions), (self.labels, batch.labels)):
            if value is not None:
                container.add(value)
        if batch.inputs is not None:
            self.inputs.add(batch.inputs)

    def add_loss(self, batch: _Batch) -> None:
        if batch.losses is not None:
            self.losses.add(batch.losses)

    def to_host(self) -> None:
        for container in (self.losses, self.predictions, self.labels, self.inputs):
            container.to_cpu_and_numpy()

    def mean_loss(self, filter_nonfinite: bool) -> float | None:
        losses = self.losses.get_arrays()
        if losses is None:
            return None
        values = np.concatenate(losses) if isinstance(losses, list) else losses
        finite = np.isfinite(values)
        if filter_nonfinite and finite.any():
            values = values[finite]
        return float(values.mean())


def _main_input(run: Any, inputs: Any) -> Any:
    name = run.traits.main_input_name
    if name not in inputs:
        raise InvalidInputError(
            f"include_for_metrics=['inputs'] shows the main input of the model, {name!r}, but the batch holds only "
            f"{', '.join(inputs)}. Give the model's class an attribute main_input_name that names one of these."
        )
    return inputs[name]


def _whole_metrics(trainer: Hooks, kept: _Outputs) -> dict[str, Any]:
    predictions, labels = kept.predictions.get_arrays(), kept.labels.get_arrays()
    if trainer.compute_metrics is None or predictions is None or labels is None:
        return {}
    losses = kept.losses.get_arrays() if "loss" in kept.wanted else None
    inputs = kept.inputs.get_arrays() if "inputs" in kept.wanted else None
    prediction = EvalPrediction(predictions=predictions, label_ids=labels, losses=losses, inputs=inputs)
    return _checked(trainer.compute_metrics(prediction))


def _batch_metrics(trainer: Hooks, batch: _Batch, is_last: bool) -> dict[str, Any] | None:
    if trainer.compute_metrics is None or batch.predictions is None or batch.labels is None:
        return None
    wanted = trainer.run.args.include_for_metrics
    prediction = EvalPrediction(
        predictions=batch.predictions,
        label_ids=batch.labels,
        losses=batch.losses if "loss" in wanted else None,
        inputs=batch.inputs if "inputs" in wanted else None,
    )
    metrics = trainer.compute_metrics(prediction, compute_result=is_last)
    return _checked(metrics) if is_last else metrics


def _checked(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, dict):
        raise InvalidInputError(
            f"compute_metrics returned {metrics!r} ({type(metrics).__name__}); it must return a dict of metric names "
            "to numbers."
        )
    return metrics


def _logits(outputs: Any, ignored: list[str], first: int = 0) -> Any:
    if isinstance(outputs, dict):
        kept = tuple(value for key, value in outputs.items() if key not in ignored)
    else:
        kept = tuple(outputs[first:]) if isinstance(outputs, (tuple, list)) else (outputs,)
    return _alone_or_all(nested_detach(kept))


def _alone_or_all(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _num_samples(run: Any, dataloader: DataLoader[Any], seen: int) -> int:
    dataset = getattr(dataloader, "dataset", None)
    if dataset is not None and has_length(dataset) and len(dataset):
        return len(dataset)
    if run.accelerator.num_processes == 1:
        return seen
    return int(run.accelerator.reduce(torch.tensor(seen, device=run.accelerator.device), reduction="sum"))
