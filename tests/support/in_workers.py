"""Searches whose trials run in workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpsearch import BestRun
from tests.support.searching import RATE
from tests.support.small_trainer import small_trainer


def search(folder: Path, n_trials: int | None, *callbacks: Any, trainer: Any = None, **options: Any) -> BestRun:
    """Search with two workers and a small trainer; what `n_jobs` says goes, if it is given."""
    given = {"compute_objective": "loss", "pruner": "none", "n_jobs": 2, "progress": False, **options}
    small = small_trainer(folder, *callbacks, **(trainer or {}))
    return small.hyperparameter_search(given.pop("hp_space", RATE), n_trials=n_trials, **given)
