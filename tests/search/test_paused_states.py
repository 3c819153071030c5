"""Checkpoints of waiting trials are in memory up to a budget, the others on disk; nothing is lost, or left behind."""

from __future__ import annotations

import contextlib
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
from safetensors import SafetensorError
from transformers import TrainerCallback

from hpsearch import Float, SearchInterrupted, StudyError, TrialRecord, TrialState
from hpsearch.files import read_json, remove_folder, remove_partial, whole_folder, write_json
from hpsearch.search import paused_states
from hpsearch.search.objective import resolve_objectives
from hpsearch.search.paused_states import MEMORY, PLACE_FILE, PausedStates
from hpsearch.search.sessions import SESSIONS_FOLDER
from hpsearch.search.space import SearchSpace
from hpsearch.search.study import Study
from hpsearch.training import checkpoints
from tests.support.searching import Events, HearsNotices
from tests.support.small_trainer import small_trainer

pytestmark = pytest.mark.skipif(not MEMORY.is_dir(), reason="there is no file system in memory")

RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}
EPOCHS = 6  # pauses after 1 and 3 of them
KB = 1000


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    made = Study("study", tmp_path / "study", SearchSpace(RATE), objectives, 10, paused_memory=100 * KB)
    made.folder.mkdir()
    PausedStates(made).begin()
    yield made
    PausedStates(made).end()


def write(study: Study, number: int, size: int, expected: int | None = None) -> Path:
    """Write a checkpoint as training does, in memory if there is room; return its path."""
    states, checkpoint = PausedStates(study), study.folder / f"run-{number}" / "checkpoint-4"
    checkpoint.parent.mkdir(exist_ok=True)
    states.make_room(checkpoint, size if expected is None else expected)
    with whole_folder(checkpoint) as partial:
        (partial / "weights").write_bytes(bytes(size))
    states.written(checkpoint)
    return checkpoint


def in_memory(study: Study) -> list[str]:
    return sorted(each.parent.name for each in study.folder.glob("*/checkpoint-*") if each.is_symlink())


def place(study: Study) -> Path:
    found = PausedStates(study).place
    assert found is not None
    return found


def test_what_does_not_fit_is_on_disk_and_what_is_deleted_makes_room(study: Study) -> None:
    written = [write(study, number, 40 * KB) for number in range(3)]
    assert in_memory(study) == ["run-0", "run-1"]
    assert all((each / "weights").stat().st_size == 40 * KB for each in written)
    remove_folder(written[0])
    write(study, 3, 40 * KB)
    assert in_memory(study) == ["run-1", "run-3"]
    assert len(list(place(study).glob("checkpoint-*"))) == 2


def test_one_that_is_larger_than_was_expected_goes_to_disk(study: Study) -> None:
    checkpoint = write(study, 0, 200 * KB, expected=10 * KB)
    assert not checkpoint.is_symlink()
    assert (checkpoint / "weights").stat().st_size == 200 * KB
    assert not list(place(study).glob("checkpoint-*"))


def test_trials_that_pause_at_once_share_the_budget(study: Study) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write(study, number, 30 * KB), range(24)))
    assert len(in_memory(study)) == 3
    assert len(list(study.folder.glob("*/checkpoint-4/weights"))) == 24


def test_what_a_process_that_was_killed_was_about_to_write_takes_no_room(study: Study) -> None:
    checkpoint = study.folder / "run-0" / "checkpoint-4"
    checkpoint.parent.mkdir()
    assert PausedStates(study).make_room(checkpoint, 80 * KB)
    write(study, 1, 40 * KB)
    assert in_memory(study) == []
    remove_partial(checkpoint.parent)  # as the next one does that goes on with the trial
    write(study, 2, 40 * KB)
    assert in_memory(study) == ["run-2"]


def test_what_is_in_memory_is_the_users_alone_and_no_other_studys(study: Study, tmp_path: Path) -> None:
    assert place(study).stat().st_mode & 0o777 == 0o700
    other = replace(study, folder=tmp_path / "other")
    other.folder.mkdir()
    PausedStates(other).begin()
    assert place(other) != place(study)
    write(other, 0, KB)
    write(study, 0, KB)
    PausedStates(other).end()
    assert in_memory(study) == ["run-0"]


def test_with_another_machine_at_the_study_all_are_on_disk(study: Study) -> None:
    (study.folder / SESSIONS_FOLDER).mkdir()
    write_json(study.folder / SESSIONS_FOLDER / "other-1-abc", {"host": "other", "pid": 1, "started": ""})
    write(study, 0, KB)
    assert in_memory(study) == []


def test_a_search_that_joins_another_one_makes_room_where_there_is_none_and_leaves_what_is_there(study: Study) -> None:
    other = replace(study, paused_memory=0, folder=study.folder / "other")
    other.folder.mkdir()
    PausedStates(other).begin()
    joins = replace(other, paused_memory=100 * KB)
    assert PausedStates(joins).begin(is_alone=False) == []
    write(joins, 0, KB)
    PausedStates(joins).begin(is_alone=False)
    assert in_memory(joins) == ["run-0"]
    assert PausedStates(other).end() == []
    assert in_memory(joins) == []
    assert (joins.folder / "run-0" / "checkpoint-4" / "weights").stat().st_size == KB


def test_without_a_budget_nothing_is_in_memory(study: Study) -> None:
    none = replace(study, paused_memory=0, folder=study.folder / "none")
    none.folder.mkdir()
    PausedStates(none).begin()
    write(none, 0, KB)
    assert in_memory(none) == []
    assert PausedStates(none).place is None


@pytest.mark.parametrize("spoil", [lambda file: file.unlink(), lambda file: file.write_text("damaged")])
def test_whatever_is_wrong_in_memory_trials_are_on_disk(study: Study, spoil: Callable[[Path], Any]) -> None:
    there = place(study)
    spoil(study.folder / PLACE_FILE)
    assert not PausedStates(study).make_room(study.folder / "run-0" / "checkpoint-4", KB)
    (study.folder / PLACE_FILE).unlink(missing_ok=True)
    shutil.rmtree(there)


def test_at_the_end_all_is_on_disk_and_nothing_in_memory(study: Study) -> None:
    for number in range(2):
        write(study, number, KB)
    there = place(study)
    PausedStates(study).spill("run-0")
    assert in_memory(study) == ["run-1"]
    assert PausedStates(study).end() == []
    assert in_memory(study) == []
    assert not there.exists()
    assert PausedStates(study).place is None
    assert len(list(study.folder.glob("*/checkpoint-4/weights"))) == 2


def test_what_is_in_the_memory_of_another_machine_is_left_alone(study: Study) -> None:
    write(study, 0, KB)
    there = place(study)
    written = read_json(study.folder / PLACE_FILE)
    write_json(study.folder / PLACE_FILE, {**written, "host": "other"})
    states = PausedStates(study)
    assert states.begin() == []
    assert states.end() == []
    assert in_memory(study) == ["run-0"]
    assert states.place is None
    assert there.is_dir()
    write(study, 1, KB)
    assert in_memory(study) == ["run-0"]
    write_json(study.folder / PLACE_FILE, written)


def test_links_that_the_user_has_made_are_left_alone(study: Study, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write(study, 0, KB)
    theirs = study.folder / "run-0" / "checkpoint-best"
    theirs.symlink_to(elsewhere)
    PausedStates(study).spill("run-0")
    PausedStates(study).end()
    assert theirs.is_symlink()
    assert elsewhere.exists()


def test_what_cannot_be_written_to_disk_stays_in_memory(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    write(study, 0, KB)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", _full)
        PausedStates(study).end()
        PausedStates(study).begin()
    assert in_memory(study) == ["run-0"]
    assert PausedStates(study).end() == []
    assert in_memory(study) == []


def _full(*args: Any, **kwargs: Any) -> None:
    raise OSError("No space left on device")


@pytest.mark.parametrize("value", [-1, True, "1GB", None, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(StudyError, match=r"paused_memory must be a number of bytes from 0, but got"):
        search(tmp_path, paused_memory=value)


@pytest.mark.parametrize("options", [{"pruner": None}, {"n_trials": 3}], ids=["no pruner", "three trials"])
def test_a_budget_where_no_trial_waits_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match=r"paused_memory=1000 is for trials that wait at rungs.*none does"):
        search(tmp_path, **{"paused_memory": KB, **options})


def test_without_a_file_system_in_memory_a_budget_is_refused_and_the_next_search_goes_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(paused_states, "MEMORY", tmp_path / "none")
        with pytest.raises(StudyError, match=r"paused_memory=1000 needs a file system in memory, .*cannot be used"):
            search(tmp_path, paused_memory=KB)
    assert not (tmp_path / "study" / SESSIONS_FOLDER).exists()
    assert len(search(tmp_path, n_trials=4).run_summary.records) == 4


@pytest.mark.parametrize("error", [OSError("No space left on device"), SafetensorError("No space left on device")])
def test_a_checkpoint_for_which_memory_is_too_small_after_all_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    real, refused = checkpoints.write_json, []

    def full(path: Path, value: Any) -> None:
        if path.is_relative_to(MEMORY):
            refused.append(path)
            raise error
        real(path, value)

    monkeypatch.setattr(checkpoints, "write_json", full)
    looks = Looks(tmp_path / "study")
    best = search(tmp_path, progress=looks, **BUDGET)
    assert refused
    assert looks.links == 0
    assert looks.folders > 1
    assert best.run_summary.count(TrialState.FAILED) == 0


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
        self.links, self.folders, self.most = 0, 0, 0.0
        self.place: Path | None = None

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        paths = list(self._folder.glob("*/checkpoint-*"))
        self.links = max(self.links, sum(each.is_symlink() for each in paths))
        self.folders = max(self.folders, sum(not each.is_symlink() for each in paths))
        self.place = place_of(self._folder)
        self.most = max(self.most, 0 if self.place is None else bytes_in(self.place))
        self._then(record)


class Begins(TrainerCallback):
    """Writes down at which update a trial begins or goes on, when it first does."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.setdefault(int(args.output_dir.rpartition("-")[2]), state.global_step)


def place_of(folder: Path) -> Path | None:
    """The folder in memory of a study."""
    written = read_json(folder / PLACE_FILE)
    return None if written is None else Path(written["place"])


def bytes_in(folder: Path) -> int:
    """What the checkpoints in a folder hold, while others write and delete there."""
    total = 0
    for place, _, names in os.walk(folder):  # passes over folders that are gone
        for name in names if Path(place) != folder else ():
            with contextlib.suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


def nothing_is_left_in_memory(folder: Path, looks: Looks | None = None) -> bool:
    links = [each for each in (folder / "study").glob("*/checkpoint-*") if each.is_symlink()]
    if looks is not None:
        assert looks.place is not None
        assert not looks.place.exists()
    return not links and place_of(folder / "study") is None


BUDGET = {"paused_memory": 10**9}


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_trials_that_wait_in_memory_go_on_as_those_on_disk_do(tmp_path: Path, n_jobs: int) -> None:
    looks = Looks(tmp_path / "memory" / "study")
    best = search(tmp_path / "memory", n_jobs=n_jobs, progress=looks, **BUDGET)
    assert "up to 1,000 MB of those that wait are in memory" in "; ".join(looks.notes)
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
    assert nothing_is_left_in_memory(tmp_path / "memory", looks)
    if n_jobs == 1:
        on_disk = Looks(tmp_path / "disk" / "study")
        other = search(tmp_path / "disk", progress=on_disk)
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
        search(tmp_path, progress=looks, **BUDGET)
    assert looks.links
    left = list((tmp_path / "study").glob("*/checkpoint-*"))
    assert left
    assert nothing_is_left_in_memory(tmp_path, looks)


def test_the_best_of_those_that_wait_has_its_weights_on_disk_when_a_budget_ends_the_search(tmp_path: Path) -> None:
    looks = Looks(tmp_path / "study")
    best = search(tmp_path, n_trials=18, max_epochs=6, progress=looks, **BUDGET)
    assert looks.links
    assert best.run_summary.records[int(best.run_id)].state is TrialState.STOPPED
    assert best.load_model() is not None
    assert nothing_is_left_in_memory(tmp_path, looks)


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.search.test_paused_states import Looks, search

folder = Path(sys.argv[1])
kill = lambda record: record.number == 5 and os.kill(os.getpid(), signal.SIGKILL)
search(folder, progress=Looks(folder / "study", kill), paused_memory=10**9)
"""


@pytest.mark.parametrize("is_lost", [False, True], ids=["killed", "machine started again"])
def test_after_a_kill_those_that_waited_in_memory_go_on_and_without_it_begin_again(
    tmp_path: Path, is_lost: bool
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, cwd=Path(__file__).parents[2])
    links = [each for each in (tmp_path / "study").glob("*/checkpoint-*") if each.is_symlink()]
    assert links
    there = place_of(tmp_path / "study")
    assert there is not None
    assert there.is_dir()
    if is_lost:
        shutil.rmtree(there)
    begun, events = Begins(), HearsNotices()
    best = search(tmp_path, begun, progress=events)
    told = [each for each in events.notices if "has lost its checkpoint, which was in memory" in each]
    assert len(told) == (len(links) if is_lost else 0)
    assert not there.exists()
    assert len(best.run_summary.records) == 12
    waited = {int(each.parent.name.removeprefix("run-")) for each in links}
    assert waited & begun.steps.keys()
    assert all((begun.steps[number] == 0) is is_lost for number in waited & begun.steps.keys())
    assert nothing_is_left_in_memory(tmp_path)
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
    assert nothing_is_left_in_memory(tmp_path, looks)
