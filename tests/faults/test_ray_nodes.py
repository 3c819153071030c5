"""A search on a Ray cluster loses nothing when nodes, workers and the process that searches are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

import optuna

from hpsearch import Float
from tests.backends.ray_clusters import child_cluster, started_cluster
from tests.faults.ray_searching import RayDiary, RaySearch
from tests.faults.searching import assert_disk_and_storage_agree, assert_nothing_is_left_over, records_on_disk
from tests.search.small_trainer import small_trainer

RATE = {"learning_rate": Float(1e-3, 1e-1, log=True)}
TRIALS = 30
EPOCH = 4  # updates


@dataclass(frozen=True)
class Nodes:
    """A cluster of two nodes: where it is, and what kills the second one."""

    address: str
    second: str
    kill_second: Callable[[], Any]


@contextmanager
def by_ray_start() -> Iterator[Nodes]:
    with started_cluster(1, 2) as cluster:
        yield Nodes(cluster.address, cluster.nodes[1].name, cluster.nodes[1].kill)


@contextmanager
def by_cluster_utils() -> Iterator[Nodes]:
    with child_cluster(1, 2) as cluster:
        (second,) = cluster.worker_nodes
        yield Nodes(cluster.address, second.node_id, lambda: cluster.remove_node(second, allow_graceful=False))


def searching(folder: Path, n_trials: int = TRIALS, **options: Any) -> Callable[[RayDiary], Any]:
    """Return a search of trials of four epochs, with a checkpoint after each, that can be sent to another process."""

    def search(diary: RayDiary) -> Any:
        trainer = small_trainer(folder, diary, num_train_epochs=4, save_strategy="epoch")
        return trainer.hyperparameter_search(
            RATE,
            "loss",
            n_trials=n_trials,
            # Suggests for a trial what it suggests for it, whatever other trials have found, and when.
            sampler=optuna.samplers.RandomSampler(seed=1),
            pruner="none",
            progress=diary,
            **options,
        )

    return search


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the study of the same search in this process, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    searching(folder)(RayDiary(folder / "diary"))
    return folder / "study"


def segments(trial: int, *diaries: RayDiary) -> list[tuple[int, int]]:
    """Return the updates that workers have made in a trial: the first and the last of each that was at it."""
    found: dict[int, list[int]] = {}
    for diary in diaries:
        for each in diary.entries():
            if each.get("trial") == trial:
                found.setdefault(each["pid"], []).append(each["step"])
    for steps in found.values():
        assert steps == list(range(steps[0], steps[0] + len(steps)))
    return [(steps[0], steps[-1]) for steps in found.values()]


def assert_equal(study: Path, undisturbed: Path) -> None:
    """Check that a study has the records, and the best weights, of one that was left in peace."""
    records, other = assert_disk_and_storage_agree(study), records_on_disk(undisturbed)
    assert [*map(comparable, records)] == [*map(comparable, other)]
    assert (study / "best.json").read_text() == (undisturbed / "best.json").read_text()
    (weights,) = study.glob("*/checkpoint-*/model.safetensors")
    assert weights.read_bytes() == (undisturbed / weights.relative_to(study)).read_bytes()
    assert_nothing_is_left_over(study)
    assert [path for path in study.rglob("*") if ".ray-" in path.name or path.name == "taken-from"] == []


@pytest.mark.parametrize("nodes", [by_ray_start, by_cluster_utils])
def test_a_search_loses_no_trial_when_a_node_and_then_its_own_process_are_killed(
    nodes: Callable[[], Any], tmp_path: Path, undisturbed: Path
) -> None:
    diaries = [RayDiary(tmp_path / "first", workers=3), RayDiary(tmp_path / "second")]
    import time
    t = time.time()
    with nodes() as cluster:
        print("cluster", time.time() - t)
        search = searching(tmp_path, backend="ray", address=cluster.address, resources_per_trial={"cpu": 1})
        with RaySearch(diaries[0], search) as first:
            first.wait_until(lambda: len(first.ended()) >= 8)
            print("eight", time.time() - t)
            here, there = first.nodes()
            diaries[0].hold(there)
            first.wait_until(lambda: len(first.held(there)) == 2)
            cluster.kill_second()
            so_far = len(first.ended())
            first.wait_until(lambda: len(first.ended()) >= so_far + 5)
            diaries[0].hold(here)
            print("sixteen", time.time() - t)
            first.wait_until(lambda: len(first.held(here)) == 1)
            first.kill()
        with RaySearch(diaries[1], search) as second:
            result = second.result()
            print("end", time.time() - t)
    import shutil
    shutil.copytree(tmp_path, f"/tmp/rn/{nodes.__name__}", dirs_exist_ok=True)
    assert "best" in result, result
    assert_equal(tmp_path / "study", undisturbed)
    interrupted = [*first.held(there), *first.held(here)]
    assert len(set(interrupted)) == 3
    for number in range(TRIALS):
        went_on = [(1, 6), (5, 16)] if number in interrupted else [(1, 16)]
        assert segments(number, *diaries) == went_on, number
