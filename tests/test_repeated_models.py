"""The benchmark of repeats by real training: its summary, and a small search of each side."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn")

from studies.benchmarks import real_tasks, repeated_models
from studies.benchmarks.repeated_models import ONCE, REPEATS, main
from studies.benchmarks.retraining_results import Results, Retraining, Search
from studies.benchmarks.returned_models import Folders, new_seeds


def searched(side: str, number: int, seed: int = 0, reported: float = 1.0, metric: str = "loss") -> Search:
    return Search("text", side, seed, 10.0, metric, {"number": number}, reported, 1, None, 5, 0, 10.0)


def summary(file: Path, capsys: pytest.CaptureFixture[str], seeds: str = "0") -> str:
    main(
        ["--results", str(file), "--summary", "--tasks", "text", "--budgets", "10", "--retrain", "2", "--seeds", *seeds]
    )
    return capsys.readouterr().out.splitlines()[-1]


def judge(results: Results, number: int, *tests: float, dev: float = 1.0) -> None:
    for seed, test in zip(new_seeds(len(tests)), tests, strict=True):
        results.add(Retraining("text", {"number": number}, seed, dev, test))


def test_a_side_is_better_in_a_search_seed_if_its_mean_over_new_seeds_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.jsonl"
    results = Results(file)
    for seed, (once, repeated) in enumerate(((0, 1), (1, 1), (1, 0), (2, 1))):
        results.add(searched(ONCE, once, seed))
        results.add(searched(REPEATS, repeated, seed))
    judge(results, 0, 2.0, 2.0)
    judge(results, 1, 1.5, 1.9)
    judge(results, 2, 1.0, 3.0)
    assert "once 1, repeats 2, same parameters 1" in summary(file, capsys, "0123")
    assert "once 0, repeats 1, same parameters 0" in summary(file, capsys, "0")


@pytest.mark.parametrize(("metric", "optimism"), [("loss", "+0.2000, -0.1000"), ("accuracy", "-0.2000, +0.1000")])
def test_optimism_is_what_a_search_reports_beyond_the_mean_of_new_seeds_on_its_own_data(
    metric: str, optimism: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.jsonl"
    results = Results(file)
    results.add(searched(ONCE, 0, reported=0.8, metric=metric))
    results.add(searched(REPEATS, 0, reported=1.1, metric=metric))
    judge(results, 0, 2.0, 2.0)
    assert summary(file, capsys).endswith(optimism)


def test_a_search_seed_that_lacks_a_side_or_a_training_run_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.jsonl"
    results = Results(file)
    for number in (0, 1):
        results.add(searched(ONCE, number, seed=number))
    results.add(searched(REPEATS, 2, seed=0))
    judge(results, 0, 2.0, 2.0)
    judge(results, 1, 2.0, 2.0)
    judge(results, 2, 1.0)
    assert summary(file, capsys).startswith("task")
    judge(results, 2, 1.0, 1.0)
    assert "once 0, repeats 1" in summary(file, capsys, "01")


@pytest.mark.slow
def test_both_sides_have_the_same_budget_and_only_one_has_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(*_: Any) -> real_tasks.Task:
        task = real_tasks.make_digits(Path(), epoch=64)
        return dataclasses.replace(task, dev=task.dev.select(range(32)), epochs=2)

    monkeypatch.setattr(repeated_models, "task_of_process", small)
    monkeypatch.setattr(repeated_models, "quieten", lambda: None)  # it is for a process of its own
    found = [repeated_models.search(Folders(Path(), Path()), "digits", side, 1, 5.0, 3) for side in (ONCE, REPEATS)]
    assert [each.replicas > 0 for each in found] == [False, True]
    assert all(4 < each.full_runs <= 5 for each in found)
    assert [found[0].runs, found[0].chance_of_best] == [1, None]
    assert all(set(each.params) >= {"learning_rate", "model.hidden_size"} for each in found)
