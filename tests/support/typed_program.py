"""A program that uses the public names, for a type checker: nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import torch
from torch.utils.data import Dataset

import hpsearch
from hpsearch import (
    BestRun,
    Categorical,
    Float,
    Int,
    Ladder,
    SearchPlan,
    SearchSummary,
    Trainer,
    TrainingArguments,
    Trial,
    TrialRecord,
    TrialState,
    open_study,
    tune,
)


def model_init(trial: Trial | None = None) -> torch.nn.Module:
    width = 8 if trial is None else trial.suggest_int("width", 4, 16)
    return torch.nn.Linear(width, 2)


def search(train: Dataset[Any], dev: Dataset[Any], folder: Path) -> float:
    args = TrainingArguments(str(folder), eval_strategy="epoch", learning_rate=1e-3)
    trainer = Trainer(model_init=model_init, args=args, train_dataset=train, eval_dataset=dev)
    best = trainer.hyperparameter_search(
        {"learning_rate": Float(1e-5, 1e-3, log=True), "per_device_train_batch_size": Categorical([16, 32])},
        n_trials=20,
        compute_objective="accuracy",
        pruner=Ladder((1 / 6, 1 / 2)),
    )
    assert_type(best, BestRun | Any)  # Any: with several objectives it is a list
    if isinstance(best, BestRun):
        assert_type(best.objective, float | list[float] | None)
        assert_type(best.hyperparameters, dict[str, Any])
        assert_type(best.checkpoint, Path | None)
    print(best.run_id, best.hyperparameters["learning_rate"])
    return best.objective if isinstance(best.objective, float) else 0.0


def objective(trial: Trial) -> float:
    return trial.suggest_float("x", -9, 9) ** 2


def tuned() -> None:
    best = tune(objective, {"x": Float(-9, 9), "n": Int(1, 4)}, n_trials=20, direction="minimize")
    print(best.hyperparameters)


def look(folder: Path) -> list[TrialRecord]:
    summary = open_study(folder)
    assert isinstance(summary, SearchSummary)
    assert_type(hpsearch.__version__, str)
    return [each for each in summary.best_first() if each.state is TrialState.COMPLETE]


study = SearchPlan(objective, {"x": Float(-9, 9)}, n_trials=30)
