"""Evaluation and prediction: a pass over a loader without gradients, its outputs gathered, its metrics named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from transformers import EvalPrediction
from transformers.trainer_pt_utils import find_batch_size, nested_detach
from transformers.trainer_utils import EvalLoopOutput, denumpify_detensorize, speed_metrics

from ..errors import ObjectiveError, described_value
from .gathering import BatchOutputs, Outputs, Share, num_samples_of
from .hooks import Batch, Hooks, takes_argument
from .losses import count_items
from .precision import full_eval_precision

if TYPE_CHECKING:
    from .run import TrainingRun


def evaluation_loop(
    trainer: Hooks,
    dataloader: DataLoader[object],
    description: str,
    prediction_loss_only: bool | None,
    ignore_keys: list[str] | None,
    metric_key_prefix: str,
) -> EvalLoopOutput:
    """Run the model over `dataloader` and return predictions, labels, prefixed metrics and the sample count.

    The loss is the mean over samples, exact also when the last batch is short. Predictions of unequal length are
    padded on the right with -100.
    """
    run, args = trainer.run, trainer.run.args
    loss_only = args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
    run.prepare_for_evaluation()
    with full_eval_precision(run.model_wrapped, args, run.is_in_train):
        kept, seen, batch_metrics = _pass_over(
            trainer, dataloader, loss_only, ignore_keys, keeps_outputs=description != "Evaluation"
        )
    metrics = (batch_metrics or {}) if args.batch_eval_metrics else _whole_metrics(trainer, kept)
    metrics = denumpify_detensorize(metrics)
    loss = kept.mean_loss(args.logging_nan_inf_filter)
    if loss is not None:
        metrics[f"{metric_key_prefix}_loss"] = loss
    return EvalLoopOutput(
        predictions=kept.predictions.get_arrays(),
        label_ids=kept.labels.get_arrays(),
        metrics=with_prefix(metrics, metric_key_prefix),
        num_samples=num_samples_of(run, dataloader, seen),
    )


def _pass_over(
    trainer: Hooks, dataloader: DataLoader[object], loss_only: bool, ignore_keys: list[str] | None, keeps_outputs: bool
) -> tuple[Outputs, int, dict[str, object] | None]:
    """Return the outputs of every batch, the samples of this process, and the metrics of `batch_eval_metrics`.

    With `batch_eval_metrics` the outputs of an evaluation are not kept: its metrics have seen them.
    """
    run, args = trainer.run, trainer.run.args
    model = run.model_wrapped
    set_mode(run, training=False)
    run.callback_handler.eval_dataloader = dataloader
    kept = Outputs.for_run(run)
    seen = 0
    batch_metrics: dict[str, object] | None = None
    for step, inputs in enumerate(dataloader):
        size = find_batch_size(inputs) or 0
        share = Share.of(run, dataloader, size)
        inputs = share.without_padding(inputs)
        seen += share.samples
        loss, logits, labels = trainer.prediction_step(model, inputs, loss_only, ignore_keys=ignore_keys)
        batch = kept.gather(trainer, inputs, share, loss, logits, labels)
        run.control = run.callback_handler.on_prediction_step(args, run.state, run.control)
        if args.batch_eval_metrics:
            is_last = run.accelerator.gradient_state.end_of_dataloader
            batch_metrics = _batch_metrics(trainer, batch, is_last) or batch_metrics
            if not keeps_outputs:
                kept.add_loss(batch)
                continue
        kept.add(batch)
        if args.eval_accumulation_steps is not None and (step + 1) % args.eval_accumulation_steps == 0:
            kept.to_host()
    return kept, seen, batch_metrics


def prediction_step(
    trainer: Hooks,
    model: torch.nn.Module,
    inputs: Batch,
    prediction_loss_only: bool,
    ignore_keys: list[str] | None,
) -> tuple[torch.Tensor | None, Any, Any]:
    """Return (loss, logits, labels) of one batch, each None where there is none.

    A single tensor of logits or labels comes bare, several as a tuple.
    """
    run = trainer.run
    names = run.traits.label_names
    has_labels = bool(names) and all(inputs.get(name) is not None for name in names)
    returns_loss = inputs.get("return_loss")
    loss_without_labels = not names and (run.traits.can_return_loss if returns_loss is None else returns_loss)
    inputs = trainer._prepare_inputs(inputs)
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
    trainer: Hooks,
    model: torch.nn.Module,
    inputs: Batch,
    num_items_in_batch: torch.Tensor | int | None,
    outputs: bool = False,
) -> Any:
    """Call `trainer.compute_loss`, in its present form or in the documented older one without the item count."""
    trainer.run.loss_is_of_all_processes = False
    if takes_argument(trainer.compute_loss, "num_items_in_batch"):
        return trainer.compute_loss(model, inputs, return_outputs=outputs, num_items_in_batch=num_items_in_batch)
    return trainer.compute_loss(model, inputs, return_outputs=outputs)


def set_mode(run: TrainingRun, training: bool) -> None:
    """Put the model, and an optimizer that has modes, into training or evaluation mode."""
    for part in (run.model_wrapped, run.optimizer):
        switch = getattr(part, "train" if training else "eval", None)
        if callable(switch):
            switch()


def add_speed_metrics(run: TrainingRun, output: EvalLoopOutput, prefix: str, start_time: float) -> None:
    """Add `_runtime`, `_samples_per_second` and `_steps_per_second` to the metrics of `output`."""
    total_batch = run.args.eval_batch_size * run.args.world_size
    steps = math.ceil(output.num_samples / total_batch)
    output.metrics.update(speed_metrics(prefix, start_time, num_samples=output.num_samples, num_steps=steps))


def with_prefix(metrics: Mapping[str, object], prefix: str) -> dict[str, Any]:
    """Return the metrics, every key starting with ``<prefix>_``."""
    named = {key: value for key, value in metrics.items() if key.startswith(f"{prefix}_")}
    named.update({f"{prefix}_{key}": value for key, value in metrics.items() if not key.startswith(f"{prefix}_")})
    return named


def _whole_metrics(trainer: Hooks, kept: Outputs) -> dict[str, object]:
    predictions, labels = kept.predictions.get_arrays(), kept.labels.get_arrays()
    if trainer.compute_metrics is None or predictions is None or labels is None:
        return {}
    losses = kept.losses.get_arrays() if "loss" in kept.wanted else None
    inputs = kept.inputs.get_arrays() if "inputs" in kept.wanted else None
    prediction = EvalPrediction(predictions=predictions, label_ids=labels, losses=losses, inputs=inputs)
    return checked_metrics(trainer.compute_metrics(prediction))


def _batch_metrics(trainer: Hooks, batch: BatchOutputs, is_last: bool) -> dict[str, object] | None:
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
    return checked_metrics(metrics) if is_last else metrics


def checked_metrics(metrics: object) -> dict[str, object]:
    """Return the checked result of `compute_metrics`.

    Raises:
        ObjectiveError: it is no dict; this ends a search, as it does not depend on the trial.
    """
    if not isinstance(metrics, dict):
        raise ObjectiveError(
            f"compute_metrics returned {described_value(metrics)}; it must return a dict of metric names to numbers, "
            "such as {'accuracy': 0.9}."
        )
    return metrics


def _logits(outputs: object, ignored: list[str], first: int = 0) -> object:
    if isinstance(outputs, dict):
        kept = tuple(value for key, value in outputs.items() if key not in ignored)
    else:
        kept = tuple(outputs[first:]) if isinstance(outputs, (tuple, list)) else (outputs,)
    return _alone_or_all(nested_detach(kept))


def _alone_or_all(values: tuple[object, ...]) -> object:
    return values[0] if len(values) == 1 else values
