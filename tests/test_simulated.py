"""The benchmark of searches on learning curves, in its small form; and the curves it reads."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

from studies.benchmarks.learning_curves import (
    EPOCHS,
    Array,
    LCBench,
    MissingCurves,
    SeveralLengths,
    SyntheticTasks,
    Task,
)
from studies.benchmarks.regret import Results, Run
from studies.benchmarks.simulated import DATA, simulate
from studies.benchmarks.strategies import ALL_STRATEGIES, STRATEGIES, Job, Strategy
from tests.support import warm
from tests.support.programs import surroundings


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ("-m", "studies.benchmarks.simulated", "--cache", "cache", *arguments)
    return warm.run(*command, folder=folder, environment=surroundings())


@pytest.mark.process
def test_the_table_has_a_row_for_each_strategy_and_regret_never_rises_with_the_budget(tmp_path: Path) -> None:
    size = ["--tasks", "1", "--seeds", "2", "--workers", "2", "--budgets", "2", "4"]
    done = run("--curves", "synthetic", *size, "--json", "runs.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    for strategy in STRATEGIES:
        assert sum(row.startswith(f"{strategy}  ") for row in rows) == 1, done.stdout
    assert any(row.startswith("ours / the peer's") for row in rows)
    found = json.loads((tmp_path / "runs.json").read_text())
    assert len(found["runs"]) == 2 * len(STRATEGIES)
    for each in found["runs"]:
        early, late = each["regrets"]
        assert early >= late, each
        assert all(before < after for before, after in itertools.pairwise(each["seen"])), each


@pytest.mark.process
def test_of_whole_searches_the_end_is_shown_too(tmp_path: Path) -> None:
    size = ["--tasks", "1", "--seeds", "1", "--budgets", "2", "--trials", "6", "--strategies", "ours", "random in full"]
    done = run("--curves", "synthetic", *size, "--json", "runs.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    heading, ours, random = done.stdout.splitlines()[1:4]
    assert heading.split() == ["regret", "at", "2", "trainings", "the", "end", "trials", "trainings", "CPU", "s"]
    assert ours.split()[-3] == random.split()[-3] == "6"
    assert float(random.split()[-2]) == 6.0 > float(ours.split()[-2])
    found = json.loads((tmp_path / "runs.json").read_text())
    assert found["budgets"] == [2.0, None]
    (best,) = found["best_known"].values()
    for each in found["runs"]:
        assert each["regrets"][1] == best - each["result"]
    assert "--budgets must be finite" in run("--budgets", "inf", folder=tmp_path).stderr


@pytest.mark.process
def test_without_the_data_one_line_says_so(tmp_path: Path) -> None:
    done = run("--data", "nowhere", folder=tmp_path)
    assert done.returncode == 1
    assert "no surrogate of LCBench in nowhere" in done.stderr
    assert len(done.stderr.splitlines()) == 1


BUDGET = 3  # enough for all strategies to choose parameters, and trials to go on


class Rising(Task):
    """Accuracy is the number of the epoch."""

    name, dimensions = "rising", 1

    def curves(self, points: Array) -> Array:
        return np.tile(np.arange(1.0, EPOCHS + 1), (len(points), 1))

    def times(self, points: Array) -> Array:
        return self.curves(points)


@pytest.mark.parametrize("name", ALL_STRATEGIES)
@pytest.mark.parametrize(("workers", "has_lengths"), [(1, False), (3, True)])
def test_no_epoch_is_trained_twice_and_none_is_left_out(name: str, workers: int, has_lengths: bool) -> None:
    tasks = SyntheticTasks()
    task = (SeveralLengths(tasks) if has_lengths else tasks).task("synthetic-0")
    strategy = ALL_STRATEGIES[name](task, 0)
    jobs: list[Job] = []
    choose = strategy.next

    def noted() -> Job | None:
        job = choose()
        if job is not None:
            jobs.append(job)
        return job

    strategy.next = noted  # type: ignore[method-assign]
    simulate(task, strategy, workers, BUDGET)
    reached: dict[int, int] = {}
    for job in jobs:
        assert reached.get(job.trial, 0) == job.begin < job.end <= task.length(strategy.points[job.trial])
        reached[job.trial] = job.end
    assert sorted(reached) == list(range(len(strategy.points)))
    # All workers are at work for all the time, but while the last of 64 trials has its one epoch.
    spent = sum(reached.values())
    assert BUDGET * EPOCHS - workers <= spent <= (BUDGET + workers) * EPOCHS


@pytest.mark.parametrize("name", ALL_STRATEGIES)
@pytest.mark.parametrize("workers", [1, 4])
def test_a_search_of_so_many_trials_begins_them_all_and_returns_one_that_was_trained_to_its_end(
    name: str, workers: int
) -> None:
    task = SyntheticTasks().task("synthetic-0")
    strategy = ALL_STRATEGIES[name](task, 0, 20)
    searched = simulate(task, strategy, workers, math.inf)
    assert len(strategy.points) == 20
    assert np.isclose(task.curves(np.array(strategy.points))[:, -1], searched.result).any()
    in_full = 20.0 if workers == 1 else 20.0 + workers  # the last ones may have nothing to do
    assert searched.spent <= in_full
    if name.startswith("ours"):
        assert searched.spent < in_full / 2


class Hill(Task):
    """Accuracy is that of how near the parameters are to a place, and rises over a fifth of the training."""

    name, dimensions, best = "hill", 4, 90.0

    def curves(self, points: Array) -> Array:
        top = self.best * np.exp(-6 * ((points - 0.7) ** 2).sum(axis=1, keepdims=True))
        return np.asarray(top * (1 - np.exp(-np.arange(1.0, EPOCHS + 1) / 10)))

    def times(self, points: Array) -> Array:
        return np.tile(np.arange(1.0, EPOCHS + 1), (len(points), 1))


def test_ours_is_far_ahead_of_random_parameters_and_of_the_peer_where_parameters_matter() -> None:
    def regret(strategy: str) -> float:
        found = [simulate(Hill(), ALL_STRATEGIES[strategy](Hill(), seed), 1, 8.0).seen[-1][1] for seed in range(4)]
        return Hill.best - float(np.mean(found))

    ours = regret("ours")
    for other in ("ours, random parameters", "random in full", "TPE, median pruning"):
        assert ours < regret(other) / 2, other


def test_workers_share_the_budget() -> None:
    class InFull(Strategy):
        def next(self) -> Job:
            return Job(self._add(self._anywhere()), 0, EPOCHS)

        def told(self, trial: int, accuracies: Array, elapsed: float) -> None:
            assert len(accuracies) == EPOCHS

    for workers in (1, 4):
        seen, spent, result = simulate(Rising(), InFull(Rising(), 0), workers, 2)
        reached = min(EPOCHS, 2 * EPOCHS // workers)
        assert seen[-1] == pytest.approx((reached * workers / EPOCHS, reached))
        assert spent == 2
        assert result == (EPOCHS if workers == 1 else 0)


def test_the_regret_of_ours_is_compared_at_the_same_tasks() -> None:
    accuracies = {"ours": (90.0, 60.0), "random in full": (80.0, 20.0)}
    runs = [
        Run(strategy, task, 0, ((1.0, accuracy),), 1.0, accuracy, 1, 0.0)
        for strategy, values in accuracies.items()
        for task, accuracy in zip("ab", values, strict=True)
    ]
    results = Results(runs, {"a": 100.0, "b": 100.0})
    assert results.means("ours", [1.0])[0].value == 25.0
    assert results.best_other(1.0) == "random in full"
    ratio = results.ratio("ours", "random in full", 1.0)
    assert ratio.value == ratio.low == ratio.high == 0.5  # in both tasks
    assert ratio.mark == "+"


def test_synthetic_curves_are_the_same_each_time_and_no_two_tasks_are_alike() -> None:
    points = np.random.default_rng(0).random((50, 6))
    tasks = SyntheticTasks()
    curves = [tasks.task(name).curves(points) for name in tasks.names]
    assert (tasks.task(tasks.names[0]).curves(points[::-1])[::-1] == curves[0]).all()
    for one, other in itertools.combinations(curves, 2):
        assert np.abs(one - other).mean() > 1


def test_a_shorter_training_ends_sooner_and_lower_and_learns_faster_until_then() -> None:
    tasks = SyntheticTasks()
    whole, task = tasks.task("synthetic-1"), SeveralLengths(tasks).task("synthetic-1")
    point = np.full(whole.dimensions, 0.4)
    (curve,), (time,) = whole.curves(point[None]), whole.times(point[None])
    lengths = []
    for side in (0.0, 0.5, 1.0):
        at = np.append(point, side)
        lengths.append(task.length(at))
        (own,), (takes,) = task.curves(at[None]), task.times(at[None])
        assert own[lengths[-1] - 1] == pytest.approx(np.interp(np.sqrt(lengths[-1] * EPOCHS), range(1, 53), curve))
        assert takes == pytest.approx(time)
        if side < 1.0:
            assert curve[lengths[-1] - 1] + 1 < own[lengths[-1] - 1] < curve[-1] - 1
    assert lengths == [5, 16, 52]


def test_by_the_clock_a_training_that_takes_longer_has_shown_less_by_the_same_time() -> None:
    class OneByOne(Strategy):
        def next(self) -> Job:
            return Job(self._add(np.array([len(self.points) / 2.0])), 0, EPOCHS)

        def told(self, trial: int, accuracies: Array, elapsed: float) -> None:
            taken.append(elapsed)

    class Slower(Rising):
        def times(self, points: Array) -> Array:
            return np.asarray((1 + points) * np.arange(1.0, EPOCHS + 1))

    taken: list[float] = []
    simulate(Slower(), OneByOne(Slower(), 0), 1, 2.5, clock="seconds")
    assert taken[1] / taken[0] == pytest.approx(1.5)
    assert taken[0] == pytest.approx(EPOCHS / 1.5, rel=0.05)  # of a training at random, which takes 1 to 2
    taken = []
    simulate(Slower(), OneByOne(Slower(), 0), 1, 2.5)
    assert taken == [EPOCHS, EPOCHS]


def test_lcbench_is_read_right() -> None:
    pytest.importorskip("onnxruntime")
    try:
        tasks = LCBench(DATA)
    except MissingCurves as missing:
        pytest.skip(str(missing))
    assert len(tasks.names) == 34
    (curve,) = tasks.task("3945").curves(np.full((1, 7), 0.5))
    assert curve[[0, 2, 8, 25, 51]] == pytest.approx([38.07, 85.33, 90.63, 92.47, 93.50], abs=0.02)
