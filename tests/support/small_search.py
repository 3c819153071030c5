"""A small search in the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpsearch import BestRun, SearchInterrupted, TrialRecord
from tests.support.search_processes import RATE
from tests.support.searching import AtStep, interrupt
from tests.support.small_trainer import CountsModels, small_trainer


def search(
    folder: Path, n_trials: int | None, *callbacks: Any, trainer: dict[str, Any] | None = None, **options: Any
) -> Any:
    """Search for a learning rate with a small trainer; nothing is built, trained or evaluated but for its trials."""
    arguments = {"compute_objective": "loss", "pruner": "none", "preflight": False, "progress": False, **options}
    return small_trainer(folder, *callbacks, **(trainer or {})).hyperparameter_search(
        RATE, n_trials=n_trials, **arguments
    )


def records_of(best: BestRun) -> list[TrialRecord]:
    return list(best.run_summary.records)


def interrupted_study(folder: Path, n_trials: int) -> Path:
    """Return the folder of a study of this many trials, the last one interrupted after its first checkpoint."""
    with pytest.raises(SearchInterrupted):
        search(folder, n_trials, AtStep(interrupt, run=n_trials - 1, step=6), trainer={"save_strategy": "epoch"})
    return folder / "study"


class Steps(AtStep):
    """Remembers the updates made, and in which micro-batches."""

    def __init__(self, act: Callable[[], None] = lambda: None, run: int = -1, step: int = -1) -> None:
        super().__init__(act, run, step)
        self.batches: list[tuple[int, int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.batches.append((args.per_device_train_batch_size, args.gradient_accumulation_steps))
        super().on_step_end(args, state, control, **kwargs)


def fails_in(*numbers: int) -> CountsModels:
    """Return a `model_init` that fails in these trials, or in all."""

    def fail(trial: Any) -> None:
        if not numbers or trial.number in numbers:
            raise RuntimeError(f"out of luck in trial {trial.number}")

    return CountsModels(fail)
