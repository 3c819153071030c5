"""What a trial of an empty function costs, beside `optuna.Study.optimize` with the same storage and sampler.

    python -m studies.benchmarks.function [--trials 200] [--rounds 5] [--storage sqlite journal]

Both sides run in turn in one process; the sampler draws at random, nothing is pruned. Target: at most twice the time of
Optuna. What ours writes besides is a record of each trial in the study's folder.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages.journal import JournalFileBackend

import hpsearch


def parabola(trial: Any) -> float:
    """Cost next to nothing."""
    return float((trial.suggest_float("x", -9.0, 9.0) - 2) ** 2)


def with_optuna(storage: str, folder: Path, trials: int) -> None:
    """Search as Optuna does."""
    file = folder / f"optuna.{storage}"
    where: Any = f"sqlite:///{file}" if storage == "sqlite" else None
    where = where or optuna.storages.JournalStorage(JournalFileBackend(str(file)))
    study = optuna.create_study(storage=where, sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(parabola, n_trials=trials)


def with_ours(storage: str, folder: Path, trials: int) -> None:
    """Search in this process."""
    hpsearch.tune(
        parabola,
        direction="minimize",
        output_dir=folder,
        n_trials=trials,
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=None,
        storage=None if storage == "sqlite" else "journal",
        progress=False,
    )


def milliseconds(search: Callable[[str, Path, int], None], storage: str, trials: int) -> float:
    """Return the milliseconds for a trial; what a search costs once is taken off."""
    found = []
    for count in (2, trials):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            search(storage, Path(folder), count)
            found.append(time.perf_counter() - begin)
    return 1e3 * (found[1] - found[0]) / (trials - 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--storage", nargs="+", choices=("sqlite", "journal"), default=["sqlite", "journal"])
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for storage in options.storage:
        milliseconds(with_optuna, storage, 3), milliseconds(with_ours, storage, 3)  # imports
        pairs = [
            (milliseconds(with_optuna, storage, options.trials), milliseconds(with_ours, storage, options.trials))
            for _ in range(options.rounds)
        ]
        theirs, ours = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(our / their for their, our in pairs)
        print(
            f"{storage}: {ours:.1f} ms for a trial of hpsearch, {theirs:.1f} of Optuna alone; {ratio:.2f} times "
            f"(median of {options.rounds} rounds of {options.trials} trials)",
            flush=True,
        )


if __name__ == "__main__":
    main()
