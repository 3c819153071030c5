"""Regret of simulated searches: its mean over tasks and seeds, how sure that is, and how hpsearch compares.

    python -m studies.benchmarks.regret FILE.json ... [--plot FILE.png]

shows the runs that `studies.benchmarks.simulated --json` has written, for example of one strategy each, together.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .learning_curves import Array, Known
from .strategies import OURS, PEER

_DRAWS = 2000
_LABELS = {OURS: "hpsearch", PEER: "transformers' default\n(TPE, median pruning)"}
# Of a task that was beaten, or nearly so: a logarithm needs something.
_LEAST_TO_DRAW = 1e-2


@dataclass(frozen=True)
class Run:
    """What came of a plan.

    Attributes:
        seen: the best score so far wherever it rose, and the budget until then.
        spent: the budget until its end.
        results: the best score so far of a trial at its end, wherever it rose, and the budget until then.
        trials: how many have begun.
        seconds: of processor time, for choices and curves.
    """

    strategy: str
    task: str
    seed: int
    seen: tuple[tuple[float, float], ...]
    spent: float
    results: tuple[tuple[float, float], ...]
    trials: int
    seconds: float

    def best_at(self, budgets: Sequence[float]) -> Array:
        """Return the best score seen within each of these budgets, -inf where none was; at infinity, the result.

        For what a search has seen of a trial that it did not train to its end is not what it returns.
        """
        return np.where(np.isinf(budgets), self.result_within(math.inf), _best_within(self.seen, budgets))

    def result_within(self, budget: float) -> float:
        """Return the best score of a trial at its end, of those that came there within a budget; -inf without any."""
        return float(_best_within(self.results, [budget])[0])


def _best_within(rises: Sequence[tuple[float, float]], budgets: Sequence[float]) -> Array:
    spent, scores = np.array([(0.0, -np.inf), *rises]).T
    return np.asarray(scores[np.searchsorted(spent, np.asarray(budgets) + 1e-9, side="right") - 1])


@dataclass(frozen=True)
class Estimate:
    """A mean, or a ratio of two, with its 95 % confidence interval; NaN where there is but one run."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{interval}"

    @property
    def mark(self) -> str:
        """For a ratio: + if it is below 1, - if it is above, blank if that is not certain."""
        return "+" if self.high < 1 else "-" if self.low > 1 else " "


class Results:
    """The runs of all strategies at the same tasks and seeds.

    Args:
        runs: one for each strategy, task and seed.
        known: of each task, what regret is measured by.
    """

    def __init__(self, runs: Sequence[Run], known: dict[str, Known]) -> None:
        self.runs, self.known = runs, known
        self.strategies = list(dict.fromkeys(run.strategy for run in runs))

    def of(self, strategy: str) -> list[Run]:
        """Return the runs of a strategy."""
        return [run for run in self.runs if run.strategy == strategy]

    def regret(self, run: Run, budgets: Sequence[float]) -> Array:
        """Return the regret of a run at each budget."""
        return self.known[run.task].regret(run.best_at(budgets), np.isinf(budgets))

    def regrets(self, strategy: str, budgets: Sequence[float]) -> Array:
        """Return the regret at each budget: of each task, or of each seed if there is but one, (n, budgets)."""
        return self._by_task(strategy, lambda run: self.regret(run, budgets))

    def mean_at_cost_of(self, other: str, strategy: str) -> Estimate:
        """Return the mean regret of a strategy's result for what another one has spent at the same task and seed."""
        spent = {(run.task, run.seed): run.spent for run in self.of(other)}

        def regret(run: Run) -> Array:
            result = run.result_within(spent[run.task, run.seed])
            return self.known[run.task].regret(np.array([result]), np.array([True]))

        regrets = self._by_task(strategy, regret)
        return _estimates(regrets.mean(axis=0), _drawn(regrets))[0]

    def _by_task(self, strategy: str, regret: Callable[[Run], Array]) -> Array:
        by_task: dict[str, list[Array]] = {task: [] for task in self.known}
        for run in self.of(strategy):
            by_task[run.task].append(regret(run))
        if len(by_task) == 1:
            return np.array(next(iter(by_task.values())))
        return np.array([np.mean(each, axis=0) for each in by_task.values()])

    def means(self, strategy: str, budgets: Sequence[float]) -> list[Estimate]:
        """Return the mean regret at each budget."""
        regrets = self.regrets(strategy, budgets)
        return _estimates(regrets.mean(axis=0), _drawn(regrets))

    def ratio(self, strategy: str, other: str, budget: float) -> Estimate:
        """Return the mean regret of a strategy over that of another one, both with the same tasks drawn."""
        above, below = (self.regrets(each, [budget]) for each in (strategy, other))
        with np.errstate(divide="ignore", invalid="ignore"):
            return _estimates(above.mean(axis=0) / below.mean(axis=0), _drawn(above) / _drawn(below))[0]

    def difference(self, strategy: str, other: str, budget: float) -> Estimate:
        """Return the mean regret of a strategy less that of another one, both with the same tasks drawn."""
        differences = self.regrets(strategy, [budget]) - self.regrets(other, [budget])
        return _estimates(differences.mean(axis=0), _drawn(differences))[0]

    def best_other(self, budget: float) -> str:
        """Return the strategy, other than ours, with the least mean regret."""
        others = [each for each in self.strategies if each != OURS]
        return min(others, key=lambda each: self.means(each, [budget])[0].value)


def _drawn(regrets: Array) -> Array:
    """Return the means of bootstrap samples of the rows; the same rows each time."""
    if len(regrets) == 1:
        return np.full((_DRAWS, regrets.shape[1]), np.nan)
    rows = np.random.default_rng(0).integers(len(regrets), size=(_DRAWS, len(regrets)))
    return np.asarray(regrets[rows].mean(axis=1))


def _estimates(values: Array, drawn: Array) -> list[Estimate]:
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    return [Estimate(*map(float, each)) for each in zip(values, low, high, strict=True)]


def show(results: Results, budgets: Sequence[float]) -> None:
    """Print the table, and how ours compares."""
    width = max(map(len, [*results.strategies, "hpsearch / best other strategy"])) + 2
    is_compared = OURS in results.strategies and math.inf in budgets
    headings = [*map(_described, budgets), *(["the cost of hpsearch"] if is_compared else [])]
    print(f"{'regret at':<{width}}{''.join(f'{each:>24}' for each in headings)}  trials  runs  CPU s")
    for strategy in results.strategies:
        means = results.means(strategy, budgets) + ([results.mean_at_cost_of(OURS, strategy)] if is_compared else [])
        cells = "".join(f"{each!s:>24}" for each in means)
        runs = results.of(strategy)
        trials, spent, seconds = np.mean([(run.trials, run.spent, run.seconds) for run in runs], axis=0)
        print(f"{strategy:<{width}}{cells}{trials:8.0f}{spent:11.1f}{seconds:7.1f}")
    if OURS in results.strategies and len(results.strategies) > 1:
        best = [results.best_other(budget) for budget in budgets]
        _show_ratios(results, "hpsearch / best other strategy", budgets, best, width)
        if PEER in results.strategies:
            _show_ratios(results, "hpsearch / transformers' default", budgets, [PEER] * len(budgets), width)
        for budget, strategy in zip(budgets, best, strict=True):
            print(f"the best other strategy at {_described(budget)}: {strategy}")
    beaten = sum(run.seen[-1][1] > results.known[run.task].best for run in results.runs if run.seen)
    if beaten:
        print(f"{beaten} of {len(results.runs)} runs found a better score than the best known before")


def _described(budget: float) -> str:
    return "the end" if math.isinf(budget) else f"{budget:g} full runs"


def _show_ratios(results: Results, name: str, budgets: Sequence[float], others: Sequence[str], width: int) -> None:
    pairs = zip(budgets, others, strict=True)
    ratios = [results.ratio(OURS, other, budget) for budget, other in pairs]
    print(f"{name:<{width}}" + "".join(f"{f'{each} {each.mark}':>24}" for each in ratios))


def plot(results: Results, most: float, file: Path) -> None:
    """Draw the regret at each budget, each line named at its end; the confidence interval of hpsearch as a band."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
    except ImportError:
        print("matplotlib is not installed: no plot")
        return
    budgets = np.geomspace(min(1.0, most), most, 80)
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    ends = []
    for place, strategy in enumerate(sorted(results.strategies, key=lambda each: each != OURS)):
        estimates = results.means(strategy, budgets.tolist())
        low, middle, high = (
            np.maximum([getattr(each, name) for each in estimates], _LEAST_TO_DRAW) for name in ("low", "value", "high")
        )
        is_ours = strategy == OURS
        (line,) = axes.plot(budgets, middle, color=f"C{place}", linewidth=3 if is_ours else 1.5, zorder=3 - place)
        if is_ours:
            axes.fill_between(budgets, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        ends.append((float(middle[-1]), _LABELS.get(strategy, strategy), line.get_color()))
    heights = _apart([(end, label.count("\n") + 1) for end, label, _ in sorted(ends)])
    for height, (end, label, color) in zip(heights, sorted(ends), strict=True):
        axes.annotate(
            label,
            (float(budgets[-1]), end),
            (float(budgets[-1]) * 1.05, height),
            color=color,
            va="center",
            annotation_clip=False,
            weight="bold" if label == _LABELS[OURS] else "normal",
        )
    axes.set(xscale="log", yscale="log", xlabel="budget (full training runs)", ylabel="regret (percentage points)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(which="both", alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=110)
    print(f"plot: {file}")


def _apart(labels: Sequence[tuple[float, int]], ratio: float = 1.22) -> list[float]:
    """Return where to write labels, given where they belong and how many lines they have, on a logarithmic axis.

    From below, the middle of each is above that of the one before by at least `ratio` for each line between them.
    """
    placed: list[float] = []
    for (height, lines), (_, lines_below) in zip(labels, [(0.0, 0), *labels], strict=False):
        least = placed[-1] * ratio ** ((lines + lines_below) / 2) if placed else height
        placed.append(max(height, least))
    return placed


def write(results: Results, budgets: Sequence[float], file: Path) -> None:
    """Write all runs, with their regrets at these budgets."""
    runs = [{**asdict(run), "regrets": results.regret(run, budgets).tolist()} for run in results.runs]
    named = [None if math.isinf(budget) else budget for budget in budgets]  # None: the end
    known = {task: each._asdict() for task, each in results.known.items()}
    file.write_text(json.dumps({"budgets": named, "known": known, "runs": runs}))


def read(files: Sequence[Path]) -> tuple[Results, list[float]]:
    """Return the runs of files that `write` has written for the same tasks, and the budgets of the first one."""
    written = [json.loads(file.read_text()) for file in files]
    known = {task: Known(**each) for one in written for task, each in one["known"].items()}
    runs = [_run(**each) for one in written for each in one["runs"]]
    return Results(runs, known), [math.inf if budget is None else budget for budget in written[0]["budgets"]]


def _run(seen: Sequence[Sequence[float]], results: Sequence[Sequence[float]], regrets: object, **others: Any) -> Run:
    rises, ends = ([(spent, score) for spent, score in each] for each in (seen, results))
    return Run(seen=tuple(rises), results=tuple(ends), **others)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Show simulated searches of several files together.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, help="picture to draw, with matplotlib")
    options = parser.parse_args(arguments)
    results, budgets = read(options.files)
    show(results, budgets)
    if options.plot:
        plot(results, max(budget for budget in budgets if not math.isinf(budget)), options.plot)


if __name__ == "__main__":
    main()
