"""How long real searches take until they are near the best: ours, transformers' own, and two that are made by hand.

    python -m studies.benchmarks.time_to_best [--tasks digits sst2 text] [--seeds 5] [--seconds 60]
        [--reference-seconds 240] [--data FOLDER] [--json FILE]

Each side searches the same space by real training, for a limited time, ours with two workers. What it sees, at any
evaluation, is noted with the time since its search began; to start workers is a part of that, to import modules in
the process that searches is not. A side has arrived when it sees a value within 0.5 points of accuracy, or 0.5 % of the
loss, of the best one of all: those of all races, and of a longer search of ours with another seed. One that does not
arrive in time counts as `>60`. Also printed is when each side was as good as the peer was when its time was over.

A seed is that of a search. All training runs have the same one: else the best of all is what had most luck, and nobody
who trains with another seed comes near it, whatever the parameters.

Races run one at a time, each in a process of its own, interleaved seed by seed in an order that rotates; a side's time
is divided by that of ours with the same seed. Printed are medians and, in brackets, quartiles over the seeds. Where
other programs need the cores, set OMP_NUM_THREADS=1: else transformers' runs wait for their threads all the time.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from .races import (
    DATA,
    OURS,
    PEER,
    TRIALS,
    Record,
    best_of,
    new_process_for_each,
    ours,
    peer,
    quieten,
    ready_to_race,
    search,
)
from .real_tasks import TASKS, MissingData, Task

REFERENCE_SEED = 1000


@dataclass(frozen=True)
class Between:
    """A number of which is known that it is one of these or lies between them."""

    low: float
    high: float

    def __truediv__(self, other: Between) -> Between:
        return Between(self.low / other.high, self.high / other.low)

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.low:.3g}"
        if self.high < math.inf:
            return f"<{self.high:.3g}" if self.low == 0 else f"{self.low:.3g}..{self.high:.3g}"
        return f">{self.low:.3g}" if self.low > 0 else "?"


def quartiles(numbers: Sequence[Between]) -> list[Between]:
    """Return the quartiles, the median in the middle; each is known as well as its neighbours in order are."""
    lows, highs = sorted(each.low for each in numbers), sorted(each.high for each in numbers)
    places = [round(share * (len(numbers) - 1)) for share in (0.25, 0.5, 0.75)]
    return [Between(lows[place], highs[place]) for place in places]


def is_near(metric: str, value: float, best: float) -> bool:
    """Tell whether a value is as good as the best one, or almost."""
    return value >= best - 0.005 if metric == "accuracy" else value <= best * 1.005


@dataclass(frozen=True)
class Race:
    """What came of a search.

    Attributes:
        trials: how many have begun.
        rises: the best value so far wherever it rose, with the seconds until then.
    """

    side: str
    seed: int
    seconds: float
    trials: int
    rises: Sequence[tuple[float, float]]

    def time_to(self, metric: str, best: float) -> Between:
        """Return the seconds until it was near the best; if it never was, that they are more than it had."""
        return self._first(lambda value: is_near(metric, value, best))

    def time_to_reach(self, metric: str, other: Race) -> Between:
        """Return the seconds until it was as good as another one was in the end."""
        reached = other.best(metric)
        return self._first(lambda value: best_of(metric, [value, reached]) == value)

    def _first(self, is_reached: Callable[[float], bool]) -> Between:
        moment = next((moment for moment, value in self.rises if is_reached(value)), None)
        return Between(self.seconds, math.inf) if moment is None else Between(moment, moment)

    def best(self, metric: str) -> float:
        """Return the best value it has seen."""
        return best_of(metric, [value for _, value in self.rises])


def train_in_full(task: Task, record: Record, folder: Path, seed: int, chosen: list[dict[str, Any]]) -> None:
    """Train with each of these parameters, while there is time."""
    if chosen:
        name = f"full {seed}"
        search(task, record, folder, seed, study_name=name, pruner=None, start_with=chosen, n_trials=len(chosen))


def truncated(task: Task, record: Record, folder: Path, seed: int) -> None:
    """Search for half of the time with training runs of a third of the length; then train the best to completion."""
    short = dataclasses.replace(task, epochs=task.epochs // 3)
    found = search(short, record, folder, seed, pruner=None, n_trials=TRIALS, timeout=record.seconds / 2)
    train_in_full(task, record, folder, seed, found[:1])


def one_epoch(task: Task, record: Record, folder: Path, seed: int) -> None:
    """Train 36 at random for one epoch and the best four of them to completion, again and again."""
    short = dataclasses.replace(task, epochs=1)
    for turn in itertools.count(100 * seed):
        if record.left <= 0:
            return
        options = {"study_name": f"short {turn}", "sampler": optuna.samplers.RandomSampler(seed=turn)}
        found = search(short, record, folder, turn, pruner=None, n_trials=36, **options)
        train_in_full(task, record, folder, turn, found[:4])


SIDES: dict[str, Callable[..., None]] = {
    OURS: ours,
    PEER: peer,
    "truncated": truncated,
    "one epoch, then the top 4": one_epoch,
}


@dataclass(frozen=True)
class Plan:
    """A race that is to be run."""

    task: str
    data: Path
    side: str
    seed: int
    seconds: float

    def carry_out(self) -> Race:
        """Run it, in a process that has run none before."""
        task = TASKS[self.task](self.data)
        with ready_to_race(task) as folder:
            record = Record(task.metric, self.seconds)
            SIDES[self.side](task, record, folder, self.seed)
        return Race(self.side, self.seed, self.seconds, record.trials, record.rises)


def plans_of(name: str, options: argparse.Namespace) -> Iterator[Plan]:
    """Yield the races of a task; the first one is the longer search."""
    yield Plan(name, options.data, OURS, REFERENCE_SEED, options.reference_seconds)
    for seed in range(options.seeds):
        turn = seed % len(SIDES)
        for side in [*SIDES, *SIDES][turn : turn + len(SIDES)]:
            yield Plan(name, options.data, side, seed, options.seconds)


def run(plans: Iterator[Plan]) -> list[Race]:
    """Run races one after the other, and tell on stderr what came of each."""
    races: list[Race] = []
    with new_process_for_each() as processes:
        for plan in plans:
            race = processes.submit(plan.carry_out).result()
            races.append(race)
            seen = "{1:.4f} after {0:.1f} s".format(*race.rises[-1]) if race.rises else "nothing"
            told = f"{plan.task}, seed {plan.seed}, {plan.side}: {seen} in {plan.seconds:g} s, {race.trials} trials"
            print(told, file=sys.stderr, flush=True)
    return races


def show(name: str, metric: str, races: Sequence[Race], best: float) -> None:
    """Print when each side arrived, and how ours compares."""
    times: dict[str, list[Between]] = {}
    print(f"{name}: the best {metric} is {best:.4f}; {races[0].seconds:g} s for each race")
    print(
        f"{'':<27}{'seconds until near it':>26}{'arrived':>9}{'best at the end':>17}{'trials':>8}{'over ours':>26}"
        f"{'until as good as the peer':>29}"
    )
    sides = {side: sorted((race for race in races if race.side == side), key=lambda race: race.seed) for side in SIDES}
    for side, of_side in sides.items():
        reached = [race.time_to_reach(metric, peers) for race, peers in zip(of_side, sides[PEER], strict=True)]
        times[side] = [race.time_to(metric, best) for race in of_side]
        ratios = [mine / one for mine, one in zip(times[side], times[OURS], strict=True)]
        arrived = f"{sum(each.high < math.inf for each in times[side])}/{len(of_side)}"
        end = statistics.median(race.best(metric) for race in of_side)
        trials = statistics.median(race.trials for race in of_side)
        print(
            f"{side:<27}{_shown(times[side]):>26}{arrived:>9}{end:17.4f}{trials:8.0f}"
            f"{'' if side == OURS else _shown(ratios):>26}{_shown(reached):>29}",
            flush=True,
        )


def _shown(numbers: Sequence[Between]) -> str:
    low, middle, high = quartiles(numbers)
    return f"{middle} [{low}, {high}]"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5, help="races of each side at each task")
    parser.add_argument("--seconds", type=float, default=60, help="of each race")
    parser.add_argument("--reference-seconds", type=float, default=240, help="of the longer search of each task")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of sst2 and tinyshakespeare")
    parser.add_argument("--json", type=Path, help="file for all races")
    options = parser.parse_args()
    if min(options.seeds, options.seconds, options.reference_seconds) <= 0:
        parser.error("--seeds, --seconds and --reference-seconds must be above 0")
    return options


def main() -> None:
    options = _options()
    quieten()
    written: dict[str, Any] = {}
    for name in options.tasks:
        try:
            metric = TASKS[name](options.data).metric
        except MissingData as missing:
            print(f"{name} is left out: {missing}")
            continue
        longer, *races = run(plans_of(name, options))
        best = best_of(metric, [race.best(metric) for race in (longer, *races)])
        show(name, metric, races, best)
        found = {"longer": dataclasses.asdict(longer), "races": [dataclasses.asdict(race) for race in races]}
        written[name] = {"metric": metric, "best": best, **found}
        if options.json:
            options.json.write_text(json.dumps(written))


if __name__ == "__main__":
    main()
