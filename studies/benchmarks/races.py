"""Races of searches by real training: ours, and transformers' own, each watched by a record while its time lasts."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import math
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import transformers

import hpsearch
import hpsearch.backends.optuna_backend  # which a search imports when it begins

from .real_tasks import Task

DATA = Path(__file__).parents[3] / "shared" / "data"
# More trials than there is time for.
SLOTS, TRIALS = 2, 2000
OURS, PEER = "ours", "peer"


def best_of(metric: str, values: Sequence[float]) -> float:
    """Return the best of these values; of none, the worst that there can be."""
    return max(values, default=-math.inf) if metric == "accuracy" else min(values, default=math.inf)


def direction_of(metric: str) -> str:
    """Return whether this metric is maximised or minimised, as Optuna calls it."""
    return "maximize" if metric == "accuracy" else "minimize"


class Record(hpsearch.SearchListener, transformers.TrainerCallback):
    """Writes down what a side sees from now on, while its time lasts: by what our search tells, or a trainer."""

    def __init__(self, metric: str, seconds: float) -> None:
        self.metric, self.seconds, self._begin = metric, seconds, time.perf_counter()
        self.rises: list[tuple[float, float]] = []
        self.trials = 0

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self._begin + self.seconds - time.perf_counter()

    def see(self, value: float) -> None:
        """Note a value that is seen now."""
        best = best_of(self.metric, [value for _, value in self.rises])
        if self.left >= 0 and value != best and best_of(self.metric, [best, value]) == value:
            self.rises.append((self.seconds - self.left, value))

    def on_trial_begin(self, trial: Any) -> None:
        self.trials += trial.earlier is None

    def on_report(self, trial: Any, report: Any) -> None:
        self.see(report.value)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trials += 1

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        self.see(metrics[f"eval_{self.metric}"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= self.left <= 0  # transformers' search would finish the trial


def search(task: Task, record: Record, folder: Path, seed: int, **options: Any) -> list[dict[str, Any]]:
    """Search with ours while there is time and return the parameters of the trials with a result, best first."""
    if record.left <= 0:
        return []
    given = {"timeout": record.left, "n_jobs": SLOTS, "seed": seed, "progress": record, **options}
    best = task.make_trainer(hpsearch, folder).hyperparameter_search(task.space, task.metric, **given)
    return [each.params for each in best.run_summary.ranked()]


def ours(task: Task, record: Record, folder: Path, seed: int) -> None:
    """Search as it is by default, with two workers."""
    search(task, record, folder, seed, n_trials=TRIALS)


def peer(task: Task, record: Record, folder: Path, seed: int, **options: Any) -> None:
    """Search with transformers' Trainer as it is by default, in series, but with a seed; `options` are of the study."""

    def model_init(trial: Any = None) -> Any:
        if trial is not None:
            task.suggest(trial)  # hp_space is asked later, and hears the same
        return task.model_init(trial)

    searched = dataclasses.replace(task, model_init=model_init)
    with contextlib.redirect_stdout(io.StringIO()):
        searched.make_trainer(transformers, folder, [record]).hyperparameter_search(
            # A parameter that a trial does not have must be set too: else it has the value of the trial before.
            hp_space=lambda trial: {"warmup_steps": 0.0, **task.suggest(trial)},
            compute_objective=lambda metrics: metrics[f"eval_{task.metric}"],
            n_trials=TRIALS,
            direction=direction_of(task.metric),
            backend="optuna",
            timeout=record.left,
            sampler=optuna.samplers.TPESampler(seed=seed),
            **options,
        )


@contextlib.contextmanager
def ready_to_race(task: Task) -> Iterator[Path]:
    """Import what both libraries import only when a trainer is made; give a folder that is deleted afterwards."""
    quieten()
    with tempfile.TemporaryDirectory() as folder:
        for library in (hpsearch, transformers):
            task.make_trainer(library, Path(folder))
        yield Path(folder)


def new_process_for_each() -> ProcessPoolExecutor:
    """Return a pool that runs one race at a time, each in a process that has run none before."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1)


def quieten() -> None:
    """Let no library print what is not about the result."""
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
