"""The number of trials that a budget in full training runs pays for, and what they find, by evaluations of a run.

    python -m studies.benchmarks.number_of_trials [--evaluations 1 2 3 5 10 52] [--budgets 5 10 20 40]
        [--curves lcbench] [--data FOLDER] [--tasks 34] [--half check] [--seeds 4] [--processes 1] [--cache FOLDER]

A search is that of `simulated` with a budget: the default rungs and model choose how many trials begin. A training run
is evaluated this number of times, at equal distances, and judged and paused only there; if it is evaluated at its end
only, every trial runs to completion. Printed are, for each budget, the mean number of trials that began, and the mean
regret of the returned trial after its last epoch with its 95 % interval by bootstrap over tasks; below, the regret of
random parameters, each trained to completion, with the same budget.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .learning_curves import Array, Task
from .regret import Results, Run
from .simulated import CURVES, known_of, mapped, names_of_tasks, quieten, seed_at, simulate, tasks_of
from .strategies import Ours, RandomInFull, Strategy

AT_RANDOM = "random to completion"


class FewEvaluations(Task):
    """A task whose training runs are evaluated a few times, at equal distances, each of which is an epoch here.

    Args:
        task: of which the curves are.
        evaluations: of a training run, the last one at its end.
    """

    def __init__(self, task: Task, evaluations: int) -> None:
        self.name, self.dimensions, self.epochs = task.name, task.dimensions, evaluations
        self.n_configurations, self.known, self._task = task.n_configurations, task.known, task
        self._places = np.ceil(np.arange(1, evaluations + 1) * task.epochs / evaluations - 1e-9).astype(int) - 1

    def curves(self, points: Array) -> Array:
        """Return the scores at the evaluations."""
        return np.asarray(self._task.curves(points)[:, self._places])

    def times(self, points: Array) -> Array:
        """Return the times until the evaluations."""
        return np.asarray(self._task.times(points)[:, self._places])

    def snap(self, point: Array, tried: Sequence[Array]) -> Array:
        """Return the point that the task has for it."""
        return self._task.snap(point, tried)

    def valid(self, points: Array, tried: Sequence[Array]) -> Array:
        """Return the points that the task has for them."""
        return self._task.valid(points, tried)


@dataclass(frozen=True)
class Plan:
    """One search."""

    curves: str
    data: Path | None
    task: str
    seed: int
    evaluations: int | None
    budget: int

    @property
    def side(self) -> str:
        """What is compared: the number of evaluations, or random parameters."""
        return AT_RANDOM if self.evaluations is None else f"{self.evaluations} a run"


def carry_out(plan: Plan) -> Run:
    """Return what comes of a search."""
    quieten()
    task = FewEvaluations(tasks_of(plan.curves, plan.data).task(plan.task), plan.evaluations or 1)
    begin, seed = time.process_time(), seed_at(plan.task, plan.seed)
    if plan.evaluations is None:
        strategy: Strategy = RandomInFull(task, seed, plan.budget)
    elif plan.evaluations == 1:
        strategy = Ours(task, seed, plan.budget)
    else:
        strategy = Ours(task, seed, budget=float(plan.budget))
    searched = simulate(task, strategy, 1, math.inf)
    seconds = time.process_time() - begin
    return Run(plan.side, plan.task, plan.seed, *searched, len(strategy.points), seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evaluations", nargs="+", type=int, default=[1, 2, 3, 5, 10, 52], help="of a training run")
    parser.add_argument("--budgets", nargs="+", type=int, default=[5, 10, 20, 40], help="in full training runs")
    parser.add_argument("--curves", choices=CURVES, default="lcbench")
    parser.add_argument("--data", type=Path, help="folder of the curves; by default beside the project")
    parser.add_argument("--tasks", nargs="+", default=["34"], help="names, also with *, or how many of the first ones")
    parser.add_argument("--half", choices=["fit", "check"], help="of the tasks")
    parser.add_argument("--seeds", type=int, default=4, help="searches of each kind at each task")
    parser.add_argument("--processes", type=int, default=1, help="that simulate")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "hpsearch-simulated"))
    return parser.parse_args()


def main() -> None:
    options = _options()
    quieten()
    names = names_of_tasks(options)
    print(f"{options.curves}: {len(names)} task(s), {options.seeds} seed(s); trials, and regret [95 % interval]")
    print(f"{'evaluations':<22}" + "".join(f"{f'{each} full runs':>32}" for each in options.budgets))
    with mapped(options.processes) as each:
        known = known_of(options.curves, options.data, names, options.cache, each)

        def cell(evaluations: int | None, budget: int) -> str:
            plans = [
                Plan(options.curves, options.data, name, seed, evaluations, budget)
                for name in names
                for seed in range(options.seeds)
            ]
            runs = list(each(carry_out, plans))
            results = Results(runs, known)
            trials = np.mean([run.trials for run in runs])
            return f"{f'{trials:.0f} trials, {results.means(plans[0].side, [math.inf])[0]}':>32}"

        for evaluations in [*options.evaluations, None]:
            side = AT_RANDOM if evaluations is None else str(evaluations)
            print(f"{side:<22}" + "".join(cell(evaluations, budget) for budget in options.budgets), flush=True)


if __name__ == "__main__":
    main()
