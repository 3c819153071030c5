"""What a search in two workers costs: ours, transformers' on Optuna and on Ray, and two bare processes, in one run.

    python -m studies.benchmarks.parallel [--rounds 3] [--trials 20] [--work short text] [--memory]
    python -m studies.benchmarks.parallel --first-minute 5

All sides train the same models on the same batches for as long. The bare processes hold nothing but a loop: forward,
backward, clipping, AdamW, schedule, and the evaluations; they are there already when the clock starts. Ours is timed
with its workers' server running, as in the second search of a program; its first start is printed beside it. Rounds are
interleaved and their order rotates; the ratios of each round are taken side by side, and their medians printed.

1. Wall time of a search, and the ratio to two bare processes (target 1.3).
2. The efficiency of two workers: the time of two bare processes over that from the first step to the last trial's end.
3. Between two trials of a worker: from the last evaluation to the next first step, less `model_init` (target 60 ms).
4. With `--memory`: a 500 MB dataset, and how much memory of each worker is its own (target: the model and 150 MB).
5. With `--first-minute 5`, alone: the time from the call to the first line and to the first step in a program that has
   imported hpsearch, with the first worker forked from it, and with the fork server as in 0.8 (target: 1 s for each).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import psutil
import torch
import transformers
from accelerate.state import GradientState
from torch.utils.data import DataLoader, RandomSampler
from transformers import default_data_collator, get_scheduler

import hpsearch

from .stamps import Stamps, TrialTimes, gaps, read_stamps
from .step import Rows, make_data, make_model

SLOTS = 2
EVALUATIONS = 2


@dataclass(frozen=True)
class Work:
    """What each trial trains: a BERT of this size, for this number of optimizer steps with batches of this size."""

    hidden: int
    layers: int
    steps: int
    batch: int

    def model(self) -> Any:
        """Return a new model."""
        return make_model(self.hidden, self.layers)


WORKS = {
    "tiny": Work(32, 1, 16, 8),
    "tenth": Work(32, 1, 34, 8),
    "short": Work(32, 1, 140, 8),
    "second": Work(32, 1, 340, 8),
    "text": Work(128, 2, 240, 16),
}


def train_bare(work: Work, data: Any) -> None:
    """Train and evaluate one model."""
    model = work.model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=work.steps)
    step = 0
    while step < work.steps:
        loader = DataLoader(data, batch_size=work.batch, sampler=RandomSampler(data), collate_fn=default_data_collator)
        for batch in loader:
            model(**batch)["loss"].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % (work.steps // EVALUATIONS) == 0:
                with torch.no_grad():
                    model.eval()(**default_data_collator(data[:16]))
                model.train()
            if step == work.steps:
                break


def bare_process(connection: Any, threads: int) -> None:
    """Train as many models as it is told, until there is nothing more to do."""
    torch.set_num_threads(threads)
    train_bare(WORKS["tiny"], make_data(64))
    connection.send("ready")
    while (told := connection.recv()) is not None:
        work, trials = told
        data = make_data(256)
        for _ in range(trials):
            train_bare(work, data)
        connection.send("done")


class BareProcesses:
    """Processes that only train."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pairs = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=bare_process, args=(theirs, 1), daemon=True)
            process.start()
            self._pairs.append((process, ours))
        for _, connection in self._pairs:
            connection.recv()

    def seconds(self, work: Work, trials: int, processes: int) -> float:
        """Return how long a number of them need for a number of trials together."""
        begin = time.perf_counter()
        chosen = self._pairs[:processes]
        for place, (_, connection) in enumerate(chosen):
            connection.send((work, len(range(place, trials, processes))))
        for _, connection in chosen:
            connection.recv()
        return time.perf_counter() - begin

    def end(self) -> None:
        """End them."""
        for process, connection in self._pairs:
            connection.send(None)
            process.join()


class WorkStamps(Stamps):
    """Stamps whose models are those of the work."""

    def __init__(self, file: str, work: Work) -> None:
        super().__init__(file, make=work.model)
        self.work = work


def make_trainer(library: Any, folder: str, stamps: WorkStamps, data: Any) -> Any:
    work = stamps.work
    args = library.TrainingArguments(
        folder,
        per_device_train_batch_size=work.batch,
        per_device_eval_batch_size=16,
        max_steps=work.steps,
        eval_strategy="steps",
        eval_steps=work.steps // EVALUATIONS,
        save_strategy="no",
        report_to="none",
        logging_steps=10**6,
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = library.Trainer(
        model_init=stamps.model_init, args=args, train_dataset=data, eval_dataset=make_data(16), callbacks=[stamps]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def search_ours(trainer: Any, trials: int, n_jobs: int = SLOTS, **options: Any) -> None:
    space = {"learning_rate": hpsearch.Float(1e-5, 1e-3, log=True)}
    given = {"pruner": "none", "progress": False, "n_jobs": n_jobs, **options}
    trainer.hyperparameter_search(space, "loss", n_trials=trials, **given)


def search_peer(trainer: Any, trials: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.hyperparameter_search(
            lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)},
            n_trials=trials,
            backend="optuna",
            pruner=optuna.pruners.NopPruner(),
        )


def search_peer_on_ray(trainer: Any, trials: int) -> None:
    import ray
    from ray import tune

    with contextlib.redirect_stdout(io.StringIO()):
        trainer.hyperparameter_search(
            lambda _: {"learning_rate": tune.loguniform(1e-5, 1e-3)},
            n_trials=trials,
            backend="ray",
            max_concurrent_trials=SLOTS,
            resources_per_trial={"cpu": 1},
            storage_path=str(Path(trainer.args.output_dir, "ray")),
            verbose=0,
            reuse_actors=True,
        )
    ray.shutdown()


@dataclass(frozen=True)
class Side:
    """One way to search."""

    name: str
    library: Any
    search: Callable[[Any, int], None]
    threads: int = SLOTS  # of this process, where it trains itself

    def run(self, work: Work, trials: int) -> tuple[float, list[TrialTimes]]:
        """Return the seconds of one search in a new folder, and its trials."""
        GradientState._reset_state()  # else it refers to loaders of earlier runs, and the peer cannot be pickled
        with tempfile.TemporaryDirectory() as folder:
            stamps = WorkStamps(str(Path(folder, "stamps.jsonl")), work)
            trainer = make_trainer(self.library, str(Path(folder, "out")), stamps, make_data(256))
            torch.set_num_threads(self.threads)
            begin = time.perf_counter()
            self.search(trainer, trials)
            seconds = time.perf_counter() - begin
            return seconds, read_stamps(stamps.file)


SIDES = {
    "ours": Side("ours, 2 workers", hpsearch, search_ours),
    "serial": Side("ours, in series, two threads", hpsearch, partial(search_ours, n_jobs=1)),
    "one worker": Side(
        "ours, one worker, two threads", hpsearch, partial(search_ours, n_jobs=1, trials_per_worker=10**6)
    ),
    "serial one": Side("ours, in series, one thread", hpsearch, partial(search_ours, n_jobs=1), threads=1),
    "peer": Side("peer, in series, one thread", transformers, search_peer, threads=1),
    "ray": Side("peer on Ray, actors reused", transformers, search_peer_on_ray),
}


def compare(name: str, rounds: int, trials: int, sides: Sequence[str], bare: BareProcesses) -> None:
    """Print the seconds of all sides and of bare processes, and the ratios to two bare ones."""
    work = WORKS[name]
    ways: dict[str, Callable[[], tuple[float, list[TrialTimes]]]] = {
        "two bare processes": lambda: (bare.seconds(work, trials, SLOTS), []),
        "one bare process": lambda: (bare.seconds(work, trials, 1), []),
        **{SIDES[side].name: (lambda each=SIDES[side]: each.run(work, trials)) for side in sides},
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    between: dict[str, list[float]] = {way: [] for way in ways}
    inner: list[float] = []
    names = list(ways)
    for place in range(rounds):
        turn = place % len(names)
        for way in [*names[turn:], *names[:turn]]:
            taken, times = ways[way]()
            seconds[way].append(taken)
            if times:
                between[way] += gaps(times, SLOTS)
            if way == SIDES["ours"].name:
                inner.append(max(each.end for each in times) - min(each.first_step for each in times))
    reference = seconds["two bare processes"]
    print(f"{trials} trials '{name}' ({work}); medians of {rounds} rounds")
    print(f"{'':<28}{'seconds':>9}{'over two bare':>15}{'trials an hour':>16}{'between trials ms':>19}")
    for way in names:
        ratio = statistics.median(mine / one for mine, one in zip(seconds[way], reference, strict=True))
        middle = statistics.median(seconds[way])
        gap = f"{statistics.median(between[way]) * 1e3:19.0f}" if between[way] else ""
        print(f"{way:<28}{middle:9.2f}{ratio:15.2f}{trials / middle * 3600:16.0f}{gap}", flush=True)
    if inner:
        share = statistics.median(one / mine for mine, one in zip(inner, reference, strict=True))
        print(f"efficiency of two workers, from the first step to the last end: {share:.2f} (target 0.90)", flush=True)


def start_workers() -> None:
    """Print how long workers take to start, the first one with the server they are forked from."""
    from hpsearch.executors.processes.device_slots import Slot
    from hpsearch.executors.processes.payload import pack
    from hpsearch.executors.processes.pool import Workers

    with tempfile.TemporaryDirectory() as folder:
        payload = pack(({}, None), Path(folder, "data"))
        for which in ("first", "second", "third"):
            begin = time.perf_counter()
            workers = Workers([Slot((), 1)], payload)
            workers.start()
            while not workers.ready():
                list(workers.wait(1.0))
            print(f"{which} worker ready after {time.perf_counter() - begin:.2f} s", flush=True)
            workers.end()


class Telling(hpsearch.SearchListener):
    """Notes when the search says its first line, which in 0.8 came when it had prepared all."""

    def __init__(self, is_as_in_0_8: bool) -> None:
        self.first_line, self._is_as_in_0_8 = math.inf, is_as_in_0_8

    def on_search_prepare(self, study: Any) -> None:
        if not self._is_as_in_0_8:
            self.first_line = time.time()

    def on_search_begin(self, study: Any, records: Any, notes: Any) -> None:
        self.first_line = min(self.first_line, time.time())


def first_minute(way: str) -> None:
    """Search in this process, which has just started; print the seconds to the first line and the first step.

    Args:
        way: "forked": as the search itself decides; "served": by the fork server alone, as in 0.8.
    """
    from hpsearch.executors.processes import process_executor

    if way == "served":
        process_executor.fork_first_worker = lambda *_: None
    with tempfile.TemporaryDirectory() as folder:
        stamps, told = WorkStamps(str(Path(folder, "stamps.jsonl")), WORKS["tiny"]), Telling(way == "served")
        trainer = make_trainer(hpsearch, str(Path(folder, "out")), stamps, make_data(64))
        begin = time.time()
        search_ours(trainer, 2, progress=told)
        steps = [each.first_step for each in read_stamps(stamps.file)]
        print(json.dumps([told.first_line - begin, min(steps) - begin]))


def compare_first_minutes(rounds: int) -> None:
    """Print how long a new program waits for the first line and the first step, in interleaved rounds."""
    seconds: dict[str, list[list[float]]] = {"served": [], "forked": []}
    for place in range(rounds):
        for way in list(seconds)[:: 1 if place % 2 else -1]:
            command = [sys.executable, "-m", "studies.benchmarks.parallel", "--first-minute-of", way]
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            seconds[way].append(json.loads(said.stdout.splitlines()[-1]))
    print(f"from the call, n_jobs=2, in a program that has imported hpsearch; medians of {rounds} interleaved rounds")
    print(f"{'first worker':<16}{'first line s':>14}{'first step s':>14}")
    for way, each in seconds.items():
        lines, steps = zip(*each, strict=True)
        print(f"{way:<16}{statistics.median(lines):14.2f}{statistics.median(steps):14.2f}", flush=True)


class WritesMemory(transformers.TrainerCallback):
    """Writes down how much memory is its process's alone."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self.file.open("a") as stream:
            stream.write(f"{os.getpid()} {psutil.Process().memory_full_info().uss / 1e6}\n")


def measure_memory(megabytes: int) -> None:
    """Print how much memory each of two workers has for itself, with much training data."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "memory")
        stamps = WorkStamps(str(Path(folder, "stamps.jsonl")), WORKS["tiny"])
        trainer = make_trainer(hpsearch, str(Path(folder, "out")), stamps, Rows(megabytes * 10**6))
        trainer.add_callback(WritesMemory(file))
        search_ours(trainer, 6)
        used: dict[str, float] = {}
        for line in file.read_text().splitlines():
            process, memory = line.split()
            used[process] = max(used.get(process, 0.0), float(memory))
    shown = ", ".join(f"{each:.0f} MB" for each in used.values())
    print(f"{megabytes} MB of training data: memory that is a worker's alone: {shown} (target 150 MB and the model)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison; 0: none")
    parser.add_argument("--trials", type=int, default=20, help="of each search in the comparison")
    parser.add_argument("--work", nargs="*", choices=WORKS, default=["short", "text"])
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    parser.add_argument("--megabytes", type=int, default=500, help="of training data, with --memory")
    parser.add_argument("--memory", action="store_true", help="measure the memory of workers with much data")
    parser.add_argument("--first-minute", type=int, default=0, metavar="ROUNDS", help="time to the first step")
    parser.add_argument("--first-minute-of", choices=("forked", "served"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.first_minute_of:
        first_minute(options.first_minute_of)
        return
    if options.first_minute:
        compare_first_minutes(options.first_minute)
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    start_workers()
    if options.memory:
        measure_memory(options.megabytes)
    if options.rounds:
        bare = BareProcesses(SLOTS)
        try:
            for name in options.work:
                compare(name, options.rounds, options.trials, options.sides, bare)
        finally:
            bare.end()


if __name__ == "__main__":
    main()
