"""A search that ends by a signal, in the ways of running: as a program of its own, or in the test process.

    python -m tests.support.signalled_search FOLDER HOW [TRIALS]

HOW: inline, workers, ray; brought, brought_workers (by `tune`). With TRIALS, such as 0,1, these trials take their time
from the tenth step on, and a file ``slow-<trial>-<rank>`` in FOLDER says that they have come there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import optuna
import torch
from transformers import TrainerCallback

from hpsearch import BestRun, Float, tune
from tests.support.small_trainer import TwoLayers, small_trainer, transformers_trainer
from tests.support.warm_workers import warm_if_there_is_a_server

TRIALS, STEPS = 3, 100
SLOW_STEP, SECONDS, MOST_SECONDS = 10, 0.05, 60.0
SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True)}
OPTIONS: dict[str, dict[str, Any]] = {
    "inline": {},
    "workers": {"n_jobs": 2},
    "ray": {"backend": "ray", "max_concurrent_trials": 2, "resources_per_trial": {"cpu": 0.5}},
    "brought": {},
    "brought_workers": {"n_jobs": 2},
}


class TakesItsTime(TrainerCallback):
    """Slows trials down from the tenth step on, where they wait for each other; acts when the last has come there."""

    def __init__(self, folder: Path, trials: Collection[int], act: Callable[[], None] = lambda: None) -> None:
        self._folder, self._trials, self._act = folder, trials, act

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = int(Path(args.output_dir).name.rpartition("-")[2])
        if number not in self._trials or state.global_step < SLOW_STEP:
            return
        if state.global_step == SLOW_STEP:
            (self._folder / f"slow-{number}-{os.environ.get('RANK', '0')}").touch()
            if len(list(self._folder.glob("slow-*"))) == len(self._trials):
                self._act()
            until = time.monotonic() + MOST_SECONDS
            while len(list(self._folder.glob("slow-*"))) < len(self._trials):  # in a worker that starts later
                assert time.monotonic() < until, "the other trials have not come there"
                time.sleep(SECONDS)
        time.sleep(SECONDS)


def search(folder: Path, how: str, *callbacks: Any) -> BestRun:
    """Search in a folder: three trials of a hundred steps, with an evaluation after every fifth epoch."""
    arguments: dict[str, Any] = {
        "num_train_epochs": 25,
        "eval_strategy": "steps",
        "eval_steps": 20,
        "per_device_train_batch_size": 4 // int(os.environ.get("WORLD_SIZE", "1")),
    }

    def make_trainer(trial: Any) -> Any:
        return transformers_trainer(folder, TwoLayers(), *callbacks, **arguments, **trial.params)

    options: dict[str, Any] = {
        "compute_objective": "loss",
        "n_trials": TRIALS,
        "pruner": "none",
        "storage": "journal",
        "sampler": optuna.samplers.RandomSampler(seed=1),
        "progress": False,
        **OPTIONS[how],
    }
    if how.startswith("brought"):
        found = tune(make_trainer, SPACE, **options)
    else:
        found = small_trainer(folder, *callbacks, **arguments).hyperparameter_search(SPACE, **options)
    assert isinstance(found, BestRun)
    return found


def main() -> None:
    """Search as the command line says; an interruption is not caught."""
    torch.set_num_threads(1)
    folder, how, *slow = sys.argv[1:]
    trials = [int(each) for each in slow[0].split(",")] if slow else []
    with warm_if_there_is_a_server():  # of the workers of Ray
        search(Path(folder), how, *[TakesItsTime(Path(folder), trials)] if trials else [])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
