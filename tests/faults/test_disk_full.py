"""A disk that is full costs at most the trial that filled it; what was written before stays whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hpsearch import Categorical, HpsearchError
from tests.support.search_processes import (
    RATE,
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    records_on_disk,
)
from tests.support.searching import AtMoment, AtStep, states
from tests.support.small_trainer import TwoLayers, small_trainer

pytestmark = pytest.mark.fault

MEGABYTES = 8
FULL = "No space left on device"
FULL_FOR_ALL = rf"(?i){FULL}|disk is full"
# Hidden units: weights of a few bytes, of 160 kB, and of 8 MB; a checkpoint is three times as large.
SMALL, MIDDLE, LARGE = 8, 8_000, 400_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of its own, of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform != "linux":
        pytest.skip("a small disk is a tmpfs, which only Linux has")
    command = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except OSError as error:
        pytest.skip(f"a small disk cannot be mounted: {error}")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: a storage that an error keeps alive may still have its file open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=10)


class Filler:
    """A file that takes what is left of a disk, but `spare` bytes."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "filler"

    def fill(self, spare: int = 0) -> None:
        disk = os.statvfs(self._path.parent)
        with self._path.open("ab") as stream:
            stream.write(bytes(max(0, disk.f_bavail * disk.f_bsize - spare)))

    def remove(self) -> None:
        self._path.unlink()


def model_of_trial(trial: Any) -> TwoLayers:
    return TwoLayers(trial.params["model.hidden"])


def search(folder: Path, n_trials: int, hidden: list[int], *callbacks: Any, **options: Any) -> Any:
    """Search; trial n has a model of `hidden[n]` units."""

    start_with = [{"model.hidden": each} for each in hidden]
    arguments = {"compute_objective": "loss", "pruner": "none", "progress": False, "start_with": start_with, **options}
    trainer = small_trainer(folder, *callbacks, model_init=model_of_trial, save_strategy="epoch")
    space = {**RATE, "model.hidden": Categorical([SMALL, MIDDLE, LARGE])}
    return trainer.hyperparameter_search(space, n_trials=n_trials, **arguments)


def partial_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if ".partial-" in path.name]


def assert_checkpoint_is_whole(folder: Path) -> None:
    assert (folder / "trainer_state.json").is_file()
    assert load_file(folder / "model.safetensors")
    assert torch.load(folder / "optimizer.pt", weights_only=True)


def test_a_trial_whose_checkpoint_does_not_fit_on_the_disk_fails_and_the_search_goes_on(small_disk: Path) -> None:
    seen: list[tuple[int, list[Path]]] = []

    class LooksAround(AtStep):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_train_begin(args, state, control, **kwargs)
            seen.append((self.runs, partial_files(small_disk)))

    best = search(small_disk, 4, [SMALL, LARGE, SMALL, SMALL], LooksAround(lambda: None, -1, -1))
    assert states(best) == ["complete", "failed", "complete", "complete"]
    failed = best.run_summary.records[1]
    assert FULL in failed.reason
    assert "save_checkpoint" in failed.traceback
    assert len(failed.reports) == 1
    assert seen == [(0, []), (1, []), (2, []), (3, [])]
    assert best.load_model() is not None
    assert_checkpoint_is_whole(best.checkpoint)
    measured = small_trainer(small_disk / "again", model=best.load_model()).evaluate()["eval_loss"]
    assert measured == pytest.approx(best.objective, rel=1e-6)
    on_disk = assert_disk_and_storage_agree(small_disk / "study")[1]
    assert FULL in on_disk["reason"]
    assert list((small_disk / "study" / "run-1").iterdir()) == [small_disk / "study" / "run-1" / "trial.json"]
    assert_nothing_is_left_over(small_disk / "study")


def test_earlier_checkpoints_of_the_trial_and_of_the_best_one_are_intact(small_disk: Path) -> None:
    """The disk is full when trial 1 writes its second checkpoint: its first one and the best of trial 0 are whole."""
    filler = Filler(small_disk)
    checked: list[str] = []

    class FillsTheDisk(AtStep):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_train_begin(args, state, control, **kwargs)
            if self.runs == 2:
                filler.remove()

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if (self.runs, state.global_step) == (1, 8):
                filler.fill(spare=200_000)  # enough for the records, not for a checkpoint
                for path in small_disk.glob("study/*/checkpoint-*"):
                    assert_checkpoint_is_whole(path)
                    checked.append(path.name)

    best = search(small_disk, 3, [MIDDLE] * 3, FillsTheDisk(lambda: None, -1, -1), keep_checkpoints=None)
    assert sorted(checked) == ["checkpoint-4", "checkpoint-4", "checkpoint-8"]
    assert states(best) == ["complete", "failed", "complete"]
    assert FULL in best.run_summary.records[1].reason
    assert partial_files(small_disk) == []
    left = sorted(str(path.relative_to(small_disk / "study")) for path in small_disk.glob("study/*/checkpoint-*"))
    assert left == [
        "run-0/checkpoint-4",
        "run-0/checkpoint-8",
        "run-1/checkpoint-4",
        "run-2/checkpoint-4",
        "run-2/checkpoint-8",
    ]
    for path in small_disk.glob("study/*/checkpoint-*"):
        assert_checkpoint_is_whole(path)
    assert_disk_and_storage_agree(small_disk / "study")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return what a search of four small trials tells."""
    return told(search(tmp_path_factory.mktemp("undisturbed"), 4, [SMALL] * 4))


def told(best: Any) -> list[Any]:
    return [(record.number, record.params, record.values) for record in best.run_summary.records]


@pytest.mark.parametrize("storage", [None, "journal"])
@pytest.mark.parametrize(("moment", "spare"), [("begin", 0), ("step", 0), ("end", 0), ("end", 16 * 1024)])
def test_a_disk_that_is_full_for_the_storage_too_ends_the_search_and_nothing_is_lost(
    small_disk: Path, undisturbed: list[Any], storage: Any, moment: str, spare: int
) -> None:
    filler = Filler(small_disk)
    fills_the_disk = AtMoment(lambda: filler.fill(spare), moment)
    with pytest.raises(Exception, match=FULL_FOR_ALL):
        search(small_disk, 4, [SMALL] * 4, fills_the_disk, storage=storage)
    assert_checkpoint_is_whole(small_disk / "study" / "run-0" / "checkpoint-8")
    assert records_on_disk(small_disk / "study")[0]["state"] == "complete"
    assert partial_files(small_disk) == []

    filler.fill()
    with pytest.raises(Exception, match=FULL_FOR_ALL):
        search(small_disk, 4, [SMALL] * 4, storage=storage)
    assert partial_files(small_disk) == []

    filler.remove()
    best = search(small_disk, 4, [SMALL] * 4, storage=storage)
    assert told(best) == undisturbed
    assert_disk_and_storage_agree(small_disk / "study", storage)
    assert_nothing_is_left_over(small_disk / "study")


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
@pytest.mark.parametrize("moment", ["begin", "step", "end"])
def test_a_full_disk_of_the_storage_alone_is_not_the_fault_of_a_trial(
    small_disk: Path, tmp_path: Path, undisturbed: list[Any], kind: str, moment: str
) -> None:
    storage = f"sqlite:///{small_disk / 'mine.db'}" if kind == "sqlite" else str(small_disk / "mine.log")
    filler = Filler(small_disk)
    with pytest.raises(HpsearchError, match=FULL_FOR_ALL):
        search(tmp_path, 4, [SMALL] * 4, AtMoment(filler.fill, moment), storage=storage)
    left = [record["state"] for record in records_on_disk(tmp_path / "study")]
    assert "failed" not in left
    filler.remove()
    counts = AtStep(lambda: None, -1, -1)
    best = search(tmp_path, 4, [SMALL] * 4, counts, storage=storage)
    assert told(best) == undisturbed
    assert counts.runs + 1 == 4 - left.count("complete"), "a trial that has ended does not run again"
    assert_disk_and_storage_agree(tmp_path / "study", storage)
    assert_nothing_is_left_over(tmp_path / "study")
