"""Checkpoints of waiting trials are in memory up to a budget, the others on disk; nothing is lost, or left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from hpsearch import Float, SearchInterrupted, StudyError, TrialRecord, TrialState
from hpsearch.files import whole_folder, write_json
from hpsearch.search.objective import resolve_objectives
from hpsearch.search.paused_states import MEMORY, PausedStates, spill_all
from hpsearch.search.sessions import SESSIONS_FOLDER
from hpsearch.search.space import SearchSpace
from hpsearch.search.study import Study
from tests.backends.contract import Events
from tests.search.small_trainer import small_trainer

pytestmark = pytest.mark.skipif(not MEMORY.is_dir(), reason="there is no file system in memory")

RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}
EPOCHS = 6  # pauses after 1 and 3 of them
KB = 1000


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    made = Study("study", tmp_path / "study", SearchSpace(RATE), objectives, 10, paused_memory=100 * KB)
    made.folder.mkdir()
    yield made
    shutil.rmtree(PausedStates(made).place, ignore_errors=True)


def write(states: PausedStates, checkpoint: Path, size: int) -> None:
    """Write a checkpoint as training does, in memory if there is room."""
    checkpoint.parent.mkdir(exist_ok=True)
    states.make_room(checkpoint, size)
    with whole_folder(checkpoint) as partial:
        (partial / "weights").write_bytes(bytes(size))
    states.written(checkpoint)


def in_memory(study: Study) -> list[str]:
    return sorted(each.parent.name for each in study.folder.glob("*/checkpoint-*") if each.is_symlink())


def test_what_does_not_fit_is_on_disk_and_what_is_deleted_makes_room(study: Study) -> None:
    states = PausedStates(study)
    for number in range(3):
        write(states, study.folder / f"run-{number}" / "checkpoint-4", 40 * KB)
    assert in_memory(study) == ["run-0", "run-1"]
    assert all((study.folder / f"run-{number}" / "checkpoint-4" / "weights").stat().st_size for number in range(3))
    (study.folder / "run-0" / "checkpoint-4").unlink()
    write(states, study.folder / "run-3" / "checkpoint-4", 40 * KB)
    assert in_memory(study) == ["run-1", "run-3"]
    assert len(list(states.place.glob("checkpoint-*"))) == 2


def test_one_that_is_larger_than_was_expected_goes_to_disk(study: Study) -> None:
    states, checkpoint = PausedStates(study), study.folder / "run-0" / "checkpoint-4"
    checkpoint.parent.mkdir()
    assert states.make_room(checkpoint, 10 * KB)
    with whole_folder(checkpoint) as partial:
        (partial / "weights").write_bytes(bytes(200 * KB))
    states.written(checkpoint)
    assert not checkpoint.is_symlink()
    assert (checkpoint / "weights").stat().st_size == 200 * KB
    assert not list(states.place.glob("checkpoint-*"))


def test_trials_that_pause_at_once_share_the_budget(study: Study) -> None:
    def pause(number: int) -> None:
        write(PausedStates(study), study.folder / f"run-{number}" / "checkpoint-4", 30 * KB)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pause, range(24)))
    assert len(in_memory(study)) == 3
    assert len(list(study.folder.glob("*/checkpoint-4/weights"))) == 24


def test_what_is_in_memory_is_the_users_alone(study: Study) -> None:
    states = PausedStates(study)
    write(states, study.folder / "run-0" / "checkpoint-4", KB)
    assert states.place.stat().st_mode & 0o777 == 0o700
    states.end()
    states.place.symlink_to(study.folder)  # somebody else was there first
    write(states, study.folder / "run-1" / "checkpoint-4", KB)
    states.place.unlink()
    assert in_memory(study) == []


def test_with_another_machine_at_the_study_all_are_on_disk(study: Study) -> None:
    (study.folder / SESSIONS_FOLDER).mkdir()
    write_json(study.folder / SESSIONS_FOLDER / "other-1-abc", {"host": "other", "pid": 1, "started": ""})
    write(PausedStates(study), study.folder / "run-0" / "checkpoint-4", KB)
    assert in_memory(study) == []


def test_without_a_budget_nothing_is_in_memory(study: Study) -> None:
    none = PausedStates(replace(study, paused_memory=0))
    write(none, study.folder / "run-0" / "checkpoint-4", KB)
    assert in_memory(study) == []
    assert not none.place.exists()


def test_at_the_end_all_is_on_disk_and_nothing_in_memory(study: Study) -> None:
    states = PausedStates(study)
    for number in range(2):
        write(states, study.folder / f"run-{number}" / "checkpoint-4", KB)
    spill_all(study.folder / "run-0")
    assert in_memory(study) == ["run-1"]
    states.end()
    assert in_memory(study) == []
    assert not states.place.exists()
    assert len(list(study.folder.glob("*/checkpoint-4/weights"))) == 2


def test_what_studies_whose_folders_are_gone_have_left_is_deleted(study: Study, tmp_path: Path) -> None:
    gone = replace(study, folder=tmp_path / "gone")
    gone.folder.mkdir()
    write(PausedStates(gone), gone.folder / "run-0" / "checkpoint-4", KB)
    shutil.rmtree(gone.folder)
    assert PausedStates(gone).place.exists()
    write(PausedStates(study), study.folder / "run-0" / "checkpoint-4", KB)
    assert not PausedStates(gone).place.exists()


@pytest.mark.parametrize("value", [-1, True, "1GB", float("nan")])
def test_a_budget_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(StudyError, match=r"paused_memory must be None or a number of bytes from 0, but got"):
        search(tmp_path, paused_memory=value)


# Whole searches.


def search(folder: Path, *callbacks: Any, **options: Any) -> Any:
    return small_trainer(folder, *callbacks, num_train_epochs=EPOCHS).hyperparameter_search(
        RATE, "loss", **{"n_trials": 12, "progress": False, **options}
    )


class Looks(Events):
    """Looks, whenever a trial ends or pauses, where the checkpoints of those that wait are."""

    def __init__(self, folder: Path, then: Callable[[TrialRecord], None] = lambda record: None) -> None:
        super().__init__()
        self._folder, self._then = folder, then
        self.links, self.folders, self.most = 0, 0, 0

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        paths = list(self._folder.glob("*/checkpoint-*"))
        self.links = max(self.links, sum(each.is_symlink() for each in paths))
        self.folders = max(self.folders, sum(not each.is_symlink() for each in paths))
        sizes = (
            each.stat().st_size for path in paths if path.is_symlink() for each in path.rglob("*") if each.is_file()
        )
        self.most = max(self.most, sum(sizes))
        self._then(record)


class Begins(TrainerCallback):
    """Writes down at which update a trial begins or goes on, when it first does."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.setdefault(int(args.output_dir.rpartition("-")[2]), state.global_step)


def place_of(folder: Path) -> Path:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    return PausedStates(Study("study", folder / "study", SearchSpace(RATE), objectives, 1)).place


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_trials_that_wait_in_memory_go_on_as_those_on_disk_do(tmp_path: Path, n_jobs: int) -> None:
    looks = Looks(tmp_path / "memory" / "study")
    best = search(tmp_path / "memory", n_jobs=n_jobs, progress=looks)
    assert looks.links >= 2
    paused = {each.number for each in looks.ended if each.state is TrialState.PAUSED}
    complete = [each for each in best.run_summary.records if each.state is TrialState.COMPLETE]
    assert paused & {each.number for each in complete}
    for record in complete:
        again = small_trainer(tmp_path / "memory", num_train_epochs=EPOCHS).replay(number=record.number, progress=False)
        assert again.is_equal, again.first_difference
    assert best.load_model() is not None
    (left,) = (tmp_path / "memory" / "study").glob("*/checkpoint-*")
    assert not left.is_symlink()
    assert not place_of(tmp_path / "memory").exists()
    if n_jobs == 1:
        on_disk = Looks(tmp_path / "disk" / "study")
        other = search(tmp_path / "disk", paused_memory=0, progress=on_disk)
        assert on_disk.links == 0
        assert [(each.state, each.values) for each in other.run_summary.records] == [
            (each.state, each.values) for each in best.run_summary.records
        ]


def test_a_search_that_is_interrupted_leaves_those_that_wait_on_disk(tmp_path: Path) -> None:
    def interrupt(record: TrialRecord) -> None:
        if record.number == 5:
            raise KeyboardInterrupt

    looks = Looks(tmp_path / "study", interrupt)
    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, progress=looks)
    assert looks.links
    left = list((tmp_path / "study").glob("*/checkpoint-*"))
    assert left
    assert not any(each.is_symlink() for each in left)
    assert not place_of(tmp_path).exists()


def test_the_best_of_those_that_wait_has_its_weights_on_disk_when_a_budget_ends_the_search(tmp_path: Path) -> None:
    looks = Looks(tmp_path / "study")
    best = search(tmp_path, n_trials=18, max_epochs=6, progress=looks)
    assert looks.links
    assert best.run_summary.records[int(best.run_id)].state is TrialState.STOPPED
    assert best.load_model() is not None
    assert not any(each.is_symlink() for each in (tmp_path / "study").glob("*/checkpoint-*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.search.test_paused_states import Looks, search

folder = Path(sys.argv[1])
kill = lambda record: record.number == 5 and os.kill(os.getpid(), signal.SIGKILL)
search(folder, progress=Looks(folder / "study", kill))
"""


@pytest.mark.parametrize("is_lost", [False, True], ids=["killed", "machine started again"])
def test_after_a_kill_those_that_waited_in_memory_go_on_and_without_it_begin_again(
    tmp_path: Path, is_lost: bool
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, cwd=Path(__file__).parents[2])
    links = [each for each in (tmp_path / "study").glob("*/checkpoint-*") if each.is_symlink()]
    assert links
    assert place_of(tmp_path).exists()
    if is_lost:
        shutil.rmtree(place_of(tmp_path))
    begun = Begins()
    best = search(tmp_path, begun)
    assert len(best.run_summary.records) == 12
    waited = {int(each.parent.name.removeprefix("run-")) for each in links}
    assert waited & begun.steps.keys()
    assert all((begun.steps[number] == 0) is is_lost for number in waited & begun.steps.keys())
    assert not place_of(tmp_path).exists()
    assert not any(each.is_symlink() for each in (tmp_path / "study").glob("*/checkpoint-*"))
    for record in best.run_summary.records:
        again = small_trainer(tmp_path, num_train_epochs=EPOCHS).replay(number=record.number, progress=False)
        assert again.is_equal, again.first_difference


def test_two_hundred_trials_that_pause_in_two_workers_stay_within_the_budget(tmp_path: Path) -> None:
    looks, budget = Looks(tmp_path / "study"), 400 * KB
    best = search(tmp_path, n_trials=220, n_jobs=2, paused_memory=budget, progress=looks)
    paused = [each for each in looks.ended if each.state is TrialState.PAUSED]
    assert len({each.number for each in paused}) > 100
    assert looks.links >= 3
    assert looks.folders > looks.links
    assert 0 < looks.most <= budget
    records = best.run_summary.records
    assert [each.number for each in records] == list(range(220))
    assert {each.state for each in records} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(list((tmp_path / "study").glob("*/checkpoint-*"))) == 1
    assert not place_of(tmp_path).exists()
    assert os.listdir(MEMORY).count(place_of(tmp_path).name) == 0
