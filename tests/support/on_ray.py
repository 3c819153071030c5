"""What the tests of searches on Ray share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import default_data_collator

from hpsearch import BestRun
from tests.support.searching import RATE
from tests.support.small_trainer import points, small_trainer

ON_RAY = {"backend": "ray", "resources_per_trial": {"cpu": 1}, "max_concurrent_trials": 2, "progress": False}


def loss_of(model: torch.nn.Module) -> float:
    """The loss of the evaluation data of `small_trainer`."""
    batch = default_data_collator(points(32, seed=1))
    with torch.no_grad():
        return float(model(**batch)["loss"])


def search(folder: Path, n_trials: int = 1, callbacks: Any = (), trainer: Any = None, **options: Any) -> BestRun:
    """Search on Ray with a small trainer; `options` are of the search, `trainer` are those of the trainer."""
    never = {} if "scheduler" in options else {"pruner": "none"}
    options = {"compute_objective": "loss", **ON_RAY, **never, **options}
    small = small_trainer(folder, *callbacks, **(trainer or {}))
    return small.hyperparameter_search(options.pop("hp_space", RATE), n_trials=n_trials, **options)
