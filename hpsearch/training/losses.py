"""Which loss a batch has, and the running loss between two log lines."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_pt_utils import LabelSmoother

from ..arguments import TrainingArguments
from ..errors import InvalidInputError
from .hooks import Batch, Hooks

if TYPE_CHECKING:
    from accelerate import Accelerator


def make_label_smoother(args: TrainingArguments, model: torch.nn.Module) -> LabelSmoother | None:
    """Return the smoother that `args.label_smoothing_factor` asks for, or None."""
    if args.label_smoothing_factor == 0:
        return None
    if getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification":
        warnings.warn("label_smoothing_factor is not applied to multi-label classification.", UserWarning, stacklevel=2)
        return None
    return LabelSmoother(epsilon=args.label_smoothing_factor)


def count_items(trainer: Hooks, batches: list[Batch], device: torch.device | None = None) -> torch.Tensor | None:
    """Count the labels that enter the loss of one update, over all its micro-batches, as a tensor on `device`.

    Returns None where the loss does not use the count: the model does not accept it, there is no
    `compute_loss_func`, or the batches hold no tensor under ``labels``. With several processes the count is summed
    over them.
    """
    run = trainer.run
    if not (run.traits.accepts_loss_kwargs or trainer.compute_loss_func is not None):
        return None
    if not batches or "labels" not in batches[0]:
        return None
    try:
        counted: Any = sum((_counted_labels(batch, run.traits.loss_shifts_labels) != -100).sum() for batch in batches)
    except (TypeError, AttributeError):
        return None
    args = run.args
    if args.average_tokens_across_devices and args.world_size > 1:
        counted = run.accelerator.gather(counted.to(args.device)).sum()
    elif not args.average_tokens_across_devices and args.n_gpu > 1:
        counted = counted // args.n_gpu
    counted = counted.to(args.device if device is None else device)
    return counted.unsqueeze(0).expand(args.n_gpu, -1) if args.n_gpu > 1 and counted.dim() == 0 else counted


def _counted_labels(batch: Batch, shifted: bool) -> torch.Tensor:
    if "shift_labels" in batch:
        return batch["shift_labels"]
    return batch["labels"][..., 1:] if shifted else batch["labels"]


def compute_loss(
    trainer: Hooks,
    model: torch.nn.Module,
    inputs: Batch,
    return_outputs: bool = False,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> Any:
    """Return the loss of one micro-batch: `compute_loss_func`, label smoothing, or the model's own.

    The model's own loss is `outputs["loss"]` of a mapping, else `outputs[0]`.

    Raises:
        InvalidInputError: the model returned no loss; the message lists the keys it returned.
    """
    run = trainer.run
    custom = trainer.compute_loss_func
    replaces_loss = custom is not None or run.label_smoother is not None
    labels = inputs["labels"] if replaces_loss and "labels" in inputs else None
    if labels is not None:
        inputs = {key: value for key, value in inputs.items() if key != "labels"}
    if run.traits.accepts_loss_kwargs and num_items_in_batch is not None:
        inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
    outputs = model(**inputs)
    if custom is not None:
        loss = custom(outputs, labels, num_items_in_batch=num_items_in_batch)
    elif labels is not None:
        assert run.label_smoother is not None, "labels were removed for it"
        loss = run.label_smoother(
            outputs, labels, shift_labels=run.traits.is_causal_lm, num_items_in_batch=num_items_in_batch
        )
    else:
        loss = _own_loss(outputs, inputs)
    if (
        run.args.average_tokens_across_devices
        and (run.traits.accepts_loss_kwargs or custom is not None)
        and num_items_in_batch is not None
        and run.args.world_size > 1
    ):
        loss = loss * run.accelerator.num_processes
        run.loss_is_of_all_processes = True
    return (loss, outputs) if return_outputs else loss


def _own_loss(outputs: Any, inputs: Batch) -> torch.Tensor:
    if not isinstance(outputs, dict):
        return outputs[0]
    if "loss" not in outputs:
        raise InvalidInputError(
            f"The model returned no loss, only {', '.join(outputs)}. It received {', '.join(inputs)}; are the labels "
            "among them?"
        )
    return outputs["loss"]


class LossWindow:
    """The training loss since the last log line, and the total over the run.

    Micro-batch losses are summed; the mean is over update steps, as in transformers. With `filter_nonfinite`, a NaN
    or infinite loss counts as the mean of the window so far, and gradients are not touched. On a GPU the sum stays
    on the device, so that no step waits for it.
    """

    def __init__(self, device: torch.device, filter_nonfinite: bool, global_step: int = 0) -> None:
        self._filter = filter_nonfinite
        self._on_host = device.type == "cpu"
        self._sum: Any = 0.0 if self._on_host else torch.zeros((), device=device)
        self._total = 0.0
        self.first_step = global_step
        self.last_logged_step = global_step

    def add(self, loss: torch.Tensor, global_step: int) -> None:
        """Add one micro-batch loss, seen while `global_step` updates were done."""
        mean_so_far = self._sum / (1 + global_step - self.last_logged_step)
        if self._on_host:
            value = loss.item()
            self._sum += value if math.isfinite(value) or not self._filter else mean_so_far
        elif self._filter:
            self._sum = self._sum + torch.where(torch.isfinite(loss), loss, mean_so_far)
        else:
            self._sum = self._sum + loss

    def drain(self, accelerator: Accelerator, global_step: int) -> float:
        """Return the mean loss per update since the last call, over all processes, and start a new window."""
        window = float(self._mean_over_processes(accelerator))
        steps = global_step - self.last_logged_step
        self._total += window
        self._sum = self._zero()
        self.last_logged_step = global_step
        return window / steps

    def mean(self, accelerator: Accelerator, global_step: int) -> float:
        """Return the mean loss per update over the whole run, over all processes."""
        return (self._total + float(self._mean_over_processes(accelerator))) / max(global_step - self.first_step, 0.001)

    def state(self) -> dict[str, float]:
        """Return the state that a resumed run needs to continue with the same sums."""
        return {
            "sum": float(self._sum),
            "total": self._total,
            "first_step": self.first_step,
            "last_logged_step": self.last_logged_step,
        }

    def load(self, state: dict[str, float]) -> None:
        """Continue from `state`."""
        self._sum = self._zero() + state["sum"]
        self._total = state["total"]
        self.first_step = int(state["first_step"])
        self.last_logged_step = int(state["last_logged_step"])

    def _zero(self) -> torch.Tensor | float:
        return 0.0 if self._on_host else torch.zeros_like(self._sum)

    def _mean_over_processes(self, accelerator: Accelerator) -> torch.Tensor | float:
        if accelerator.num_processes == 1:
            return self._sum
        device = accelerator.device
        return accelerator.gather(torch.as_tensor(self._sum, dtype=torch.float32, device=device)).mean()
