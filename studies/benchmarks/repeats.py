"""Whether `repeats` returns better trials than the luckiest run, at the same cost, where the noise of seeds is known.

    python -m studies.benchmarks.repeats [--curves lcbench] [--data FOLDER] [--tasks 34] [--seeds 2]
        [--noise 0.5 1 2] [--budgets 10 20] [--trials 10 20] [--sides luckiest repeats=3 confirm]
        [--processes 1] [--cache FOLDER] [--json FILE]

A search is that of `simulated` with the default rungs and model; replicas are decided by the same code. The score of a
training run is that of its configuration, which is the truth, plus an offset that is normal and the same at all of its
epochs. Its standard deviation is `--noise` times the spread: the standard deviation of the true final scores of the
best ten of 50 random configurations. Each epoch also has an independent noise of a quarter of that. With
`--curves nmt-seeds` the noise is real: each run is one of those that were recorded of its configuration with several
seeds, and the truth is their mean.

The sides are

- `luckiest`: no repeats; the trial with the best value is returned;
- `repeats=2`, `repeats=3`: as in `hyperparameter_search`;
- `confirm`: no repeats for 80 % of the budget; then the best four are confirmed with the rest, up to five runs of each.

With `--budgets` all sides have the same budget in full training runs, replicas included. With `--trials` they have the
same number of trials, so that repeats cost more; `same cost` is the luckiest whose budget is what `repeats=3` has spent
at the same task and seed. Printed are the mean true regret of the returned trial after its last epoch, as in
`simulated`; the difference to the luckiest (with `--trials` also to the one of the same cost) with its 95 % interval by
bootstrap over tasks (with one task: over its seeds), in the unit of the regret and in spreads; and the cost. Below 0 is
better. As it is by default it takes 10 minutes of one core; a budget of 50 takes ten times as long as one of 20.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from .learning_curves import Array, Known, MissingCurves, Task
from .recorded_curves import GridWithSeeds
from .regret import Results, Run
from .simulated import CURVES, Map, chosen, known_of, mapped, quieten, seed_at, simulate, tasks_of
from .strategies import Ours, OursConfirmed

_OF_EACH_EPOCH = 0.25
_RANDOM, _BEST = 50, 10
LUCKIEST, REPEATED, CONFIRMED, SAME_COST = "luckiest", "repeats=3", "confirm", "same cost"
SIDES: dict[str, Callable[..., Ours]] = {
    LUCKIEST: Ours,
    "repeats=2": functools.partial(Ours, repeats=2),
    REPEATED: functools.partial(Ours, repeats=3),
    CONFIRMED: OursConfirmed,
}


class WithNoise(Task):
    """A task whose training runs differ by their seeds; its curves are the true ones.

    Args:
        task: of which the curves are.
        seed: of the search; another one has other noise.
        deviation: draws by how much a run with these parameters differs, (epochs,).
    """

    def __init__(self, task: Task, seed: int, deviation: Callable[[Array, np.random.Generator], Array]) -> None:
        self.name, self.dimensions, self.epochs = task.name, task.dimensions, task.epochs
        self.n_configurations = task.n_configurations
        self._task, self._seed, self._deviation = task, seed, deviation

    def curves(self, points: Array) -> Array:
        """Return the true curves."""
        return self._task.curves(points)

    def run(self, point: Array, offset: int) -> Array:
        """Return the true curve with the noise of a seed."""
        random = np.random.default_rng([self._seed, offset, zlib.crc32(point.tobytes())])
        return np.asarray(self.curves(point[None])[0] + self._deviation(point, random))

    def times(self, points: Array) -> Array:
        """Return the times of the task."""
        return self._task.times(points)

    def snap(self, point: Array, tried: Sequence[Array]) -> Array:
        """Return the point that the task has for it."""
        return self._task.snap(point, tried)

    def valid(self, points: Array, tried: Sequence[Array]) -> Array:
        """Return the points that the task has for them."""
        return self._task.valid(points, tried)


def with_noise(task: Task, noise: float | None, seed: int) -> WithNoise:
    """Return a task with this noise, in spreads; None: with its own."""
    if noise is None:
        assert isinstance(task, GridWithSeeds), "other curves have one seed"
        return WithNoise(task, seed, task.deviation)
    size = noise * spread_of(task)

    def deviation(point: Array, random: np.random.Generator) -> Array:
        whole, each = random.standard_normal(), random.standard_normal(task.epochs)
        return np.asarray(size * (whole + _OF_EACH_EPOCH * each))

    return WithNoise(task, seed, deviation)


@functools.cache
def spread_of(task: Task) -> float:
    """Return the standard deviation of the true final scores of the best of random configurations."""
    scores = task.curves(np.random.default_rng(3).random((_RANDOM, task.dimensions)))[:, -1]
    return float(np.std(np.sort(scores)[-_BEST:], ddof=1))


@dataclass(frozen=True)
class Setting:
    """What the sides are compared with: the noise, and one of two limits."""

    noise: float | None
    budget: float | None = None
    trials: int | None = None

    def __str__(self) -> str:
        noise = "real noise" if self.noise is None else f"noise {self.noise:g}"
        return f"{noise}, {self.trials} trials" if self.budget is None else f"{noise}, budget {self.budget:g}"


@dataclass(frozen=True)
class Plan:
    """The searches of all sides of one task, seed and setting."""

    curves: str
    data: Path | None
    task: str
    seed: int
    setting: Setting
    sides: tuple[str, ...]


def carry_out(plan: Plan) -> list[Run]:
    """Return what each side returns, as the true score of its trial at its end."""
    quieten()
    task = tasks_of(plan.curves, plan.data).task(plan.task)
    search = functools.partial(_search, plan, with_noise(task, plan.setting.noise, seed_at(plan.task, plan.seed)))
    if plan.setting.trials is None:
        return [search(side, budget=plan.setting.budget) for side in plan.sides]
    runs = [search(side, n_trials=plan.setting.trials) for side in plan.sides if SIDES[side] is not OursConfirmed]
    cost = next((run.spent for run in runs if run.strategy == REPEATED), None)
    return runs if cost is None else [*runs, search(SAME_COST, budget=cost)]


def _search(plan: Plan, task: WithNoise, side: str, **limit: float) -> Run:
    begin = time.process_time()
    strategy = SIDES.get(side, Ours)(task, seed_at(plan.task, plan.seed), **limit)
    spent = simulate(task, strategy, 1, math.inf).spent
    returned = strategy.returned
    score = -math.inf if returned is None else float(task.curves(strategy.points[returned][None])[0, -1])
    seconds = time.process_time() - begin
    return Run(side, plan.task, plan.seed, (), spent, ((spent, score),), len(strategy.points), seconds)


@dataclass(frozen=True)
class Table:
    """The searches of a setting.

    Attributes:
        known: of each task, what regret is measured by.
        spreads: of the tasks.
    """

    setting: Setting
    known: dict[str, Known]
    spreads: dict[str, float]
    runs: list[Run] = field(default_factory=list)

    def show(self) -> None:
        """Print a line for each side."""
        in_units = Results(self.runs, self.known)
        in_spreads = Results(self.runs, {task: self._in_spreads(task) for task in self.known})
        others = [each for each in (LUCKIEST, SAME_COST) if each in in_units.strategies]
        headings = "".join(f"{f'less that of {each}':>26}{'in spreads':>24}" for each in others)
        print(f"\n{self.setting!s:<24}{'regret':>24}{headings}{'full runs':>11}{'trained':>9}{'CPU s':>7}")
        for side in in_units.strategies:
            cells = [f"{in_units.means(side, [math.inf])[0]!s:>24}"]
            for other in others:
                for results, width in ((in_units, 26), (in_spreads, 24)):
                    told = "" if other == side else str(results.difference(side, other, math.inf))
                    cells.append(f"{told:>{width}}")
            of_side = in_units.of(side)
            spent, trained, seconds = np.mean([(run.spent, run.trials, run.seconds) for run in of_side], axis=0)
            print(f"{side:<24}{''.join(cells)}{spent:11.1f}{trained:9.1f}{seconds:7.2f}", flush=True)

    def _in_spreads(self, task: str) -> Known:
        best, spread = self.known[task].best_at_end, self.spreads[task]
        return Known(best, best, without=best - 100 * spread, is_relative=True)


def compare(options: argparse.Namespace, names: Sequence[str], each: Map) -> Iterator[Table]:
    """Yield a table for each setting."""
    known = known_of(options.curves, options.data, names, options.cache, each)
    spreads = {name: spread_of(tasks_of(options.curves, options.data).task(name)) for name in names}
    noises = [None] if options.curves == "nmt-seeds" else options.noise
    settings = [Setting(noise, budget=budget) for noise in noises for budget in options.budgets]
    settings += [Setting(noise, trials=trials) for noise in noises for trials in options.trials]
    for setting in settings:
        plans = [
            Plan(options.curves, options.data, name, seed, setting, tuple(options.sides))
            for name in names
            for seed in range(options.seeds)
        ]
        yield Table(setting, known, spreads, list(itertools.chain.from_iterable(each(carry_out, plans))))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", choices=CURVES, default="lcbench")
    parser.add_argument("--data", type=Path, help="folder of the curves; by default beside the project")
    parser.add_argument("--tasks", nargs="+", default=["34"], help="names, also with *, or how many of the first ones")
    parser.add_argument("--seeds", type=int, default=2, help="searches of each side at each task")
    parser.add_argument("--noise", nargs="+", type=float, default=[0.5, 1, 2], help="between seeds, in spreads")
    parser.add_argument("--budgets", nargs="*", type=float, default=[10, 20], help="in full training runs")
    parser.add_argument("--trials", nargs="*", type=int, default=[10, 20])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[LUCKIEST, REPEATED, CONFIRMED])
    parser.add_argument("--processes", type=int, default=1, help="that simulate")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "hpsearch-simulated"))
    parser.add_argument("--json", type=Path, help="file for all runs")
    return parser.parse_args()


def main() -> None:
    options, tables = _options(), list[Table]()
    quieten()
    try:
        names = chosen(options.tasks, tasks_of(options.curves, options.data).names)
    except MissingCurves as error:
        sys.exit(str(error))
    print(f"{options.curves}: {len(names)} task(s), {options.seeds} seed(s); means [95 % intervals], below 0 is better")
    with mapped(options.processes) as each:
        for table in compare(options, names, each):
            table.show()
            tables.append(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(table) for table in tables]))


if __name__ == "__main__":
    main()
