"""How well the live view tells the time left of a search.

    python -m studies.benchmarks.time_left [--curves lcbench] [--data FOLDER] [--seeds 10] [--searches rungs ...]
    python -m studies.benchmarks.time_left --real

Each search is simulated in virtual time: what it decides is the search code of this project, and its trials are
learning curves that are looked up. Its events go to the very object that the live view asks, with the moments at which
they happen. Trials differ in how long an epoch takes, as their parameters say; each start or resumption takes the time
of a few steps more, and the first step of all takes longer, as a compilation does.

Measured is the error of the time left, relative to the true one, at each hundredth of the search from a quarter of it
until 95 %. Of all seeds and moments, the median, the 90 % quantile and the worst are printed, and the fraction within
30 %; then the median of the search with the largest one, the median of the signed error, and the fraction that is too
low by more than 10 %. With median pruning, the view says "at most", as the trials that it will end are not known.

With `--real`, `studies.digits` is searched a few times in place of that. The clock is the CPU time of this process, so
that what else the machine does is left out; the live view has the time of day.
"""

from __future__ import annotations

import argparse
import heapq
import io
import itertools
import math
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hpsearch.reports.line_view import LineView
from hpsearch.reports.search_progress import SearchProgress
from hpsearch.search.space.parameters import Float
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.study import Study
from hpsearch.search.trial import Trial
from hpsearch.search.trial_record import Report, TrialRecord, TrialState
from studies import digits

from .learning_curves import MissingCurves, Task
from .simulated import CURVES, clock_of, quieten, tasks_of
from .strategies import NO_END, OBJECTIVES, Ours, OursInFull, TPEMedianPruning

_FROM, _UNTIL = 0.25, 0.95
_WITHIN = 0.3
SPACE = SearchSpace({"x": Float(0, 1)})
# Below the true time by more than this, it is too low, which "at most" must never be.
_TOO_LOW = -0.1
HEADING = (
    f"{'search':30}{'median':>8}{'90 %':>8}{'worst':>8}{'within 30 %':>13}{'worst search':>14}{'bias':>8}{'too low':>9}"
)


# In mean epochs: what a trial takes to start or resume, and what the first step of all takes more.
_TO_START, _TO_COMPILE = 0.3, 3.0
_BETWEEN_LOOKS = 2.0


class MedianPruning(TPEMedianPruning):
    """TPE with median pruning, with the records that a search would have."""

    ladder = None

    def __init__(self, task: Task, seed: int, n_trials: int = NO_END) -> None:
        super().__init__(task, seed, n_trials)
        self.records: list[TrialRecord] = []

    def told(self, trial: int, scores: Any, elapsed: float) -> None:
        """Note the epoch before the pruner is asked."""
        if trial == len(self.records):
            self.records.append(TrialRecord(trial, f"run-{trial}", TrialState.RUNNING, {}))
        report = Report((float(scores[-1]),), len(scores), len(scores), len(scores), {}, horizon=self._length(trial))
        self.records[trial] = replace(self.records[trial], reports=(report,), epochs=len(scores))
        super().told(trial, scores, elapsed)

    def _tell(self, trial: int, score: float | None) -> None:
        super()._tell(trial, score)
        state = TrialState.PRUNED if score is None else TrialState.COMPLETE
        self.records[trial] = replace(self.records[trial], state=state)


@dataclass(frozen=True)
class Kind:
    """A kind of search.

    Attributes:
        strategy: that searches.
        trials: how many there are to be; None: as many as the budget pays for.
        budget: in full training runs; None: no limit.
        workers: that train at a time.
        spread: of the speeds of trials; 0: all are equally fast, 1: as LCBench measured them.
    """

    strategy: Callable[..., Any]
    trials: int | None = 30
    budget: float | None = None
    workers: int = 1
    spread: float = 0.0


KINDS = {
    "rungs": Kind(Ours),
    "rungs, 100 trials": Kind(Ours, trials=100),
    "rungs, speeds within 3": Kind(Ours, spread=0.5),
    "rungs, speeds within 9": Kind(Ours, spread=1.0),
    "rungs, 4 workers": Kind(Ours, trials=60, workers=4),
    "rungs, 4 workers, within 3": Kind(Ours, trials=60, workers=4, spread=0.5),
    "budget of 10": Kind(Ours, trials=None, budget=10.0),
    "budget of 20, 4 workers": Kind(Ours, trials=None, budget=20.0, workers=4),
    "to completion, within 3": Kind(OursInFull, trials=20, spread=0.5),
    "to completion, 4 workers": Kind(OursInFull, trials=30, workers=4),
    "median pruning": Kind(MedianPruning),
}


@dataclass
class _Job:
    """A trial at a worker: when its epochs end, in virtual time, and how many there are in its whole run."""

    trial: int
    begin: int
    end: int
    ends: Any  # of each epoch of the job; the first is the moment of its first step

    def at(self, now: float) -> float:
        """Return the epochs that are trained at a moment."""
        return float(np.interp(now, self.ends, np.arange(self.begin, self.end + 1)))


def estimates(task: Task, kind: Kind, seed: int) -> tuple[list[tuple[float, float | None]], float]:
    """Return the time left that the live view tells, by moment, and the moment at which the search ends."""
    trials = NO_END if kind.trials is None else kind.trials
    limits = {} if kind.budget is None else {"budget": kind.budget}
    strategy = kind.strategy(task, seed, trials, **limits)
    study = Study("simulated", Path("simulated"), SPACE, OBJECTIVES, kind.trials, budget=kind.budget)
    progress = SearchProgress(study, strategy.ladder, 0.0, may_prune=isinstance(strategy, MedianPruning))
    times_of = speeds(task, kind.spread)
    busy: list[tuple[float, int, _Job]] = []
    order, told = itertools.count(), list[tuple[float, float | None]]()
    now, idle, look = 0.0, kind.workers, _BETWEEN_LOOKS
    running: set[int] = set()
    compiling = _TO_COMPILE
    while True:
        while idle and (job := strategy.next()) is not None:
            times = np.append(0.0, times_of(strategy.points[job.trial][None])[0])
            begin = now
            if job.trial not in running:
                running.add(job.trial)
                length = task.length(strategy.points[job.trial])
                progress.start(job.trial, job.begin / length, now)
                begin += _TO_START + compiling
                compiling = 0.0
            ends = begin + times[job.begin : job.end + 1] - times[job.begin]
            heapq.heappush(busy, (float(ends[-1]), next(order), _Job(job.trial, job.begin, job.end, ends)))
            idle -= 1
        if not busy:
            return told, now
        while look < busy[0][0]:
            for _, _, each in busy:
                progress.step(each.trial, each.at(look) / task.length(strategy.points[each.trial]), look)
            told.append((look, progress.estimate(look).seconds_left))
            look += _BETWEEN_LOOKS
        now, _, ended = heapq.heappop(busy)
        idle += 1
        point = strategy.points[ended.trial]
        curve = task.run(point, strategy.seed_offset(ended.trial))
        strategy.told(ended.trial, curve[: ended.end], float(times_of(point[None])[0][ended.end - 1]))
        record = strategy.records[ended.trial]
        progress.take_records({each.number: each for each in strategy.records if each.number not in running})
        if record.state is not TrialState.RUNNING:
            running.discard(ended.trial)
            progress.end(record, now)
            progress.take_records({each.number: each for each in strategy.records if each.number not in running})


def speeds(task: Task, spread: float) -> Callable[[Any], Any]:
    """Return the times at the ends of epochs, in mean epochs, of which speeds differ by a power of the real ones."""
    real = clock_of(task, "seconds")

    def times(points: Any) -> Any:
        slowness = (real(points)[:, -1:] / task.epochs) ** spread
        return slowness * np.arange(1, task.epochs + 1)

    return times


def errors(told: Sequence[tuple[float, float | None]], end: float) -> list[float]:
    """Return the relative errors, signed, at each hundredth of the search; infinite where no time was told."""
    moments, found = [at for at, _ in told], []
    for percent in range(round(100 * _FROM), round(100 * _UNTIL) + 1):
        moment = end * percent / 100
        at, left = told[min(len(told) - 1, bisect_left(moments, moment))]
        found.append(math.inf if left is None else (left - (end - at)) / (end - at))
    return found


def show(name: str, found: Sequence[Sequence[float]]) -> None:
    """Print what came of one kind of search: of all moments, and of each search by its own median."""
    sizes = sorted(abs(each) for errors in found for each in errors)
    within = sum(each <= _WITHIN for each in sizes) / len(sizes)
    medians = [statistics.median(map(abs, each)) for each in found]
    bias = statistics.median(each for errors in found for each in errors)
    too_low = sum(each < _TOO_LOW for errors in found for each in errors) / len(sizes)
    print(
        f"{name:30}{statistics.median(sizes):8.0%}{sizes[int(0.9 * len(sizes))]:8.0%}{sizes[-1]:8.0%}{within:13.0%}"
        f"{max(medians):14.0%}{bias:+8.0%}{too_low:9.0%}",
        flush=True,
    )


def simulate(options: argparse.Namespace) -> None:
    """Simulate all kinds of searches, and print how well the time left was told."""
    quieten()
    tasks = tasks_of(options.curves, options.data)
    names = tasks.names
    print(HEADING)
    for name in options.searches:
        found = []
        for seed in range(options.seeds):
            told, end = estimates(tasks.task(names[seed * 3 % len(names)]), KINDS[name], seed)
            found.append(errors(told, end))
        show(name, found)


class Watching(LineView):
    """Notes the time left after each optimizer step of a search, and shows nothing."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()), time.process_time)
        self.told: list[tuple[float, float | None]] = []

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Note the time left."""
        super().on_progress(trial, step, max_steps)
        now = self._clock()
        self.told.append((now - self.state.begin, self.state.estimate(now).seconds_left))


def search_digits(options: argparse.Namespace) -> None:
    """Search `studies.digits` in several ways, and print how well the time left was told."""
    ways: dict[str, dict[str, Any]] = {
        "rungs": {"n_trials": 14},
        "to completion": {"n_trials": 8, "pruner": None},
        "budget of 5": {"n_trials": None, "budget": 5.0},
        "median pruning": {"n_trials": 14, "pruner": "median"},
    }
    data = digits.load_data()
    print(HEADING)
    for name, given in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            view, trainer = Watching(), digits.make_trainer(data, folder, options.epochs)
            trainer.hyperparameter_search(digits.SPACE, compute_objective="accuracy", progress=view, **given)
            seconds = view._clock() - view.state.begin
        show(f"digits, {name}, {seconds:.0f} s", [errors(view.told, seconds)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", choices=CURVES, default="lcbench")
    parser.add_argument("--data", type=Path, help="folder of the curves; by default beside the project")
    parser.add_argument("--seeds", type=int, default=10, help="searches of each kind, each on another task")
    parser.add_argument("--searches", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--real", action="store_true", help="search studies.digits")
    parser.add_argument("--epochs", type=int, default=6, help="of each of its trials")
    options = parser.parse_args()
    try:
        search_digits(options) if options.real else simulate(options)
    except MissingCurves as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
