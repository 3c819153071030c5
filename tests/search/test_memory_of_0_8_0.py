"""`paused_memory` was removed; a study that 0.8.0 left with checkpoints in memory is continued."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from hpsearch import Float, SearchInterrupted, StudyError, TrialRecord, TrialState, tune
from hpsearch.search.store import memory_of_0_8_0
from hpsearch.search.store.live_sessions import SESSIONS_FOLDER
from hpsearch.search.store.memory_of_0_8_0 import copy_to_disk
from hpsearch.system.files import write_json
from tests.support.searching import Events, HearsNotices
from tests.support.small_trainer import CountsModels, small_trainer

RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}
MEMORY_FILE = "memory.json"
PLACE = f"hpsearch-{'0123456789abcdef' * 2}"


@pytest.mark.parametrize("value", [0, 2e9])
@pytest.mark.parametrize("backend", ["optuna", "ray"])
def test_paused_memory_is_refused_before_any_work_and_the_error_says_what_takes_its_place(
    tmp_path: Path, backend: str, value: float
) -> None:
    models = CountsModels()
    with pytest.raises(StudyError, match=r"paused_memory=.* was removed: .* put output_dir on a RAM disk.*/dev/shm"):
        small_trainer(tmp_path / "runs", model_init=models).hyperparameter_search(
            RATE, backend=backend, paused_memory=value
        )
    with pytest.raises(StudyError, match=r"paused_memory=.* was removed: .* put output_dir on a RAM disk"):
        tune(pytest.fail, RATE, output_dir=tmp_path / "runs", backend=backend, paused_memory=value)
    assert models.trials == []
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which 0.8.0 made folders in memory."""
    monkeypatch.setattr(memory_of_0_8_0, "_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "study").mkdir()
    return tmp_path / "study"


def move_to_memory(checkpoint: Path, memory: Path, machine: str = socket.gethostname()) -> Path:
    """Move a checkpoint as 0.8.0 did; return where it is."""
    place = memory / PLACE
    place.mkdir(exist_ok=True)
    moved = place / f"{checkpoint.name}@{checkpoint.parent.name}"
    shutil.move(checkpoint, moved)
    checkpoint.symlink_to(moved, target_is_directory=True)
    (place / f".linked-from-{moved.name}").write_text(str(checkpoint.parent))
    write_json(checkpoint.parents[1] / MEMORY_FILE, {"place": str(place), "host": f"{machine} pid:[1]"})
    return moved


def make_checkpoint(study: Path, run: str = "run-0") -> Path:
    checkpoint = study / run / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text(run)
    return checkpoint


class Begins(TrainerCallback):
    """Records the step at which each trial begins or resumes first."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.setdefault(Path(args.output_dir).name, state.global_step)


class InterruptsAfter(Events):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def on_trial_end(self, record: TrialRecord) -> None:
        if record.number == self._number:
            raise KeyboardInterrupt


def search(folder: Path, *callbacks: Any, progress: Any) -> Any:
    trainer = small_trainer(folder, *callbacks, num_train_epochs=6)  # trials pause after 1 and 3 epochs
    return trainer.hyperparameter_search(RATE, "loss", n_trials=12, progress=progress)


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True], ids=["killed", "machine started again"])
def test_trials_that_were_paused_in_memory_resume_and_if_their_checkpoints_are_lost_start_again(
    tmp_path: Path, memory: Path, is_lost: bool
) -> None:
    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, progress=InterruptsAfter(5))
    paused = list((tmp_path / "study").glob("*/checkpoint-*"))
    runs = {each.parent.name for each in paused}
    assert len(runs) > 1
    for checkpoint in paused:
        move_to_memory(checkpoint, memory)
    if is_lost:
        shutil.rmtree(memory / PLACE)
    begins, events = Begins(), HearsNotices()
    best = search(tmp_path, begins, progress=events)
    told = {each.partition(" ")[0] for each in events.notices if "has lost its checkpoint" in each}
    assert told == (runs if is_lost else set())
    resumed = runs & begins.steps.keys()
    assert resumed
    assert all((begins.steps[run] == 0) is is_lost for run in resumed)
    assert {each.state for each in best.run_summary.records} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(best.run_summary.records) == 12
    assert list(memory.iterdir()) == []
    assert not (tmp_path / "study" / MEMORY_FILE).exists()
    assert not any(each.is_symlink() for each in (tmp_path / "study").rglob("*"))
    again = small_trainer(tmp_path, num_train_epochs=6).replay(number=int(best.run_id), progress=False)
    assert again.is_equal, again.first_difference


def test_what_is_in_memory_is_left_to_a_search_that_is_at_work_there(tmp_path: Path, memory: Path, study: Path) -> None:
    moved = move_to_memory(make_checkpoint(study), memory)
    (study / SESSIONS_FOLDER).mkdir()
    write_json(study / SESSIONS_FOLDER / "lab-1-1-abc", {"host": "lab-1 pid:[1]", "pid": 1, "started": "1 1"})
    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, progress=InterruptsAfter(0))
    assert (moved / "weights").exists()
    assert (study / "run-0" / "checkpoint-4").is_symlink()
    assert (study / MEMORY_FILE).exists()


def test_a_checkpoint_whose_copy_was_interrupted_is_copied(memory: Path, study: Path) -> None:
    checkpoint = make_checkpoint(study)
    move_to_memory(checkpoint, memory)
    checkpoint.rename(checkpoint.with_name(".partial-1-replaced-checkpoint-4"))
    assert copy_to_disk(study) == []
    assert not checkpoint.is_symlink()
    assert (checkpoint / "weights").read_text() == "run-0"
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize("others", [[], ["run-1"]], ids=["alone", "beside another one"])
def test_the_only_copy_of_a_checkpoint_whose_run_folder_was_renamed_stays_in_memory(
    memory: Path, study: Path, others: list[str]
) -> None:
    for run in ("run-0", *others):
        move_to_memory(make_checkpoint(study, run), memory)
    (study / "run-0").rename(study / "best-run")
    assert copy_to_disk(study) == []
    assert (study / "best-run" / "checkpoint-4" / "weights").read_text() == "run-0"
    assert [(study / run / "checkpoint-4").is_symlink() for run in others] == [False] * len(others)


@pytest.mark.parametrize("content", ["", "[]", "null", '{"place": "PRECIOUS", "host": "HOST"}'])
def test_whatever_the_file_of_0_8_0_names_only_its_own_folders_are_deleted(
    tmp_path: Path, memory: Path, study: Path, content: str
) -> None:
    precious = tmp_path / "precious"
    (precious / "thesis").mkdir(parents=True)
    (memory / "theirs" / "checkpoint").mkdir(parents=True)
    checkpoint = make_checkpoint(study)
    for name, target in (("checkpoint-best", precious / "thesis"), ("checkpoint-8", memory / "theirs" / "checkpoint")):
        checkpoint.with_name(name).symlink_to(target)
    written = content.replace("PRECIOUS", str(precious)).replace("HOST", socket.gethostname())
    (study / MEMORY_FILE).write_text(written)
    assert copy_to_disk(study) == []
    assert (precious / "thesis").is_dir()
    assert (memory / "theirs" / "checkpoint").is_dir()
    assert sum(each.is_symlink() for each in checkpoint.parent.iterdir()) == 2
    assert (study / MEMORY_FILE).exists()


def test_on_another_machine_the_links_are_left_alone_for_their_own(memory: Path, study: Path) -> None:
    checkpoint = make_checkpoint(study)
    moved = move_to_memory(checkpoint, memory, machine="elsewhere")
    away = moved.parent.rename(memory.parent / "memory of the other machine")
    assert copy_to_disk(study) == []
    away.rename(moved.parent)
    assert (checkpoint / "weights").read_text() == "run-0"
    assert (study / MEMORY_FILE).exists()


def test_a_study_without_the_file_of_0_8_0_is_not_touched(memory: Path, study: Path) -> None:
    checkpoint = make_checkpoint(study)
    move_to_memory(checkpoint, memory)
    (study / MEMORY_FILE).unlink()
    assert copy_to_disk(study) == []
    assert checkpoint.is_symlink()


def steal(memory: Path, study: Path, how: str) -> None:
    """Make a link of a crafted study to a checkpoint in memory that is not one of the study."""
    moved = move_to_memory(make_checkpoint(study), memory)
    note = moved.with_name(f".linked-from-{moved.name}")
    if how == "of another study":
        note.write_text(str(study.with_name("another") / "run-0"))
    elif how == "not noted":
        note.unlink()
    elif how == "under another name":
        moved = moved.rename(moved.with_name("checkpoint-9@run-7"))
        link = study / "run-0" / "checkpoint-4"
        link.unlink()
        link.symlink_to(moved)
    else:
        (memory / PLACE).rename(memory / "hpsearch-mine")
        link = study / "run-0" / "checkpoint-4"
        link.unlink()
        link.symlink_to(memory / "hpsearch-mine" / moved.name)
        write_json(study / MEMORY_FILE, {"place": str(memory / "hpsearch-mine"), "host": socket.gethostname()})


@pytest.mark.parametrize("how", ["of another study", "not noted", "under another name", "in another folder"])
def test_a_crafted_study_neither_copies_nor_deletes_what_is_in_memory(memory: Path, study: Path, how: str) -> None:
    steal(memory, study, how)
    before = sorted(memory.rglob("*"))
    copy_to_disk(study)
    assert sorted(memory.rglob("*")) == before
    assert not list(study.rglob("weights"))
