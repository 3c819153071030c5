"""A search on a Ray cluster loses nothing when nodes, workers and the process that searches are killed."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from tests.support.ray_clusters import child_cluster, started_cluster
from tests.support.ray_searching import RayDiary, RaySearch, assert_equal, searching
from tests.support.search_processes import (
    Hold,
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    records_on_disk,
    wait_until,
)
from tests.support.small_trainer import small_trainer
from tests.support.warm_workers import warm_workers

pytestmark = pytest.mark.ray

TRIALS = 12


@dataclass(frozen=True)
class Nodes:
    """A cluster of two nodes: where it is, and what kills the second one."""

    address: str
    kill_second: Callable[[], Any]


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    with warm_workers(), child_cluster(1, 2) as cluster:
        (second,) = cluster.worker_nodes
        yield Nodes(cluster.address, lambda: cluster.remove_node(second, allow_graceful=False))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the study of the same search in this process, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    searching(folder, TRIALS)(RayDiary(folder / "diary"))
    return folder / "study"


@pytest.mark.feature(10)
def test_a_search_loses_no_trial_when_a_node_and_then_its_own_process_are_killed(
    tmp_path: Path, undisturbed: Path
) -> None:
    diaries = [RayDiary(tmp_path / "first", workers=3), RayDiary(tmp_path / "second")]
    with two_nodes() as cluster:
        search = searching(tmp_path, TRIALS, backend="ray", address=cluster.address, resources_per_trial={"cpu": 1})
        with RaySearch(diaries[0], search) as first:
            first.wait_until(lambda: len(first.ended()) >= 3)
            here, there = first.nodes()
            diaries[0].hold(there)
            first.wait_until(lambda: len(first.held(there)) == 2)
            cluster.kill_second()
            so_far = len(first.ended())
            first.wait_until(lambda: len(first.ended()) >= so_far + 2)
            diaries[0].hold(here)
            first.wait_until(lambda: len(first.held(here)) == 1)
            first.kill()
        with RaySearch(diaries[1], search) as second:
            result = second.result()
    assert "best" in result, result
    assert_equal(tmp_path / "study", undisturbed)
    assert list((tmp_path / "study").glob(".ray-*")) == []
    interrupted = Counter([*first.held(there), *first.held(here)])
    assert interrupted.total() == 3
    for number in range(TRIALS):
        times = interrupted[number]
        went_on = [(1, 6), *[(5, 6)] * (times - 1), (5, 16)] if times else [(1, 16)]
        assert [each for diary in diaries for each in diary.segments(number)] == went_on, number


def test_workers_that_outlive_their_search_leave_its_trials_to_the_next_one(tmp_path: Path) -> None:
    """The machine that searches is lost, and the head of the cluster with it: the other node goes on for a minute."""
    # Between two reports, which a worker has answered, it trains and writes checkpoints for seconds.
    changes = {"per_device_train_batch_size": 1, "save_strategy": "steps", "save_steps": 3}
    diaries = [RayDiary(tmp_path / name, workers) for name, workers in (("first", 2), ("second", 1), ("alone", 1))]
    with started_cluster(1, 1) as cluster:
        options = {"backend": "ray", "address": cluster.address, "resources_per_trial": {"cpu": 1}}
        with RaySearch(diaries[0], searching(tmp_path, 3, changes, **options)) as first:
            first.wait_until(lambda: len(first.nodes()) == 2)
            _, there = first.nodes()
            diaries[0].slow_down(there, 0.25)
            first.wait_until(lambda: len(first.made(there)) >= 4)
            cluster.nodes[0].kill()
            first.kill()
        orphaned = len(first.made(there))
        wait_until(lambda: len(first.made(there)) > orphaned)
        searching(tmp_path, 3, changes)(diaries[1])
        time.sleep(2.0)
    searching(tmp_path / "undisturbed", 3, changes)(diaries[2])
    assert_equal(tmp_path / "study", tmp_path / "undisturbed" / "study")
    (trial,) = {each["trial"] for each in first.made(there)}
    last = first.made(there)[-1]
    assert last["step"] < 16  # it would have gone on to its report
    assert last["time"] < next(each["time"] for each in diaries[1].entries() if "trial" in each) + 1.0
    [(begin, end)] = diaries[1].segments(trial)
    # In the half second between two looks it may have written one checkpoint more than the other search has seen.
    assert last["step"] // 3 * 3 + 1 - begin in (0, 3)
    assert (begin > 1, end) == (True, 64)


def test_trials_that_wait_at_rungs_outlive_a_killed_search_and_the_workers_they_were_in(tmp_path: Path) -> None:
    changes = {"num_train_epochs": 6}  # pauses after 1 and 3 of them
    with warm_workers(), started_cluster(2) as cluster:
        place = {"address": cluster.address, "storage_path": str(tmp_path / "place")}
        options = {"backend": "ray", "resources_per_trial": {"cpu": 1}, **place}
        search = searching(tmp_path, 12, changes, pruner=LADDER_OF_0_8_0, **options)
        with RaySearch(RayDiary(tmp_path / "first"), search) as first:
            first.wait_until(lambda: len(first.ended()) >= 6)
            first.kill()
        waited = {each["number"] for each in records_on_disk(tmp_path / "study") if each["state"] == "paused"}
        assert waited
        with RaySearch(RayDiary(tmp_path / "second"), search) as second:
            assert "best" in second.result()
    records = assert_disk_and_storage_agree(tmp_path / "study")
    assert [each["number"] for each in records] == list(range(12))
    assert {each["state"] for each in records} == {"complete", "pruned"}
    assert_nothing_is_left_over(tmp_path / "study")
    for number in (each["number"] for each in records if each["state"] == "complete"):
        again = small_trainer(tmp_path, **changes).replay(number=number, progress=False)
        assert again.is_equal, again.first_difference


def test_a_node_on_which_no_worker_can_be_started_ends_the_search_and_costs_no_trial(tmp_path: Path) -> None:
    """It joins later, when the versions of the nodes have been compared, and its torch is broken."""
    broken = tmp_path / "elsewhere" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('this torch is broken')\n")
    with started_cluster(1) as cluster:
        options = {"backend": "ray", "address": cluster.address, "resources_per_trial": {"cpu": 1}, "trial_retries": 0}
        diary = RayDiary(tmp_path / "first", hold=Hold(0, 6))
        with RaySearch(diary, searching(tmp_path, 3, **options)) as first:
            diary.held()
            node = cluster.add_node(1, environment={"PYTHONPATH": str(broken.parent)})
            first.wait_until(lambda: any("error" in each for each in diary.entries()))
            diary.let_go()
            told = first.result()
        node.kill()
        assert told["error"] == "StudyError"
        assert "No worker can be started on the cluster: " in told["message"]
        assert "this torch is broken" in told["message"]
        again = RayDiary(tmp_path / "again")
        best = searching(tmp_path, 3, **options)(again)
    assert [record.state.value for record in best.run_summary.records] == ["complete"] * 3
    assert again.segments(0) == [(5, 16)]


def test_a_search_on_ray_and_an_embedded_one_share_a_study_and_ctrl_c_ends_the_one_that_waits(tmp_path: Path) -> None:
    on_ray = searching(tmp_path, 3, backend="ray", resources_per_trial={"cpu": 1})
    held = RayDiary(tmp_path / "held", hold=Hold(0, 6))
    waiting, last = RayDiary(tmp_path / "waiting"), RayDiary(tmp_path / "last")
    with RaySearch(held, searching(tmp_path, 3)) as embedded:
        held.held()
        with RaySearch(waiting, on_ray) as search:
            search.wait_until(lambda: sorted(search.ended()) == [1, 2])
            time.sleep(2.0)
            search.send(signal.SIGINT)
            asked = time.monotonic()
            assert search.result()["error"] == "SearchInterrupted"
            assert time.monotonic() - asked < 30
        with RaySearch(last, on_ray) as search:
            embedded.kill()
            result = search.result()
    assert result["best"] is not None
    assert [waiting.segments(number) for number in range(3)] == [[], [(1, 16)], [(1, 16)]]
    assert [last.segments(number) for number in range(3)] == [[(5, 16)], [], []]


def test_a_signal_at_which_tune_ends_interrupts_the_search(tmp_path: Path) -> None:
    """Slurm, for one, may send it when a job's time is nearly over."""
    diary = RayDiary(tmp_path / "diary", hold=Hold(0, 6))
    with RaySearch(diary, searching(tmp_path, 2, backend="ray", resources_per_trial={"cpu": 1})) as search:
        diary.held()
        search.send(signal.SIGUSR1)
        diary.let_go()
        assert search.result()["error"] == "SearchInterrupted"
    states = [json.loads(path.read_text())["state"] for path in (tmp_path / "study").glob("*/trial.json")]
    assert "interrupted" in states
