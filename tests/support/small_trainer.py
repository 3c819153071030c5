"""A real trainer whose trials take hundredths of a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PrinterCallback

from hpsearch import Trainer, TrainingArguments
from tests.support.models import accuracy


class TwoLayers(torch.nn.Module):
    """A classifier of points in the plane; not a transformers model."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(2, hidden)
        self.output = torch.nn.Linear(hidden, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.output(torch.tanh(self.hidden(x)))
        outputs = {"logits": logits}
        return outputs if labels is None else {"loss": torch.nn.functional.cross_entropy(logits, labels), **outputs}


def points(size: int, seed: int) -> list[dict[str, Any]]:
    """Points in the plane; the label tells on which side of a circle they are."""
    drawn = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed))
    return [{"x": point, "labels": int(point.norm() > 1.1)} for point in drawn]


class CountsModels:
    """A `model_init` that counts its calls and remembers the trials it was given."""

    def __init__(self, fail: Callable[[Any], None] | None = None) -> None:
        self.trials: list[Any] = []
        self._fail = fail

    def __call__(self, trial: Any) -> TwoLayers:
        self.trials.append(trial)
        if self._fail is not None:
            self._fail(trial)
        return TwoLayers()


def small_trainer(
    folder: Path | str, *callbacks: Any, model_init: Any = None, kind: type[Trainer] = Trainer, **changes: Any
) -> Trainer:
    """16 points in batches of 4 for two epochs, evaluated after each; `changes` are of the trainer or its arguments."""
    parts, arguments = _divided(changes)
    if "model" not in parts:
        parts["model_init"] = model_init or CountsModels()
    trainer = kind(args=TrainingArguments(str(folder), **arguments), callbacks=list(callbacks), **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def transformers_trainer(
    folder: Path | str,
    model: torch.nn.Module,
    *callbacks: Any,
    kind: type[transformers.Trainer] = transformers.Trainer,
    **changes: Any,
) -> transformers.Trainer:
    """The same as a trainer of transformers, or of a class derived from it."""
    parts, arguments = _divided(changes)
    args = transformers.TrainingArguments(str(folder), **arguments)
    return kind(model, args, callbacks=list(callbacks), **parts)


def _divided(changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a trainer is made of besides its arguments, and the arguments."""
    parts = {"train_dataset": points(16, seed=0), "eval_dataset": points(32, seed=1), "compute_metrics": accuracy}
    parts.update({name: changes.pop(name) for name in (*parts, "model", "optimizers") if name in changes})
    arguments: dict[str, Any] = {
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 32,
        "num_train_epochs": 2,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **changes,
    }
    return parts, arguments
