"""An objective like that of Optuna's example for PyTorch, as its users bring it here: layers that depend on a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import Trainer, TrainingArguments
from tests.support.models import accuracy
from tests.support.searching import states
from tests.support.small_trainer import points

MOST_LAYERS = 3


class Layers(torch.nn.Module):
    """Linear layers with dropout, of these widths and rates, and a loss."""

    def __init__(self, widths: list[int], rates: list[float]) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        inputs = 2
        for width, rate in zip(widths, rates, strict=True):
            layers += [torch.nn.Linear(inputs, width), torch.nn.ReLU(), torch.nn.Dropout(rate)]
            inputs = width
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(inputs, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        loss = {} if labels is None else {"loss": torch.nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


def define_model(trial: Any) -> Layers:
    """As the example does, each layer is suggested when the one before it has been made."""
    n_layers = trial.suggest_int("n_layers", 1, MOST_LAYERS)
    widths = [trial.suggest_int(f"n_units_l{i}", 4, 32) for i in range(n_layers)]
    rates = [trial.suggest_float(f"dropout_l{i}", 0.2, 0.5) for i in range(n_layers)]
    return Layers(widths, rates)


def optimizer(trial: Any) -> dict[str, Any]:
    return {
        "optim": trial.suggest_categorical("optimizer", ["adamw_torch", "rmsprop", "sgd"]),
        "learning_rate": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
    }


def everything(trial: Any) -> dict[str, Any]:
    define_model(trial)
    return optimizer(trial)


@pytest.mark.parametrize(
    "hp_space", [optimizer, everything], ids=["model_init suggests layers", "hp_space suggests all"]
)
def test_the_objective_of_optunas_example_runs_with_the_default_pruner(tmp_path: Path, hp_space: Any) -> None:
    trainer = Trainer(
        model_init=define_model,
        args=TrainingArguments(str(tmp_path), num_train_epochs=3, eval_strategy="epoch", disable_tqdm=True),
        train_dataset=points(32, seed=0),
        eval_dataset=points(16, seed=1),
        compute_metrics=accuracy,
    )
    best = trainer.hyperparameter_search(hp_space, "accuracy", n_trials=6, progress=False)
    records = best.run_summary.records
    assert set(states(best)) == {"complete", "pruned"}
    for record in records:
        layers = range(record.params["n_layers"])
        names = [f"{name}_l{i}" for name in ("n_units", "dropout") for i in layers]
        assert set(record.params) - set(record.arguments) == {"n_layers", "optimizer", "lr", *names}
        assert record.arguments == {"optim": record.params["optimizer"], "learning_rate": record.params["lr"]}
    model = best.load_model()
    chosen = best.run_summary.records[int(best.run_id)].params
    widths = [each.out_features for each in model.layers if isinstance(each, torch.nn.Linear)][:-1]
    rates = [each.p for each in model.layers if isinstance(each, torch.nn.Dropout)]
    assert widths == [chosen[f"n_units_l{i}"] for i in range(chosen["n_layers"])]
    assert rates == [chosen[f"dropout_l{i}"] for i in range(chosen["n_layers"])]
    assert len({record.params["n_layers"] for record in records}) > 1
    again = trainer.hyperparameter_search(hp_space, "accuracy", n_trials=6, progress=False)
    assert again.objective == best.objective
