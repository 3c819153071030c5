"""A small trainer of transformers, and how it is searched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers

from hpsearch import BestRun, Float, tune
from tests.support.small_trainer import TwoLayers, transformers_trainer

RATE = {"learning_rate": Float(1e-3, 0.3, log=True)}
QUIET = {"progress": False, "compute_objective": "loss", "direction": "minimize"}


def make_trainer(trial: Any) -> transformers.Trainer:
    return transformers_trainer("made", TwoLayers(), **trial.params)


def search(make: Callable[[Any], Any] = make_trainer, space: Any = None, **options: Any) -> BestRun:
    given = {**QUIET, "n_trials": 3, "pruner": None, "output_dir": "out", "storage": "journal", **options}
    best: BestRun = tune(make, RATE if space is None else space, **given)
    return best


def curves(best: BestRun) -> list[list[float]]:
    return [[report.value for report in record.reports] for record in best.run_summary.records]
