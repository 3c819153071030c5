"""How good a search is for what it costs: ours and others, on learning curves that are looked up in place of training.

    python -m studies.benchmarks.simulated [--tasks 34] [--seeds 10] [--workers 1] [--budgets 5 10 20 60]
        [--trials 50] [--curves lcbench] [--half fit] [--clock epochs] [--data FOLDER]
        [--strategies ours "random to completion"] [--processes 1] [--cache FOLDER] [--plot FILE.png] [--json FILE]

Ours is the search code of this project: its rungs decide which trials pause and resume, its model of learning curves
chooses parameters. An epoch takes a unit of simulated time, for all trials and strategies, or with `--clock seconds`
the time that it takes with its parameters; whoever is free asks for the next job. To choose, to save and to load takes
no time. With `--curves lcbench+lengths` the length of the training is one more parameter, with `lcbench+many` there are
twenty, of which most do nothing; `taskset` and `nmt` are curves of real training runs. `--half fit` takes every other
task, by name, and `--half check` the others, so that what is chosen on some tasks can be checked on others.

Measured is regret: the best score known for the task, less the best one seen so far, at any epoch of any trial. For
accuracies it is in points of percent, for losses see `recorded_curves`. Budgets are in full training runs, such as
the 52 epochs of LCBench, of all workers together. With `--trials` each search has this number of trials and is
simulated to its end. There the regret is that of the trial which a search returns, the best of the complete ones, after
its last epoch; beside it is the regret of what the others would return at the cost of ours. Of each strategy the mean
over all tasks and seeds is printed, with a 95 % confidence interval by bootstrap over tasks, since the seeds of a task
are alike (with one task: over its seeds). Each task has separate seeds: with the same first trials at all tasks, all
would have the same luck, which the interval could not show. Then the regret of hpsearch is divided by that of the best
other strategy by these very means, and by that of transformers' default: TPE with median pruning. A ratio is marked +
if its whole interval is below 1, and - if it is above.

The best score known is that of the table, or of a long search of each task alone, which is kept in `--cache`.
Set OMP_NUM_THREADS=1 with several processes.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import heapq
import itertools
import math
import multiprocessing
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna

from hpsearch.search.decisions.ladder import TOO_FEW
from hpsearch.system.files import read_json, write_json

from .learning_curves import (
    Array,
    Known,
    LCBench,
    ManyParameters,
    MissingCurves,
    SeveralLengths,
    SyntheticTasks,
    Task,
    Tasks,
    best_known,
)
from .recorded_curves import TaskSet, Translation, TranslationWithSeeds
from .regret import Results, Run, plot, show, write
from .strategies import ALL_STRATEGIES, NO_END, STRATEGIES, Strategy

CURVES = ["lcbench", "lcbench+lengths", "lcbench+many", "synthetic", "synthetic+lengths", "synthetic+many"]
CURVES += ["taskset", "nmt", "nmt-seeds"]
_HALVES = ["fit", "check"]
# Random training runs, of which the mean time is that of one.
_TO_TIME = 300
_SHARED = Path(__file__).parents[3] / "shared" / "data"
DATA = {"lcbench": _SHARED / "lcbench"} | dict.fromkeys(["taskset", "nmt", "nmt-seeds"], _SHARED / "curves")


@dataclass(frozen=True)
class Plan:
    """One run that is to be simulated."""

    curves: str
    data: Path | None
    strategy: str
    task: str
    seed: int
    workers: int
    budget: float
    clock: str
    trials: int = NO_END


class Searched(NamedTuple):
    """What came of a search.

    Attributes:
        seen: the best score so far wherever it rose, and the budget until then.
        spent: the budget until its end.
        results: the best score so far of a trial at its end, wherever it rose, and the budget until then.
    """

    seen: tuple[tuple[float, float], ...]
    spent: float
    results: tuple[tuple[float, float], ...]


@functools.cache
def tasks_of(curves: str, data: Path | None = None) -> Tasks:
    """Return the tasks, which each process reads once; from the folder beside the project if none is given."""
    kind, _, change = curves.partition("+")
    tasks = _READERS[kind](data or DATA[kind]) if kind in _READERS else SyntheticTasks()
    return _CHANGES[change](tasks) if change else tasks


_CHANGES: dict[str, Callable[[Tasks], Tasks]] = {"lengths": SeveralLengths, "many": ManyParameters}
_READERS: dict[str, Callable[[Path], Tasks]] = {
    "lcbench": LCBench,
    "taskset": TaskSet,
    "nmt": Translation,
    "nmt-seeds": TranslationWithSeeds,
}


def half_of(names: Sequence[str], half: str) -> tuple[str, ...]:
    """Return every other task, by name: of `fit` the first one, the third, and so on, of `check` the others."""
    return tuple(sorted(names)[_HALVES.index(half) :: 2])


def simulate(task: Task, strategy: Strategy, workers: int, budget: float, clock: str = "epochs") -> Searched:
    """Return what comes of a search.

    Args:
        task: what is searched.
        strategy: that searches it; new.
        workers: how many train at a time.
        budget: in full training runs, of mean time; infinite if the strategy itself comes to an end.
        clock: `epochs`, of which each takes as long as any other, or `seconds`.
    """
    times_of = clock_of(task, clock)
    end = budget * task.epochs / workers
    now, idle = 0.0, workers
    order = itertools.count()
    busy: list[tuple[float, int, int, int]] = []
    curves: list[Array] = []
    times: list[Array] = []  # from the beginning of each training on
    seen: list[tuple[float, float]] = []
    results: list[tuple[float, float]] = []
    while True:
        while idle and (job := strategy.next()) is not None:
            for trial in range(len(curves), len(strategy.points)):
                point = strategy.points[trial]
                curves.append(task.run(point, strategy.seed_offset(trial)))
                times.append(np.append(0.0, times_of(point[None])[0]))
            until = now + times[job.trial] - times[job.trial][job.begin]
            seen += [(until[epoch], curves[job.trial][epoch - 1]) for epoch in range(job.begin + 1, job.end + 1)]
            heapq.heappush(busy, (until[job.end], next(order), job.trial, job.end))
            idle -= 1
        if not busy or busy[0][0] > end:
            unit = workers / task.epochs
            rises, results_rise = (
                _rises((moment * unit, score) for moment, score in sorted(each) if moment <= end)
                for each in (seen, results)
            )
            return Searched(rises, (end if busy else now) * unit, results_rise)
        now, _, trial, epoch = heapq.heappop(busy)
        idle += 1
        if epoch == task.length(strategy.points[trial]):
            results.append((now, float(curves[trial][epoch - 1])))
        strategy.told(trial, curves[trial][:epoch], float(times[trial][epoch]))


def clock_of(task: Task, clock: str) -> Callable[[Array], Array]:
    """Return what gives the times of a task, in mean epochs."""
    if clock == "epochs":
        return lambda points: np.tile(np.arange(1.0, task.epochs + 1), (len(points), 1))
    points = np.random.default_rng(2).random((_TO_TIME, task.dimensions))
    unit = task.times(points)[:, -1].mean() / task.epochs
    return lambda points: task.times(points) / unit


def _rises(seen: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    best = -np.inf
    found: list[tuple[float, float]] = []
    for spent, score in seen:
        if score > best:
            best = score
            found.append((spent, float(score)))
    return tuple(found)


def carry_out(plan: Plan) -> Run:
    """Return what comes of a plan."""
    quieten()
    task = tasks_of(plan.curves, plan.data).task(plan.task)
    begin = time.process_time()
    strategy = ALL_STRATEGIES[plan.strategy](task, seed_at(plan.task, plan.seed), plan.trials)
    searched = simulate(task, strategy, plan.workers, plan.budget, plan.clock)
    seconds = time.process_time() - begin
    return Run(plan.strategy, plan.task, plan.seed, *searched, len(strategy.points), seconds)


def seed_at(task: str, seed: int) -> int:
    """Return the seed of a search of a task: searches of different tasks draw different random numbers.

    >>> seed_at("adult", 0), seed_at("adult", 1), seed_at("albert", 0)
    (362886333, 1655047211, 369533308)
    """
    return zlib.crc32(f"{task}|{seed}".encode()) % 2**31


def quieten() -> None:
    """Leave out warnings that say nothing here."""
    warnings.filterwarnings("ignore", "All-NaN slice")  # the median of trials that have diverged
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


def _find_best(curves: str, data: Path | None, name: str) -> float:
    return best_known(tasks_of(curves, data).task(name))


# `map`, in this process or in several.
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


def known_of(curves: str, data: Path | None, names: Sequence[str], folder: Path, each: Map) -> dict[str, Known]:
    """Return what the regret of the tasks is measured by, from the folder as far as it has to be searched for.

    What is kept is for the very curves it was found with: they are known by one of them.
    """
    tasks = {name: tasks_of(curves, data).task(name) for name in names}
    known = {name: task.known for name, task in tasks.items() if task.known}
    file = folder / "best_known.json"
    kept: dict[str, float] = read_json(file) or {}
    keys = {name: _key(task) for name, task in tasks.items() if name not in known}
    missing = {key: name for name, key in keys.items() if key not in kept}
    for key, best in zip(missing, each(functools.partial(_find_best, curves, data), missing.values()), strict=True):
        kept[key] = best
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, kept)
    return {name: known.get(name) or Known(kept[keys[name]], kept[keys[name]]) for name in names}


def _key(task: Task) -> str:
    return f"{task.name} {task.curves(np.full((1, task.dimensions), 0.5))[0, -1]:.3f}"


def chosen(asked: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the tasks of these names, of which `*` is any part, or this number of the first ones.

    Raises:
        MissingCurves: there is no such task.
    """
    if len(asked) == 1 and asked[0] not in names and asked[0].isdigit() and int(asked[0]) > 0:
        return list(names[: int(asked[0])])
    found = {each: fnmatch.filter(names, each) for each in asked}
    unknown = [each for each in asked if not found[each]]
    if unknown:
        raise MissingCurves(f"There is no task {', '.join(unknown)}; there are {', '.join(names)}.")
    return list(dict.fromkeys(itertools.chain.from_iterable(found.values())))


def search_all(options: argparse.Namespace, names: Sequence[str], each: Map) -> Results:
    """Return the runs of all strategies, and tell on stderr how far they are."""
    known = known_of(options.curves, options.data, names, options.cache, each)
    most, trials = max(options.budgets), options.trials
    plans = [
        Plan(options.curves, options.data, strategy, task, seed, options.workers, most, options.clock, trials)
        for strategy in options.strategies
        for task in names
        for seed in range(options.seeds)
    ]
    runs: list[Run] = []
    begin = time.perf_counter()
    for run in each(carry_out, plans):
        runs.append(run)
        if len(runs) % (len(names) * options.seeds) == 0:
            print(f"{run.strategy}: done after {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    return Results(runs, known)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["34"], help="names, also with *, or how many of the first ones")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each strategy at each task")
    parser.add_argument("--workers", type=int, default=1, help="that train at a time, in simulated time")
    parser.add_argument("--budgets", nargs="+", type=float, default=[5, 10, 20, 60], help="in full training runs")
    parser.add_argument("--trials", type=int, default=NO_END, help="of each search, simulated to its end")
    parser.add_argument("--curves", choices=CURVES, default="lcbench")
    parser.add_argument("--half", choices=_HALVES, help="of the tasks")
    parser.add_argument("--clock", choices=["epochs", "seconds"], default="epochs", help="what the budget is made of")
    parser.add_argument("--data", type=Path, help="folder of the curves; by default beside the project")
    parser.add_argument("--strategies", nargs="+", choices=ALL_STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--processes", type=int, default=1, help="that simulate")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "hpsearch-simulated"))
    parser.add_argument("--plot", type=Path, help="picture to draw, with matplotlib")
    parser.add_argument("--json", type=Path, help="file for all runs")
    options = parser.parse_args()
    if options.trials <= TOO_FEW:
        parser.error(f"--trials must be above {TOO_FEW}: shorter searches have no rungs")
    for name in ("seeds", "workers", "processes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be 1 at least")
    if min(options.budgets) <= 0 or math.inf in options.budgets:
        parser.error("--budgets must be finite, and above 0")
    if options.trials < NO_END:
        options.budgets.append(math.inf)
    return options


@contextlib.contextmanager
def mapped(processes: int) -> Iterator[Map]:
    """Yield what carries out plans, in their order, in this number of processes."""
    if processes == 1:
        yield map
        return
    pool: Pool
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield pool.imap


def names_of_tasks(options: argparse.Namespace) -> list[str]:
    """Return the tasks that the options choose; without their curves, end the program with a line that says so."""
    try:
        names = tasks_of(options.curves, options.data).names
        return chosen(options.tasks, half_of(names, options.half) if options.half else names)
    except MissingCurves as error:
        sys.exit(str(error))


def main() -> None:
    options = _options()
    quieten()
    names = names_of_tasks(options)
    with mapped(options.processes) as each:
        results = search_all(options, names, each)
    workers = "1 worker" if options.workers == 1 else f"{options.workers} workers"
    half = f", half {options.half}" if options.half else ""
    print(f"{options.curves}{half}: {len(names)} task(s), {options.seeds} seed(s), {workers}; means [95 % intervals]")
    show(results, options.budgets)
    if options.plot:
        plot(results, max(run.spent for run in results.runs), options.plot)
    if options.json:
        write(results, options.budgets, options.json)


if __name__ == "__main__":
    main()
