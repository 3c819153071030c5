"""Short searches by which tests see which parameters were chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna

from hpsearch import BestRun, Float
from tests.support.searching import RATE
from tests.support.small_trainer import TwoLayers, points, small_trainer

WIDE = {"weight_decay": Float(0.0, 100.0)}


def search(folder: Path, n_trials: int = 3, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    """One epoch on four points a trial; the objective is the evaluation loss."""
    changes = {"num_train_epochs": 1, "train_dataset": points(4, seed=0), **options.pop("trainer", {})}
    settings = {"progress": False, "pruner": "none", "storage": "journal", **options}
    objective = settings.pop("objective", "loss")
    space = settings.pop("space", RATE)
    return small_trainer(folder, *callbacks, **changes).hyperparameter_search(
        space, objective, n_trials=n_trials, **settings
    )


def params_of(best: BestRun) -> list[dict[str, Any]]:
    return [record.params for record in best.run_summary.records]


def rates(best: BestRun) -> list[float]:
    return [record.params["learning_rate"] for record in best.run_summary.records]


class Measures:
    """`compute_metrics` that tells the distance of a trial's parameter from 70, without any training."""

    def __init__(self) -> None:
        self.value = math.nan

    def __call__(self, prediction: Any) -> dict[str, float]:
        return {"distance": abs(self.value - 70.0), "one": 1.0}


def weight_is_measured(check: Callable[[Any], None] = lambda trial: None) -> dict[str, Any]:
    """Options of `search` under which a trial is worth how near its weight is to 70; `check` may raise."""
    measures = Measures()

    def model_init(trial: Any) -> Any:
        measures.value = trial.params["weight_decay"]
        check(trial)
        return TwoLayers(2)

    trainer = {"compute_metrics": measures, "model_init": model_init, "num_train_epochs": 3}
    return {"objective": "distance", "direction": "minimize", "space": WIDE, "trainer": trainer}


def search_for_70(folder: Path, n_trials: int, **options: Any) -> BestRun:
    settings = {**weight_is_measured(), **options}
    settings["trainer"] = {**weight_is_measured()["trainer"], "num_train_epochs": 1, **options.get("trainer", {})}
    best: BestRun = search(folder, n_trials, **settings)
    return best


def study_about_70(n_trials: int = 30, direction: str = "minimize") -> optuna.Study:
    study = optuna.create_study(direction=direction, study_name="about 70")
    for number in range(n_trials):
        value = 100.0 * (number + 0.5) / n_trials
        study.add_trial(
            optuna.trial.create_trial(
                params={"weight_decay": value},
                distributions={"weight_decay": optuna.distributions.FloatDistribution(0.0, 100.0)},
                value=abs(value - 70.0),
            )
        )
    return study
