"""Whether long searches stay fast: thousands of trials in two workers.

    python -m studies.benchmarks.long_search [--trials 2000] [--work tenth second]
    python -m studies.benchmarks.long_search --watch 500

1. Trials of the default search of five parameters, all to completion, beside bare processes that only train: the
   efficiency of two workers (target 0.85 with trials of a second), how much longer the last 200 take than the first 200
   (target 1.1 times, with trials of a tenth), and the CPU time and memory of the process that searches.
2. With `--watch`, in place of these: short trials, in which neither memory, nor files, nor threads, nor the time for a
   trial may grow. Beside the time of the process that searches stands what Optuna alone needs, which is a part of it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
import psutil
from optuna.storages.journal import JournalFileBackend

import hpsearch

from .parallel import EVALUATIONS, SLOTS, WORKS, BareProcesses, WorkStamps, make_trainer, search_ours, start_workers
from .step import make_data

WINDOW = 50
FIVE = {
    "learning_rate": hpsearch.Float(1e-5, 1e-3, log=True),
    "weight_decay": hpsearch.Float(1e-4, 1e-1, log=True),
    "adam_beta1": hpsearch.Float(0.8, 0.99),
    "adam_beta2": hpsearch.Float(0.9, 0.999),
    "max_grad_norm": hpsearch.Float(0.1, 10.0, log=True),
}


class Ends(hpsearch.SearchListener):
    """Records when trials end, and how much memory and CPU time this process has taken by then."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.megabytes: list[float] = []
        self.cpu_seconds: list[float] = []

    def on_trial_end(self, record: Any) -> None:
        self.times.append(time.perf_counter())
        self.megabytes.append(psutil.Process().memory_info().rss / 1e6)
        self.cpu_seconds.append(time.process_time())


def search_many(name: str, trials: int, bare: BareProcesses) -> None:
    """Print how efficiently two workers carry out many trials, and whether the last ones take longer."""
    work, ends, few = WORKS[name], Ends(), 2 * WINDOW
    before = bare.seconds(work, few, SLOTS)
    with tempfile.TemporaryDirectory() as folder:
        stamps = WorkStamps(str(Path(folder, "stamps.jsonl")), work)
        trainer = make_trainer(hpsearch, str(Path(folder, "out")), stamps, make_data(256))
        trainer.hyperparameter_search(FIVE, "loss", n_trials=trials, pruner="none", progress=ends, n_jobs=SLOTS)
    one = (before + bare.seconds(work, few, SLOTS)) / 2 / few
    each = (ends.times[-1] - ends.times[0]) / (trials - 1)
    some = min(4 * WINDOW, trials // 2)
    first, last = ends.times[some] - ends.times[0], ends.times[-1] - ends.times[-1 - some]
    print(f"{trials} trials '{name}' ({work}), two workers: {each * 1e3:.0f} ms for each, bare {one * 1e3:.0f} ms;")
    print(f"efficiency {one / each:.2f}; the last {some} took {last / first:.2f} times as long as the first;")
    begin, end = (
        1e3 * (each[-1] - each[0]) / (some - 1) for each in (ends.cpu_seconds[:some], ends.cpu_seconds[-some:])
    )
    print(f"CPU of the process that searches: {begin:.0f} ms for each of the first {some}, {end:.0f} ms for the last;")
    grown = ends.megabytes[-1] - ends.megabytes[some]
    print(f"after {some} trials, the memory of the process that searches has grown by {grown:.0f} MB", flush=True)


class CoordinatorCost(hpsearch.SearchListener):
    """Records the memory, files, threads and time of this process and its workers after each window of trials."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, ...]] = []
        self.ended = 0

    def on_trial_end(self, record: Any) -> None:
        self.ended += 1
        if self.ended % WINDOW:
            return
        own, workers = psutil.Process(), [0.0, 0.0, 0.0]
        for each in own.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found = each.memory_info().rss / 1e6, each.num_fds(), each.num_threads()
                workers = [before + more for before, more in zip(workers, found, strict=True)]
        self.marks.append(
            (
                own.memory_info().rss / 1e6,
                float(own.num_fds()),
                float(own.num_threads()),
                *workers,
                time.process_time() * 1e3,
                time.perf_counter() * 1e3,
            )
        )


def watch(trials: int) -> None:
    """Print how this process and its workers change in a long search."""
    cost = CoordinatorCost()
    with tempfile.TemporaryDirectory() as folder:
        stamps = WorkStamps(str(Path(folder, "stamps.jsonl")), WORKS["tiny"])
        trainer = make_trainer(hpsearch, str(Path(folder, "out")), stamps, make_data(64))
        sampler = optuna.samplers.RandomSampler(seed=0)
        search_ours(trainer, trials, progress=cost, storage="journal", sampler=sampler)
    names = ("memory MB", "files", "threads", *(f"workers' {name}" for name in ("MB", "files", "threads")))
    names = (*names, "CPU ms/trial", "wall ms/trial")
    print(f"{trials} short trials, journal storage, random sampler: the process that searches, after each {WINDOW}")
    print(f"{'trials':>8}" + "".join(f"{name:>18}" for name in names))
    rows, middles = [], []
    for place, (before, now) in enumerate(itertools.pairwise(cost.marks), start=2):
        row = (*now[:6], *((now[column] - before[column]) / WINDOW for column in (6, 7)))
        rows.append(row)
        middles.append((place - 0.5) * WINDOW)
        print(f"{place * WINDOW:8}" + "".join(f"{each:18.1f}" for each in row), flush=True)
    slopes = [statistics.linear_regression(middles, column).slope * 100 for column in zip(*rows, strict=True)]
    print(f"{'in 100':>8}" + "".join(f"{each:+18.2f}" for each in slopes), flush=True)
    alone, all_of_it = optuna_alone(trials), statistics.median(row[-2] for row in rows)
    print(f"CPU ms/trial: {all_of_it:.1f} (target 5), {all_of_it / alone:.1f} times those of Optuna alone, {alone:.1f}")


def optuna_alone(trials: int) -> float:
    """Return the CPU milliseconds that Optuna needs to ask for a trial, and to be told its reports and its end."""
    with tempfile.TemporaryDirectory() as folder:
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(Path(folder, "journal"))))
        study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
        begin = time.process_time()
        for _ in range(trials):
            trial = study.ask()
            trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)
            for report in range(EVALUATIONS):
                trial.report(0.7, report)
                trial.should_prune()
            study.tell(trial, 0.7)
        return (time.process_time() - begin) / trials * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000, help="of each search")
    parser.add_argument("--work", nargs="*", choices=WORKS, default=["tenth", "second"])
    parser.add_argument("--watch", type=int, default=0, metavar="TRIALS", help="whose cost is watched")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    start_workers()
    if options.watch:
        watch(options.watch)
        return
    bare = BareProcesses(SLOTS)
    try:
        for name in options.work:
            search_many(name, options.trials, bare)
    finally:
        bare.end()


if __name__ == "__main__":
    main()
