"""What Ray costs a search: ours and transformers' `hyperparameter_search(backend="ray")`, in one run, with two slots.

    python -m studies.benchmarks.ray [--rounds 3] [--trials 8] [--long]

All sides search the same space on the same local Ray: ours with its defaults, the transformers Trainer with its own (a
new actor for each trial) and with `reuse_actors=True`. Rounds are interleaved and their order rotates. The trials write
down when what happens in them; the rest is what Ray itself has counted, and nothing in either library is touched.

1. Between two trials of a slot: from the last evaluation of one to the first step of the next, less `model_init`.
2. The efficiency of the slots with trials of one second: the time of training over the time that the slots were there,
   from the first step to the last trial's end; and the whole search, with the start of its processes.
3. With 100 MB of training data: the largest function or class that was pickled, and what the object store was given.
4. With `--long`: 200 short trials of ours, in which neither the driver's memory nor its time for a trial may grow.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
import ray.tune
import transformers
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_list

import hpsearch

from .stamps import Stamps, TrialTimes, gaps, read_stamps
from .step import Rows, make_data

SLOTS = 2
WINDOW = 25


def efficiency(trials: list[TrialTimes], seconds: float) -> float:
    """Return the part of the slots' time that was training, when each trial trained for `seconds`."""
    wall = max(trial.end for trial in trials) - min(trial.first_step for trial in trials)
    return len(trials) * seconds / SLOTS / wall


def make_trainer(library: Any, folder: str, stamps: Stamps, data: Any) -> Any:
    args = library.TrainingArguments(
        folder,
        max_steps=16,
        eval_strategy="steps",
        eval_steps=8,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = library.Trainer(
        model_init=stamps.model_init, args=args, train_dataset=data, eval_dataset=make_data(16), callbacks=[stamps]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def search_ours(trainer: Any, trials: int, progress: Any = False) -> None:
    space = {
        "learning_rate": hpsearch.Float(1e-5, 1e-3, log=True),
        "weight_decay": hpsearch.Float(0.0, 0.3),
        "warmup_steps": hpsearch.Int(0, 4),
        "seed": hpsearch.Int(1, 40),
    }
    trainer.hyperparameter_search(
        space,
        n_trials=trials,
        backend="ray",
        max_concurrent_trials=SLOTS,
        resources_per_trial={"cpu": 1},
        pruner="none",
        progress=progress,
    )


def search_peer(trainer: Any, trials: int, **options: Any) -> None:
    domains = {
        "learning_rate": ray.tune.loguniform(1e-5, 1e-3),
        "weight_decay": ray.tune.uniform(0.0, 0.3),
        "warmup_steps": ray.tune.randint(0, 5),
        "seed": ray.tune.randint(1, 41),
    }
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.hyperparameter_search(
            lambda _: domains,
            n_trials=trials,
            backend="ray",
            max_concurrent_trials=SLOTS,
            resources_per_trial={"cpu": 1},
            storage_path=str(Path(trainer.args.output_dir, "ray")),
            verbose=0,
            **options,
        )


@dataclass(frozen=True)
class Side:
    """One way to search."""

    name: str
    library: Any
    search: Callable[[Any, int], None]

    def run(self, trials: int, data: Any, seconds: float = 0.0) -> list[TrialTimes]:
        """Return the trials of one search in a new folder."""
        with tempfile.TemporaryDirectory() as folder:
            stamps = Stamps(str(Path(folder, "stamps.jsonl")), seconds)
            self.search(make_trainer(self.library, str(Path(folder, "out")), stamps, data), trials)
            times = read_stamps(stamps.file)
        if len(times) != trials:
            raise RuntimeError(f"{self.name}: {len(times)} of {trials} trials came to their end.")
        return times


SIDES = (
    Side("ours", hpsearch, search_ours),
    Side("peer", transformers, search_peer),
    Side("peer-reuse", transformers, functools.partial(search_peer, reuse_actors=True)),
)


def compare_times(rounds: int, trials: int, sides: Sequence[Side]) -> None:
    """Print what lies between two trials, and the efficiency of the slots."""
    data = make_data(64)
    between: dict[str, list[float]] = {side.name: [] for side in sides}
    used: dict[str, list[float]] = {side.name: [] for side in sides}
    whole: dict[str, list[float]] = {side.name: [] for side in sides}
    for place in range(rounds):
        turn = place % len(sides)
        for side in [*sides[turn:], *sides[:turn]]:
            between[side.name].append(statistics.median(gaps(side.run(trials, data), SLOTS)))
            begin = time.perf_counter()
            times = side.run(trials, data, seconds=1.0)
            whole[side.name].append(time.perf_counter() - begin)
            used[side.name].append(efficiency(times, seconds=1.0))
    first = between[sides[0].name]
    print(f"{SLOTS} slots, {trials} trials; medians of {rounds} rounds; targets: 0.4 s between trials, efficiency 0.80")
    print(f"{'':<12}{'between trials s':>18}{f'over {sides[0].name}':>12}{'efficiency':>12}{'whole search s':>16}")
    for side in sides:
        ratio = statistics.median(them / us for us, them in zip(first, between[side.name], strict=True))
        print(
            f"{side.name:<12}{statistics.median(between[side.name]):18.3f}{ratio:12.1f}"
            f"{statistics.median(used[side.name]):12.2f}{statistics.median(whole[side.name]):16.1f}",
            flush=True,
        )


def pickled_definitions() -> dict[bytes, int]:
    """Return the sizes of the functions and classes that Ray has pickled."""
    sizes = {}
    for namespace in (b"fun", None):
        for key in _internal_kv_list(b"", namespace=namespace):
            sizes[key] = max(sizes.get(key, 0), len(_internal_kv_get(key, namespace=namespace) or b""))
    return sizes


def stored_bytes() -> int:
    """Return the bytes of all objects that were ever put into the object store."""
    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return int(get_memory_info_reply(state).store_stats.cumulative_created_bytes)


def compare_sizes(megabytes: int, trials: int, sides: Sequence[Side]) -> None:
    """Print what a search with much training data pickles, and what it puts into the object store."""
    data = Rows(megabytes * 10**6)
    print(f"{megabytes} MB of training data, {trials} trials")
    print(f"{'':<12}{'largest pickled kB':>20}{'object store MB':>18}")
    for side in sides:
        known, stored = pickled_definitions(), stored_bytes()
        side.run(trials, data)
        largest = max((size for key, size in pickled_definitions().items() if size != known.get(key)), default=0)
        print(f"{side.name:<12}{largest / 1e3:20.1f}{(stored_bytes() - stored) / 1e6:18.1f}", flush=True)


class DriverCost(hpsearch.SearchListener):
    """Notes the driver's memory, processor time and the time, whenever a trial has ended."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float, float]] = []

    def on_trial_end(self, record: Any) -> None:
        self.marks.append((psutil.Process().memory_info().rss / 1e6, time.process_time(), time.perf_counter()))


def watch_driver(trials: int) -> None:
    """Print how the driver's memory and its time for a trial change in a long search of ours."""
    cost = DriverCost()
    Side("ours", hpsearch, functools.partial(search_ours, progress=cost)).run(trials, make_data(64))
    print(f"ours, {trials} short trials: the driver after each {WINDOW}")
    print(f"{'trials':>8} {'memory MB':>10} {'CPU ms/trial':>13} {'wall ms/trial':>14}")
    middles, rows = [], []
    for first in range(0, trials - 1, WINDOW):
        last = min(first + WINDOW, trials - 1)
        (_, cpu, begin), (memory, cpu_then, end) = cost.marks[first], cost.marks[last]
        rows.append((memory, (cpu_then - cpu) / (last - first) * 1e3, (end - begin) / (last - first) * 1e3))
        middles.append((first + last) / 2)
        print(f"{last + 1:8} {rows[-1][0]:10.1f} {rows[-1][1]:13.1f} {rows[-1][2]:14.1f}")
    slopes = [statistics.linear_regression(middles, column).slope * 100 for column in zip(*rows, strict=True)]
    print(
        f"in 100 trials more: memory {slopes[0]:+.2f} MB, CPU {slopes[1]:+.2f} ms a trial, "
        f"wall {slopes[2]:+.2f} ms a trial",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison; 0: none")
    parser.add_argument("--trials", type=int, default=8, help="of each search in the comparison")
    parser.add_argument("--megabytes", type=int, default=100, help="of training data, where sizes are compared")
    parser.add_argument("--sides", nargs="*", choices=[side.name for side in SIDES], default=[s.name for s in SIDES])
    parser.add_argument("--long", action="store_true", help="watch the driver through 200 trials of ours")
    options = parser.parse_args()
    if options.trials <= SLOTS:
        parser.error(f"--trials must be more than {SLOTS}, but got {options.trials}: one has to follow another.")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray.init(address="local", num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    sides = [side for side in SIDES if side.name in options.sides]
    try:
        # First: memory that the other searches leave free would hide what this one takes.
        if options.long:
            watch_driver(200)
        if options.rounds:
            compare_times(options.rounds, options.trials, sides)
            compare_sizes(options.megabytes, options.trials, sides)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
