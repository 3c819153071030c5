"""The benchmark of searches on learning curves, in its small form; and the curves it reads."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.benchmarks import number_of_trials, repeats, simulated
from studies.benchmarks.learning_curves import (
    EPOCHS,
    Array,
    Known,
    LCBench,
    ManyParameters,
    MissingCurves,
    SeveralLengths,
    SyntheticTasks,
    Task,
    best_known,
)
from studies.benchmarks.number_of_trials import FewEvaluations
from studies.benchmarks.recorded_curves import Grid, GridWithSeeds, Scattered, TaskSet, Translation
from studies.benchmarks.regret import Results, Run, read
from studies.benchmarks.repeats import SIDES, WithNoise, spread_of, with_noise
from studies.benchmarks.simulated import DATA, chosen, half_of, simulate, tasks_of
from studies.benchmarks.strategies import (
    ALL_STRATEGIES,
    STRATEGIES,
    GPSamplerInFull,
    Job,
    Strategy,
    TPEInFull,
    TPEMedianPruning,
)
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
    assert any(row.startswith("hpsearch / transformers' default") for row in rows)
    found = json.loads((tmp_path / "runs.json").read_text())
    assert len(found["runs"]) == 2 * len(STRATEGIES)
    results, budgets = read([tmp_path / "runs.json"])
    regrets = [results.regret(each, budgets).tolist() for each in results.runs]
    assert regrets == [each["regrets"] for each in found["runs"]]
    for each in found["runs"]:
        early, late = each["regrets"]
        assert early >= late, each
        assert all(before < after for before, after in itertools.pairwise(each["seen"])), each


@pytest.mark.process
def test_of_whole_searches_the_end_is_shown_too(tmp_path: Path) -> None:
    size = [
        "--tasks",
        "1",
        "--seeds",
        "1",
        "--budgets",
        "2",
        "--trials",
        "6",
        "--strategies",
        "ours",
        "random to completion",
    ]
    done = run("--curves", "synthetic", *size, "--json", "runs.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    heading, ours, random = done.stdout.splitlines()[1:4]
    columns = ["regret at", "2 full runs", "the end", "the cost of hpsearch", "trials", "runs", "CPU s"]
    assert re.split(" {2,}", heading) == columns
    assert ours.split()[-3] == random.split()[-3] == "6"
    assert float(random.split()[-2]) == 6.0 > float(ours.split()[-2])
    found = json.loads((tmp_path / "runs.json").read_text())
    assert found["budgets"] == [2.0, None]
    (known,) = found["known"].values()
    for each in found["runs"]:
        assert each["regrets"][1] == known["best_at_end"] - each["results"][-1][1]
    assert "--budgets must be finite" in run("--budgets", "inf", folder=tmp_path).stderr


@pytest.mark.process
def test_without_the_data_one_line_says_so(tmp_path: Path) -> None:
    done = run("--data", "nowhere", folder=tmp_path)
    assert done.returncode == 1
    assert "no surrogate of LCBench in nowhere" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
def test_repeats_are_compared_with_the_luckiest_at_the_same_budget_and_at_the_same_cost(tmp_path: Path) -> None:
    size = ["--tasks", "1", "--seeds", "2", "--noise", "1", "--budgets", "8", "--trials", "6", "--sides", *SIDES]
    command = ("-m", "studies.benchmarks.repeats", "--curves", "synthetic", "--cache", "cache", *size)
    done = warm.run(*command, "--json", "runs.json", folder=tmp_path, environment=surroundings())
    assert done.returncode == 0, done.stderr
    by_budget, by_trials = json.loads((tmp_path / "runs.json").read_text())
    assert {run["strategy"] for run in by_budget["runs"]} == set(SIDES)
    assert all(7 < run["spent"] <= 8 for run in by_budget["runs"])
    spent = {(run["strategy"], run["seed"]): run["spent"] for run in by_trials["runs"]}
    for seed in range(2):
        assert spent["luckiest", seed] < spent["repeats=3", seed]
        assert spent["repeats=3", seed] - 1 < spent["same cost", seed] <= spent["repeats=3", seed]


def plan_of(benchmark: Any, task: str) -> Any:
    if benchmark is simulated:
        return simulated.Plan("synthetic", None, "ours", task, 0, 1, 2.0, "epochs")
    if benchmark is number_of_trials:
        return number_of_trials.Plan("synthetic", None, task, 0, 2, 3)
    return repeats.Plan("synthetic", None, task, 0, repeats.Setting(1.0, budget=3.0), ("luckiest",))


@pytest.mark.parametrize("benchmark", [simulated, number_of_trials, repeats])
def test_searches_of_two_tasks_draw_different_trials_so_that_one_draw_does_not_decide_all_tasks(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Array] = []

    def anywhere(self: Strategy) -> Array:
        drawn.append(self._random.random(self._dimensions))
        return drawn[-1]

    monkeypatch.setattr(Strategy, "_anywhere", anywhere)
    for task in tasks_of("synthetic").names[:2]:
        for _ in range(2):  # the second time the same
            benchmark.carry_out(plan_of(benchmark, task))
    assert len({each.tobytes() for each in drawn}) == len(drawn) / 2 > 4


BUDGET = 3  # enough for all strategies to choose parameters, and trials to go on


class Rising(Task):
    """Accuracy is the number of the epoch."""

    name, dimensions = "rising", 1

    def curves(self, points: Array) -> Array:
        return np.tile(np.arange(1.0, EPOCHS + 1), (len(points), 1))

    def times(self, points: Array) -> Array:
        return self.curves(points)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_STRATEGIES)
@pytest.mark.parametrize("workers", [1, 4])
def test_a_search_of_so_many_trials_begins_them_all_and_returns_one_that_was_trained_to_its_end(
    name: str, workers: int
) -> None:
    task = SyntheticTasks().task("synthetic-0")
    strategy = ALL_STRATEGIES[name](task, 0, 20)
    searched = simulate(task, strategy, workers, math.inf)
    assert len(strategy.points) == 20
    assert np.isclose(task.curves(np.array(strategy.points))[:, -1], searched.results[-1][1]).any()
    in_full = 20.0 if workers == 1 else 20.0 + workers  # the last ones may have nothing to do
    assert searched.spent <= in_full
    if name.endswith("to completion"):
        assert searched.spent == 20
    elif name.startswith("ours"):
        assert searched.spent < in_full * 0.8


class Hill(Task):
    """Accuracy is that of how near the parameters are to a place, and rises over a fifth of the training."""

    name, dimensions, best = "hill", 4, 90.0

    def curves(self, points: Array) -> Array:
        top = self.best * np.exp(-6 * ((points - 0.7) ** 2).sum(axis=1, keepdims=True))
        return np.asarray(top * (1 - np.exp(-np.arange(1.0, EPOCHS + 1) / 10)))

    def times(self, points: Array) -> Array:
        return np.tile(np.arange(1.0, EPOCHS + 1), (len(points), 1))


@pytest.mark.slow
def test_ours_is_far_ahead_of_random_parameters_and_of_the_peer_where_parameters_matter() -> None:
    def regret(strategy: str) -> float:
        found = [simulate(Hill(), ALL_STRATEGIES[strategy](Hill(), seed), 1, 12.0).seen[-1][1] for seed in range(4)]
        return Hill.best - float(np.mean(found))

    ours = regret("ours")
    for other in ("ours, random parameters", "random to completion", "TPE, median pruning"):
        assert ours < regret(other) / 2, other


def test_workers_share_the_budget() -> None:
    class InFull(Strategy):
        def next(self) -> Job:
            return Job(self._add(self._anywhere()), 0, EPOCHS)

        def told(self, trial: int, scores: Array, elapsed: float) -> None:
            assert len(scores) == EPOCHS

    for workers in (1, 4):
        seen, spent, results = simulate(Rising(), InFull(Rising(), 0), workers, 2)
        reached = min(EPOCHS, 2 * EPOCHS // workers)
        assert seen[-1] == pytest.approx((reached * workers / EPOCHS, reached))
        assert spent == 2
        assert results == (((1, EPOCHS),) if workers == 1 else ())


def test_the_regret_of_ours_is_compared_at_the_same_tasks() -> None:
    accuracies = {"ours": (90.0, 60.0), "random to completion": (80.0, 20.0)}
    runs = [
        Run(strategy, task, 0, ((1.0, accuracy),), 1.0, ((1.0, accuracy),), 1, 0.0)
        for strategy, values in accuracies.items()
        for task, accuracy in zip("ab", values, strict=True)
    ]
    results = Results(runs, {task: Known(100.0, 100.0) for task in "ab"})
    assert results.means("ours", [1.0])[0].value == 25.0
    assert results.best_other(1.0) == "random to completion"
    ratio = results.ratio("ours", "random to completion", 1.0)
    assert ratio.value == ratio.low == ratio.high == 0.5  # in both tasks
    assert ratio.mark == "+"


def test_others_are_compared_with_what_they_would_return_for_the_cost_of_ours() -> None:
    ours = [Run("ours", "a", seed, (), spent, ((spent, 90.0),), 9, 0.0) for seed, spent in enumerate((2.0, 0.5))]
    results = ((1.0, 60.0), (2.0, 80.0), (3.0, 95.0))
    others = [Run("random to completion", "a", seed, results, 3.0, results, 3, 0.0) for seed in range(2)]
    found = Results([*ours, *others], {"a": Known(100.0, 100.0)})
    assert (
        found.mean_at_cost_of("ours", "random to completion").value == (20 + 100) / 2
    )  # none had ended after half of one
    assert found.mean_at_cost_of("ours", "ours").value == 10


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


def test_few_evaluations_are_at_equal_distances_and_the_last_one_at_the_end() -> None:
    whole = SyntheticTasks().task("synthetic-1")
    points = np.random.default_rng(0).random((2, whole.dimensions))
    for evaluations, epochs in ((1, [52]), (3, [18, 35, 52]), (5, [11, 21, 32, 42, 52]), (52, list(range(1, 53)))):
        few = FewEvaluations(whole, evaluations)
        places = np.array(epochs) - 1
        assert few.epochs == few.length(points[0]) == evaluations
        assert (few.curves(points) == whole.curves(points)[:, places]).all()
        assert (few.times(points) == whole.times(points)[:, places]).all()


@pytest.mark.process
def test_more_evaluations_of_a_run_let_a_budget_begin_more_trials(tmp_path: Path) -> None:
    size = ["--curves", "synthetic", "--tasks", "1", "--seeds", "1", "--evaluations", "1", "5", "--budgets", "10"]
    command = ("-m", "studies.benchmarks.number_of_trials", "--cache", "cache", *size)
    done = warm.run(*command, folder=tmp_path, environment=surroundings())
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(1|5|random to completion) +(\d+) trials, [\d.]+$", done.stdout, re.MULTILINE)
    once, often, at_random = (int(trials) for _, trials in rows)
    assert once == at_random == 10 < often


@pytest.mark.parametrize("side", SIDES)
def test_of_a_repeated_search_all_runs_of_a_trial_have_its_parameters_and_their_own_noise(side: str) -> None:
    task = with_noise(SyntheticTasks().task("synthetic-0"), 2.0, 7)
    strategy = SIDES[side](task, 0, budget=12)
    spent = simulate(task, strategy, 1, math.inf).spent
    assert 11 < spent <= 12
    offsets: dict[bytes, list[int]] = {}
    for trial, point in enumerate(strategy.points):
        offsets.setdefault(point.tobytes(), []).append(strategy.seed_offset(trial))
    assert all(each == list(range(len(each))) for each in offsets.values())
    most = {"luckiest": 1, "repeats=2": 2, "repeats=3": 3, "confirm": 5}[side]
    assert min(most, 2) <= max(map(len, offsets.values())) <= most
    assert strategy.returned is not None
    of_returned = offsets[strategy.points[strategy.returned].tobytes()]
    assert len(of_returned) == max(map(len, offsets.values()))


def test_the_noise_of_a_run_is_the_same_each_time_and_of_the_size_that_was_asked_for() -> None:
    true = SyntheticTasks().task("synthetic-1")
    task, point = with_noise(true, 2.0, 3), np.full(true.dimensions, 0.4)
    runs = np.array([task.run(point, offset) for offset in range(400)])
    assert (runs[5] == task.run(point, 5)).all()
    assert (task.curves(point[None]) == true.curves(point[None])).all()
    noise = runs - true.curves(point[None])
    assert noise.mean(axis=1).std() == pytest.approx(2 * spread_of(true), rel=0.1)
    assert noise.std(axis=1).mean() == pytest.approx(0.5 * spread_of(true), rel=0.1)


def test_with_real_seeds_a_run_is_one_of_those_recorded_and_their_mean_is_the_truth() -> None:
    points, runs = np.array([[0.25], [0.75]]), [np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([[9.0, 9.0], [5.0, 1.0]])]
    grid = GridWithSeeds("seeds", points, runs)
    assert grid.curves(points).tolist() == [[2, 4], [7, 5]]
    task = WithNoise(grid, 0, grid.deviation)
    found = np.array([task.run(points[0], offset) for offset in range(50)])
    assert found.mean(axis=0) == pytest.approx([2, 4], rel=0.2)
    assert found.std(axis=0) == pytest.approx(np.std(runs[0], axis=0, ddof=1), rel=0.1)  # as that of the population


def test_of_twenty_parameters_those_of_the_task_matter_alone_and_the_best_is_that_of_the_task() -> None:
    core, task = SyntheticTasks().task("synthetic-1"), ManyParameters(SyntheticTasks()).task("synthetic-1")
    points = np.random.default_rng(0).random((3, 20))
    others = np.concatenate([points[:, : core.dimensions], 1 - points[:, core.dimensions :]], axis=1)
    assert task.dimensions == 20
    assert (task.curves(points) == task.curves(others)).all()
    assert (task.curves(points) == core.curves(points[:, : core.dimensions])).all()
    assert best_known(task) == best_known(core)


def test_by_the_clock_a_training_that_takes_longer_has_shown_less_by_the_same_time() -> None:
    class OneByOne(Strategy):
        def next(self) -> Job:
            return Job(self._add(np.array([len(self.points) / 2.0])), 0, EPOCHS)

        def told(self, trial: int, scores: Array, elapsed: float) -> None:
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
        tasks = LCBench(DATA["lcbench"])
    except MissingCurves as missing:
        pytest.skip(str(missing))
    assert len(tasks.names) == 34
    (curve,) = tasks.task("3945").curves(np.full((1, 7), 0.5))
    assert curve[[0, 2, 8, 25, 51]] == pytest.approx([38.07, 85.33, 90.63, 92.47, 93.50], abs=0.02)


def grid(side: int = 4, epochs: int = 18, diverged: float = -math.inf) -> Grid:
    """Return a table of two parameters; with a high first one, up to a place, the training diverges half-way."""
    steps = (np.arange(side) + 0.5) / side
    points = np.array(list(itertools.product(steps, steps)))
    tops = 90 - 40 * ((points - 0.6) ** 2).sum(axis=1, keepdims=True)
    scores = tops * (1 - np.exp(-np.arange(1.0, epochs + 1) / 4))
    scores[points[:, 0] < diverged, epochs // 2 :] = -np.inf
    return Grid("grid", points, scores)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_STRATEGIES)
@pytest.mark.parametrize("workers", [1, 3])
def test_of_a_table_each_configuration_is_trained_once_and_the_search_ends_with_the_last_one(
    name: str, workers: int
) -> None:
    task = grid()
    strategy = ALL_STRATEGIES[name](task, 0, 20)
    searched = simulate(task, strategy, workers, math.inf)
    assert len(strategy.points) == task.n_configurations == 16
    assert len(np.unique(strategy.points, axis=0)) == 16
    assert searched.results[-1][1] in task.curves(np.array(strategy.points))[:, -1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_STRATEGIES)
def test_a_training_that_diverges_is_no_result_and_ends_no_search(name: str) -> None:
    task = grid(diverged=0.5)
    strategy = ALL_STRATEGIES[name](task, 0, 16)
    searched = simulate(task, strategy, 2, math.inf)
    assert len(strategy.points) == 16
    assert searched.results
    assert all(math.isfinite(score) for _, score in (*searched.results, *searched.seen))


@pytest.mark.parametrize("kind", [TPEInFull, GPSamplerInFull, TPEMedianPruning])
def test_optuna_learns_what_was_trained_in_place_of_its_proposal(kind: type[TPEInFull]) -> None:
    task = grid(diverged=0.3)
    strategy = kind(task, 0, 14)
    simulate(task, strategy, 1, math.inf)
    trials = strategy._engine.study.trials
    assert np.array([list(each.params.values()) for each in trials]) == pytest.approx(np.array(strategy.points))
    diverged = [not math.isfinite(curve[-1]) for curve in task.curves(np.array(strategy.points))]
    assert any(diverged)
    for each, has_diverged in zip(trials, diverged, strict=True):
        assert each.state.name in (("FAIL", "PRUNED") if has_diverged else ("COMPLETE", "PRUNED"))


def test_a_proposal_becomes_the_nearest_configuration_that_was_not_tried() -> None:
    task = grid(side=2)
    low, beside = np.array([0.25, 0.25]), np.array([0.25, 0.75])
    proposal = np.array([0.3, 0.4])
    assert (task.snap(proposal, []) == low).all()
    assert (task.snap(proposal, [low]) == beside).all()
    assert (task.valid(np.array([proposal, proposal]), []) == low).all()
    assert len(task.valid(proposal[None], [low])) == 3  # none is near that was not tried: all others
    assert (task.curves(proposal[None]) == task.curves(low[None])).all()
    assert SyntheticTasks().task("synthetic-0").snap(proposal, [proposal]) is proposal


@pytest.mark.slow
def test_among_scattered_configurations_a_proposal_becomes_one_that_ends_alike() -> None:
    pytest.importorskip("sklearn")
    random = np.random.default_rng(0)
    points, proposals = random.random((300, 8)), random.random((100, 8))

    def ends(places: Array) -> Array:
        return np.asarray(np.sin(3 * places[:, 0]) * 10)  # the other parameters do nothing

    table = Scattered("scattered", points, np.stack([ends(points) - 1, ends(points)], axis=1))
    snapped = np.array([table.snap(each, []) for each in proposals])
    nearest = points[np.linalg.norm(proposals[:, None] - points, axis=2).argmin(axis=1)]
    off, off_by_distance = (np.abs(ends(each) - ends(proposals)).mean() for each in (snapped, nearest))
    assert off < off_by_distance / 3
    other = table.snap(proposals[0], [snapped[0]])
    assert (other != snapped[0]).any()
    assert (other == points).all(axis=1).any()


def test_regret_of_a_table_is_in_percent_of_the_way_from_its_median_to_its_best() -> None:
    scores = np.array([[-9.0, -math.inf], [-3.0, -5.0], [-8.0, -4.0], [-7.0, -7.0]])
    known = Grid("table", np.arange(4.0)[:, None], scores).known
    assert known == Known(best=-3.0, best_at_end=-4.0, without=-5.0, is_relative=True)
    seen, at_end = np.array([-4.0, -math.inf, -4.5, -6.0]), np.array([False, False, True, True])
    assert known.regret(seen, at_end).tolist() == [50.0, 100.0, 50.0, 200.0]


def test_both_halves_have_every_other_task_whatever_their_order() -> None:
    names = ("b", "e", "a", "c", "d")
    assert half_of(names, "fit") == ("a", "c", "e")
    assert half_of(names, "check") == ("b", "d")
    assert chosen(["a*", "c"], ["ab", "ac", "b", "c"]) == ["ab", "ac", "c"]


def test_taskset_is_read_without_its_first_report_and_with_what_diverged(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    folder = tmp_path / "taskset"
    folder.mkdir()
    (folder / "tasks.json").write_text(json.dumps({"hp": ["learning_rate", "beta1"]}))
    valid = np.array([[0.7, 0.6, 0.5], [0.7, 0.8, math.nan], [0.7, 0.69, 0.69]], np.float32)
    np.savez(folder / "one.npz", hp=[[1e-4, 0.9], [1.0, 0.0], [1e-2, 0.99]], valid=valid, train=valid)
    tasks = TaskSet(tmp_path)
    assert tasks.names == ("one",)
    task = tasks.task("one")
    assert (task.epochs, task.dimensions, task.n_configurations) == (2, 2, 3)
    points = np.array([[0.0, 0.5], [1.0, 1.0], [0.5, 0.0]])
    snapped = np.array([task.snap(each, []) for each in points])
    assert snapped == pytest.approx(points)
    assert task.curves(snapped) == pytest.approx(np.array([[-0.6, -0.5], [-0.8, -math.inf], [-0.69, -0.69]]))


def test_translations_are_read_by_file_and_by_base_model_and_hold_their_last_checkpoint(tmp_path: Path) -> None:
    def row(base: str, size: int, rate: float, *perplexities: float) -> dict[str, object]:
        sizes = {"model_size": size, "ff_num_hidden": 4 * size, "num_layers": 24, "bpe": len(base)}
        others = {"base": base, "batch_size": 16, "initial_lr": rate, "r": 2, "dataset_size": 9, "bleu": []}
        return {**sizes, **others, "ppl": perplexities}

    folder = tmp_path / "nmt"
    folder.mkdir()
    rows = [row("a", 8, 1e-4, 5.0, 4.0), row("a", 8, 1e-3, 6.0, 5.0, 4.5), row("b", 8, 1e-4, 3.0)]
    (folder / "finetune_x.json").write_text(json.dumps([*rows, row("b", 16, 1e-4, 2.0)]))
    (folder / "scratch_y.json").write_text(
        json.dumps([row("s", 8, 1e-4, 7.0), row("s", 8, 1e-4, 9.0), row("s", 8, 1e-3, 8.0)])
    )
    tasks = Translation(tmp_path)
    assert tasks.names == ("finetune_x", "finetune_x/a-24x8", "finetune_x/b-24x16", "finetune_x/b-24x8", "scratch_y")
    whole, one = tasks.task("finetune_x"), tasks.task("finetune_x/a-24x8")
    assert (whole.dimensions, whole.epochs, whole.n_configurations) == (3, 3, 4)  # base, size, rate: the rest is told
    assert (one.dimensions, one.epochs, one.n_configurations) == (1, 3, 2)
    assert one.curves(np.array([[0.25], [0.75]])).tolist() == [[-5, -4, -4], [-6, -5, -4.5]]
    scratch = tasks.task("scratch_y")
    assert scratch.n_configurations == 2
    assert scratch.curves(np.array([[0.25]])) in (-7.0, -9.0)  # one of the two that were trained, not their mean


@pytest.mark.parametrize("curves", ["lcbench", "taskset", "nmt"])
def test_curves_that_are_not_there_are_missed_in_one_line(curves: str, tmp_path: Path) -> None:
    with pytest.raises(MissingCurves, match="--data") as missing:
        tasks_of(curves, tmp_path)
    assert str(tmp_path) in str(missing.value)
    assert len(str(missing.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("curves", "name", "best", "size"),
    [
        ("taskset", "imdb_patch32_GRU64_avg_bs128", 0.44565, (1000, 8, 50)),
        ("nmt", "finetune_fr-en", 2.239, (162, 6, 74)),
    ],
)
def test_recorded_curves_are_read_right(curves: str, name: str, best: float, size: tuple[int, ...]) -> None:
    try:
        task = tasks_of(curves).task(name)
    except MissingCurves as missing:
        pytest.skip(str(missing))
    assert (task.n_configurations, task.dimensions, task.epochs) == size
    assert task.known is not None
    assert -task.known.best_at_end == pytest.approx(best, abs=1e-4)
    regrets = []
    for seed in range(3):
        strategy = ALL_STRATEGIES["random to completion"](task, seed, 20)
        searched = simulate(task, strategy, 1, math.inf)
        assert searched.spent == pytest.approx(20)
        regrets.append(task.known.regret(np.array(searched.results[-1][1]), np.array(True)))
    assert 0 <= np.mean(regrets) < 90
