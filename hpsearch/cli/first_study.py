"""A first study: which learning rate, batch size and width separate two spirals?

    hpsearch run study.py
    hpsearch run study.py --n-jobs 2 --n-trials 40
    hpsearch show; hpsearch best; hpsearch report

Replace `make_data`, `model_init` and `SPACE` by your own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from hpsearch import Categorical, Float, SearchPlan, Trainer, TrainingArguments

SPACE = {
    "learning_rate": Float(1e-4, 1e-1, log=True),
    "per_device_train_batch_size": Categorical((16, 32, 64)),
    "weight_decay": Float(0.0, 0.1),
    "model.width": Categorical((8, 16, 32)),  # for model_init to read
}


def make_data(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Points on two spirals, with a little noise, and which of the two each is on."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    turn = 2 * torch.rand(count, generator=generator).sqrt() * torch.pi
    arm = torch.stack([turn.cos(), turn.sin()], 1) * (turn / 3)[:, None] * (1 - 2 * labels)[:, None]
    points = arm + 0.1 * torch.randn(count, 2, generator=generator)
    return [{"points": each, "labels": label} for each, label in zip(points, labels, strict=True)]


class Classifier(torch.nn.Module):
    """Two hidden layers; any module that returns a loss and logits will do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (2, width, width, 2)
        layers: list[torch.nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
        self.layers = torch.nn.Sequential(*layers[:-1])

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, and a score for each of the two spirals."""
        logits = self.layers(points)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def model_init(trial: Any = None) -> Classifier:
    """A new model; its width is the trial's."""
    return Classifier(16 if trial is None else trial.params["model.width"])


def compute_metrics(prediction: Any) -> dict[str, float]:
    """The fraction of points that are on the spiral they are said to be on."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def make_trainer() -> Trainer:
    """The recipe that is searched; nothing in it is about the search."""
    args = TrainingArguments("runs", num_train_epochs=9, eval_strategy="epoch", save_strategy="no", disable_tqdm=True)
    return Trainer(
        model_init=model_init,
        args=args,
        train_dataset=make_data(1000, seed=0),
        eval_dataset=make_data(500, seed=1),
        compute_metrics=compute_metrics,
    )


study = SearchPlan(make_trainer, SPACE, n_trials=20, compute_objective="accuracy", study_name="spirals")
