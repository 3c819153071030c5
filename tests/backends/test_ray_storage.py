"""A search on Ray goes on from checkpoints at a place that all nodes reach, whatever becomes of its workers."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

import tests.support.shelf  # registers shelf:// here, as it is in the workers  # noqa: F401
from hpsearch import SearchInterrupted, StudyError
from tests.support.ray_clusters import StartedCluster, started_cluster
from tests.support.ray_searching import RayDiary, RaySearch, assert_equal, searching
from tests.support.search_processes import RATE, ROOT, Hold, assert_nothing_is_left_over
from tests.support.searching import states
from tests.support.small_trainer import small_trainer
from tests.support.warm_workers import warm_workers

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the second node does not share."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def cluster(hidden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    """Return a cluster of two nodes with a CPU each, which write temporary files to the folder `scratch` of theirs."""
    with pytest.MonkeyPatch.context() as patch, warm_workers(), started_cluster() as nodes:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("scratch")))
        nodes.add_node(1)
        nodes.add_node(1, hidden=hidden)
        yield nodes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the study of a search of three trials in this process, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    searching(folder, 3)(RayDiary(folder / "diary"))
    return folder / "study"


def scratch_left() -> list[Path]:
    """Return what workers have left on their nodes."""
    return list(Path(os.environ["TMPDIR"]).glob("hpsearch-*"))


def test_nodes_that_do_not_share_the_folder_of_the_study_are_refused_in_seconds(
    cluster: StartedCluster, hidden: Path, tmp_path: Path
) -> None:
    places = [None, str(hidden / "place"), f"file://{hidden / 'place'}"]
    for place in places:
        search = searching(hidden / "refused", 1, backend="ray", address=cluster.address, storage_path=place)
        start = time.monotonic()
        with pytest.raises(StudyError, match=r"not the same on all nodes .*node-1\) does not see it.*storage_path"):
            search(RayDiary(tmp_path / "diary"))
        assert time.monotonic() - start < 30
    assert not (tmp_path / "diary").exists()
    assert list(hidden.rglob("run-*")) == []


@pytest.mark.parametrize("place", ["FOLDER/file/place", "file://FOLDER/file/place", "shelf://FOLDER/file/place"])
def test_a_search_whose_storage_path_cannot_be_used_ends_before_its_first_trial(
    cluster: StartedCluster, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    place = place.replace("FOLDER", str(tmp_path))
    start = time.monotonic()
    with pytest.raises(StudyError, match=f"storage_path='{place}' .*Not a directory"):
        searching(tmp_path, 1, backend="ray", address=cluster.address, storage_path=place)(RayDiary(tmp_path / "diary"))
    assert time.monotonic() - start < 30
    assert not (tmp_path / "diary").exists()
    assert list(tmp_path.rglob("run-*")) == []


def test_the_trial_of_a_killed_worker_goes_on_from_what_is_in_storage_path(
    cluster: StartedCluster, hidden: Path, tmp_path: Path, undisturbed: Path
) -> None:
    """It is on a file system that fsspec knows and pyarrow does not; the next test kills one on a usual one."""
    place, folder = tmp_path / "place", hidden / "killed"
    diary = RayDiary(tmp_path / "diary", workers=2, hold=Hold(1, 6))
    search = searching(
        folder,
        3,
        backend="ray",
        address=cluster.address,
        resources_per_trial={"cpu": 1},
        storage_path=f"shelf://{place}",
    )

    def kill_the_worker_that_is_held() -> list[str]:
        process = diary.held()
        there = sorted(path.name for path in place.glob("study-*/run-1/checkpoint-*"))
        os.kill(process, signal.SIGKILL)
        diary.let_go()
        return there

    with ThreadPoolExecutor() as threads:
        killing = threads.submit(kill_the_worker_that_is_held)
        best = search(diary)
    assert killing.result() == ["checkpoint-4"]
    assert diary.segments(1) == [(1, 6), (5, 16)]
    assert diary.segments(0) == diary.segments(2) == [(1, 16)]
    assert len({each["node"] for each in diary.entries() if "step" in each}) == 2
    assert_equal(folder / "study", undisturbed)
    assert best.load_model() is not None
    assert list(place.iterdir()) == []
    assert scratch_left() == []


def test_a_population_is_trained_through_storage_path(cluster: StartedCluster, hidden: Path, tmp_path: Path) -> None:
    """Trials of PBT take turns on two workers, and go on from the checkpoints of others; one worker is killed."""
    place, folder = tmp_path / "place", hidden / "population"
    diary = RayDiary(tmp_path / "diary", workers=2, hold=Hold(1, 14))
    random.seed(0)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        hyperparam_mutations={"learning_rate": tune.loguniform(1e-3, 1e-1)},
    )
    trainer = small_trainer(folder, diary, num_train_epochs=8, save_strategy="epoch")

    def kill_the_worker_that_is_held() -> None:
        os.kill(diary.held(), signal.SIGKILL)
        diary.let_go()

    with ThreadPoolExecutor() as threads:
        killing = threads.submit(kill_the_worker_that_is_held)
        best = trainer.hyperparameter_search(
            RATE,
            "loss",
            n_trials=4,
            backend="ray",
            address=cluster.address,
            resources_per_trial={"cpu": 1},
            scheduler=scheduler,
            storage_path=place,
            progress=diary,
        )
        killing.result()
    steps = [each["step"] for each in diary.entries() if each.get("trial") == 1]
    assert steps[steps.index(14) + 1] == 13  # after the checkpoint of 12
    records = best.run_summary.records
    assert states(best) == ["complete"] * 4
    assert any(record.schedule for record in records)
    assert best.load_model() is not None
    assert list(place.iterdir()) == []
    assert scratch_left() == []
    assert_nothing_is_left_over(folder / "study")
    alone = small_trainer(folder, num_train_epochs=8, save_strategy="epoch")
    for record in records:
        replayed = alone.replay(number=record.number, progress=False)
        assert replayed.first_difference is None


def test_a_trial_that_was_begun_without_storage_path_goes_on_with_it(
    cluster: StartedCluster, hidden: Path, tmp_path: Path, undisturbed: Path
) -> None:
    folder, place = hidden / "begun", tmp_path / "place"
    embedded = RayDiary(tmp_path / "embedded", hold=Hold(1, 6))
    with RaySearch(embedded, searching(folder, 3)) as process:
        embedded.held()
        process.kill()
    on_ray = RayDiary(tmp_path / "on ray")
    options = {"backend": "ray", "address": cluster.address, "resources_per_trial": {"cpu": 1}, "storage_path": place}
    searching(folder, 3, **options)(on_ray)
    assert [on_ray.segments(number) for number in range(3)] == [[], [(5, 16)], [(1, 16)]]
    assert_equal(folder / "study", undisturbed)
    assert list(place.iterdir()) == []
    assert scratch_left() == []


def test_a_search_that_ended_in_the_middle_goes_on_from_storage_path(
    cluster: StartedCluster, hidden: Path, tmp_path: Path, undisturbed: Path
) -> None:
    """Its process is killed, then interrupted, then left in peace."""
    place, folder = tmp_path / "place", hidden / "middle"
    options = {"backend": "ray", "address": cluster.address, "resources_per_trial": {"cpu": 1}, "storage_path": place}
    killed = RayDiary(tmp_path / "killed", workers=2, hold=Hold(1, 6))
    with RaySearch(killed, searching(folder, 3, **options)) as process:
        killed.held()
        process.wait_until(lambda: 0 in process.ended())
        process.kill()
    (at,) = place.glob("study-*/run-1")
    assert [path.name for path in at.glob("checkpoint-*")] == ["checkpoint-4"]
    assert len(list(at.parent.glob(".ray-*"))) == 1

    class Interrupting(RayDiary):
        def on_report(self, trial: Any, report: Any) -> None:
            if (trial.number, report.step) == (1, 12):
                raise KeyboardInterrupt

    interrupted = Interrupting(tmp_path / "interrupted")
    with pytest.raises(SearchInterrupted):
        searching(folder, 3, **options)(interrupted)
    assert interrupted.segments(1)[0][0] == 5
    (newest,) = (int(path.name.partition("-")[2]) for path in at.glob("checkpoint-*"))
    assert newest in (8, 12)  # the trial went on until its worker heard of it
    assert list(at.parent.glob(".ray-*")) == []
    assert scratch_left() == []

    peaceful = RayDiary(tmp_path / "peaceful")
    searching(folder, 3, **options)(peaceful)
    assert peaceful.segments(1) == [(newest + 1, 16)]
    assert peaceful.segments(0) == []
    assert_equal(folder / "study", undisturbed)
    assert list(place.iterdir()) == []
    assert scratch_left() == []
