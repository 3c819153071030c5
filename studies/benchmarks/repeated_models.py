"""Whether searches with `repeats` return better parameters: trained again with new seeds, on data no search saw.

    python -m studies.benchmarks.repeated_models --results FILE [--tasks digits sst2 text] [--budgets 10 20]
        [--seeds 0 1 2] [--repeats 3] [--retrain 5] [--data FOLDER]
    python -m studies.benchmarks.repeated_models --results FILE --summary

Both sides are `hyperparameter_search` of hpsearch by real training, with the same budget in full training runs; their
replicas count in it. The sides are

- `once`: as it is by default, so each trial is trained with one seed;
- `repeats`: with `repeats=3`, so the best trials are trained with up to three seeds.

A search trains one trial at a time and has no limit of time, so it is the same on a busy machine. Both sides have the
same seed of the sampler and of training, another one for each search seed, and are the same search up to the first
replica. There is one search for each budget, as its rungs depend on the budget.

The parameters of each `BestRun` are trained again, to completion, by transformers' Trainer, with new seeds that are the
same for all searches. Results are lines of a file; what is in it is not run again, so the command continues after an
interruption, and adds seeds. Begin a new file for another version of the code. Two searches or training runs run at a
time. For each search seed allow 20 minutes for the three tasks, on two cores.

For each task and budget the summary prints

- of each side the median of the test metric over search seeds and new seeds, with its 95 % interval by bootstrap over
  the search seeds (over the new seeds, if there is one search seed);
- in how many search seeds the mean over the new seeds is better for one side, and in how many both returned the same
  parameters;
- the optimism of each side: by how much the objective that its search reports is better than the mean of the same
  metric on the same data over the new seeds; the median over search seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import hpsearch

from .races import DATA, SLOTS, direction_of, quieten
from .real_tasks import TASKS
from .retraining_results import Results, Retraining, Search, median_with_interval
from .returned_models import Folders, is_available, new_seeds, retrain, say, task_of_process

ONCE, REPEATS = "once", "repeats"
SIDES = (ONCE, REPEATS)
# Between the training seeds of two searches, so that they share none; below `FIRST_NEW_SEED`.
_SEEDS_OF_A_SEARCH = 10


def search(folders: Folders, name: str, side: str, seed: int, budget: float, repeats: int) -> Search:
    """Search once."""
    quieten()
    torch.set_num_threads(1)
    task = task_of_process(folders, name)
    with tempfile.TemporaryDirectory() as folder:
        trainer = task.make_trainer(hpsearch, Path(folder), seed=_SEEDS_OF_A_SEARCH * seed)
        best = trainer.hyperparameter_search(
            task.space,
            task.metric,
            direction=direction_of(task.metric),
            budget=budget,
            repeats=repeats if side == REPEATS else 1,
            seed=seed,
            progress=False,
        )
    records = best.run_summary.records
    replicas = sum(each.replica is not None for each in records)
    return Search(
        name,
        side,
        seed,
        budget,
        task.metric,
        best.hyperparameters,
        best.objective,
        len(best.values),
        best.chance_of_best,
        len(records) - replicas,
        replicas,
        sum(each.fraction or 0.0 for each in records),
    )


def measure(results: Results, folders: Folders, options: argparse.Namespace) -> None:
    """Run the searches and training runs that are not in the results yet, all of a seed before those of the next."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(SLOTS, mp_context=spawn) as pool:
        options.tasks = [name for name in options.tasks if is_available(pool, folders, name)]
        for seed in options.seeds:
            searches = [
                (name, side, seed, budget) for name in options.tasks for budget in options.budgets for side in SIDES
            ]
            missing = [each for each in searches if results.search(*each) is None]
            begun = [pool.submit(search, folders, *each, options.repeats) for each in missing]
            for ended in as_completed(begun):
                found = ended.result()
                results.add(found)
                say(
                    f"{found.task}, {found.side}, seed {seed}, budget {found.budget:g}: {found.trials} trials, "
                    f"{found.replicas} replicas, {found.full_runs:.1f} runs; reports {found.reported:.4f}"
                )
            for trained in as_completed(_retrainings_to_run(results, pool, folders, searches, options.retrain)):
                results.add(trained.result())
            say(f"seed {seed}: the returned parameters are trained again")


def _retrainings_to_run(
    results: Results,
    pool: ProcessPoolExecutor,
    folders: Folders,
    searches: Sequence[tuple[str, str, int, float]],
    count: int,
) -> list[Future[Retraining]]:
    returned: list[tuple[str, dict[str, Any]]] = []
    for each in searches:
        found = results.search(*each)
        if found is not None and (found.task, found.params) not in returned:
            returned.append((found.task, found.params))
    return [
        pool.submit(retrain, folders, name, params, seed)
        for name, params in returned
        for seed in new_seeds(count)
        if results.retraining(name, params, seed) is None
    ]


def show(results: Results, options: argparse.Namespace) -> None:
    """Print a line for each task and budget."""
    print(f"{'task':<8}{'budget':<8}" + "".join(f"{side:>28}" for side in SIDES) + "  better search seeds; optimism")
    for name in options.tasks:
        for budget in options.budgets:
            pairs = [_pair(results, name, seed, budget, options.retrain) for seed in options.seeds]
            known = [pair for pair in pairs if pair is not None]
            if known:
                print(f"{name:<8}{budget:<8g}{_line(known)}")


_Judged = tuple[Search, list[Retraining]]


def _pair(results: Results, name: str, seed: int, budget: float, count: int) -> list[_Judged] | None:
    """Return both sides' searches with their training runs; None if one is missing."""
    pair: list[_Judged] = []
    for side in SIDES:
        found = results.search(name, side, seed, budget)
        runs = [] if found is None else [results.retraining(name, found.params, new) for new in new_seeds(count)]
        known = [each for each in runs if each is not None]
        if found is None or len(known) < count:
            return None
        pair.append((found, known))
    return pair


def _line(pairs: Sequence[Sequence[_Judged]]) -> str:
    sign = 1.0 if pairs[0][0][0].metric == "accuracy" else -1.0
    cells, optimism = list[str](), list[str]()
    for of_side in zip(*pairs, strict=True):
        median, low, high = median_with_interval([[each.test for each in runs] for _, runs in of_side])
        cells.append(f"{median:.4f} [{low:.4f}, {high:.4f}]")
        above = [sign * (found.reported - statistics.fmean(each.dev for each in runs)) for found, runs in of_side]
        optimism.append(f"{statistics.median(above):+.4f}")
    means = [[sign * statistics.fmean(each.test for each in runs) for _, runs in pair] for pair in pairs]
    same = sum(once[0].params == repeated[0].params for once, repeated in pairs)
    wins = [sum(means_of[side] > means_of[1 - side] for means_of in means) for side in (0, 1)]
    sides = ", ".join(f"{side} {count}" for side, count in zip(SIDES, wins, strict=True))
    return "".join(f"{cell:>28}" for cell in cells) + f"  {sides}, same parameters {same}; {', '.join(optimism)}"


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="file that results are read from and added to")
    parser.add_argument("--summary", action="store_true", help="print the table only")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--budgets", nargs="+", type=float, default=[10.0, 20.0], help="in full training runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the searches")
    parser.add_argument("--repeats", type=int, default=3, help="the most training runs of a trial")
    parser.add_argument("--retrain", type=int, default=5, help="training runs of each returned configuration")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of sst2 and tinyshakespeare")
    options = parser.parse_args(arguments)
    if min(*options.budgets, options.repeats, options.retrain) < 1:
        parser.error("--budgets, --repeats and --retrain must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    results = Results(options.results)
    if not options.summary:
        measure(results, Folders(options.data, Path("runs")), options)
    show(results, options)


if __name__ == "__main__":
    main()
