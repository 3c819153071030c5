"""How good the models are that searches return: their parameters, trained again with new seeds, on data no search saw.

    python -m studies.benchmarks.returned_models --results FILE [--tasks text digits sst2 lora] [--seeds 0 1 2 3 4]
        [--sides ours peer truncated tpe] [--budgets 30 60 120 300] [--retrain 5] [--data FOLDER] [--pretrained FOLDER]
    python -m studies.benchmarks.returned_models --results FILE --summary

Each side searches the same space by real training, for the longest of the budgets; all training runs of a search have
the same seed. The sides are

- `ours`: `hyperparameter_search` of hpsearch as it is by default, with two workers;
- `peer`: that of transformers with Optuna as it is by default (TPE, median pruner), in series, with a seed;
- `truncated`: Optuna's TPE in a loop written by hand, in two processes; every training run is a quarter as long, with a
  schedule that is as short, and the parameters of the best one are returned;
- `tpe`: the same loop, with every training run to completion.

The parameters that a side returns after each budget follow from its trials up to then. For ours it is the trial with
the best last report, complete or not, which is how a search ends whose `timeout` is over; for the others the best trial
that is complete by then, as their APIs return it. One race serves all budgets since no side acts by how much time it
has left: ours acts by whether there is a `timeout`, not by how long it is. The time to start workers is a part of a
race, that to import modules in the process that searches is not.

The returned parameters are trained again, to completion, by transformers' Trainer, with new seeds that are the same for
all sides. Searches judge trials by their last report (`scope="last"`), so the weights at the end are those that are
judged here. The test set is neither trained on nor seen by any search.

Results are lines of a file. A race or training run that is in the file is not run again, so the command continues after
an interruption, and adds seeds. Begin a new file for another version of the code. Races run one at a time, each in a
process of its own, in an order that rotates; training runs run two at a time, between races. For each search seed and
task allow four times 5 minutes for the races, and 5 to 8 minutes for the training runs. Printed are, for each budget
and side, the median of the test metric over search seeds and new seeds, and its 95 % interval by bootstrap over the
search seeds (over the new seeds, if there is one search seed). Where other programs need the cores, set
OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import adapters
from .races import DATA, OURS, PEER, SLOTS, new_process_for_each, quieten, ready_to_race
from .real_tasks import TASKS, MissingData, Task
from .retraining_results import (
    Race,
    Results,
    Retraining,
    mean_shares,
    median_with_interval,
    returned_at,
    values_on_test_set,
)
from .watched_races import SIDES, last_value

LORA = "lora"
NAMES = ("text", "digits", "sst2", LORA)
BUDGETS = (30.0, 60.0, 120.0, 300.0)
FIRST_NEW_SEED = 1000


@dataclass(frozen=True)
class Folders:
    """Where the data of the tasks are, and where the pre-trained model of LoRA is kept."""

    data: Path
    pretrained: Path

    def make_task(self, name: str) -> Task:
        """Return a task.

        Raises:
            MissingData: its data, or its packages, are not there.
        """
        return adapters.make_lora(self.data, self.pretrained) if name == LORA else TASKS[name](self.data)


def race(folders: Folders, name: str, side: str, seed: int, seconds: float) -> Race:
    """Run one race, in a process that has run none before."""
    task = folders.make_task(name)
    with ready_to_race(task) as folder:
        trials, shares = SIDES[side](task, seconds, folder, seed)
    return Race(name, side, seed, seconds, task.metric, trials, shares)


def retrain(folders: Folders, name: str, params: dict[str, Any], seed: int) -> Retraining:
    """Train once with these parameters, to completion, and evaluate on the test set."""
    quieten()
    torch.set_num_threads(1)
    task = task_of_process(folders, name)
    with tempfile.TemporaryDirectory() as folder:
        trainer = task.make_trainer_with(params, Path(folder), seed=seed)
        trainer.train()
        dev = last_value(trainer, task.metric)
        test = float(trainer.evaluate(task.test)[f"eval_{task.metric}"])
    return Retraining(name, params, seed, dev, test)


@functools.cache
def task_of_process(folders: Folders, name: str) -> Task:
    """Return a task that this process makes once."""
    return folders.make_task(name)


def races_to_run(options: argparse.Namespace, names: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Yield task, side and seed of the races, all of a seed together; the side that begins rotates."""
    for seed in options.seeds:
        turn = seed % len(options.sides)
        for name in names:
            for side in [*options.sides, *options.sides][turn : turn + len(options.sides)]:
                yield name, side, seed


def measure(results: Results, folders: Folders, options: argparse.Namespace) -> None:
    """Run the races and training runs that are not there yet, and say on stderr what came of each."""
    seconds = max(options.budgets)
    spawn = multiprocessing.get_context("spawn")
    with new_process_for_each() as searching, ProcessPoolExecutor(SLOTS, mp_context=spawn) as training:
        names = [name for name in options.tasks if is_available(searching, folders, name)]
        for name, side, seed in races_to_run(options, names):
            run = results.race(name, side, seed, seconds)
            if run is None:
                run = searching.submit(race, folders, name, side, seed, seconds).result()
                results.add(run)
                complete = sum(trial.states[-1][1] == "complete" for trial in run.trials if trial.states)
                say(f"{name}, {side}, seed {seed}: {len(run.trials)} trials in {seconds:g} s, {complete} complete")
            _retrain_returned(results, training, folders, run, options)


def _retrain_returned(
    results: Results, training: ProcessPoolExecutor, folders: Folders, run: Race, options: argparse.Namespace
) -> None:
    returned = [params for params in (returned_at(run, budget) for budget in options.budgets) if params is not None]
    different = [params for place, params in enumerate(returned) if params not in returned[:place]]
    begun = [
        training.submit(retrain, folders, run.task, params, seed)
        for params in different
        for seed in new_seeds(options.retrain)
        if results.retraining(run.task, params, seed) is None
    ]
    for each in begun:
        results.add(each.result())
    if begun:
        say(f"{run.task}, {run.side}, seed {run.seed}: {len(begun)} training runs with {len(different)} configurations")


def new_seeds(count: int) -> list[int]:
    """Return the seeds of the training runs that judge."""
    return list(range(FIRST_NEW_SEED, FIRST_NEW_SEED + count))


def is_available(searching: ProcessPoolExecutor, folders: Folders, name: str) -> bool:
    """Tell whether a task can be made; what it makes once is made, in another process."""
    try:
        searching.submit(_make_and_forget, folders, name).result()
    except MissingData as missing:
        print(f"{name} is left out: {missing}")
        return False
    return True


def _make_and_forget(folders: Folders, name: str) -> None:
    quieten()
    folders.make_task(name)


def say(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def show(results: Results, options: argparse.Namespace) -> None:
    """Print the table of each task, and for the text how ours after 60 s compares with the peer after 300 s."""
    for name in options.tasks:
        of_task = [each for each in results.races if each.task == name and each.seed in options.seeds]
        if not of_task:
            continue
        print(f"\n{name}: {of_task[0].metric} on the test set; median [95 % interval] (search seeds)")
        print(f"{'seconds':<9}" + "".join(f"{side:>34}" for side in options.sides))
        for budget in sorted(options.budgets):
            cells = (_cell(results, of_task, side, budget, options.retrain) for side in options.sides)
            print(f"{budget:<9g}" + "".join(f"{cell:>34}" for cell in cells))
        shares = mean_shares([each for each in of_task if each.side == OURS])
        if shares:
            print("ours, time of its workers: " + ", ".join(f"{use} {share:.1%}" for use, share in shares.items()))
        if name == "text":
            early, late = (_cell(results, of_task, *each, options.retrain) for each in ((OURS, 60.0), (PEER, 300.0)))
            print(f"aim, ours after 60 s as good as transformers' after 300 s: {early} against {late}")


def _cell(results: Results, races: Sequence[Race], side: str, budget: float, retrainings: int) -> str:
    of_side = [each for each in races if each.side == side and each.seconds >= budget]
    values = values_on_test_set(results, of_side, budget, new_seeds(retrainings))
    if not values:
        return "-"
    median, low, high = median_with_interval(values)
    return f"{median:.4f} [{low:.4f}, {high:.4f}] ({len(values)})"


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="file that results are read from and added to")
    parser.add_argument("--summary", action="store_true", help="print the table only")
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], help="of the searches")
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), help="seconds; the most is the race")
    parser.add_argument("--retrain", type=int, default=5, help="training runs of each returned configuration")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of sst2 and tinyshakespeare")
    parser.add_argument("--pretrained", type=Path, default=Path("runs"), help="folder for the model that LoRA adapts")
    options = parser.parse_args(arguments)
    if min(*options.budgets, options.retrain) <= 0:
        parser.error("--budgets and --retrain must be above 0")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    results = Results(options.results)
    if not options.summary:
        measure(results, Folders(options.data, options.pretrained), options)
    show(results, options)


if __name__ == "__main__":
    main()
