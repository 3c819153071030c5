"""A small disk of its own for a test, which can be full, and searches whose checkpoints do or do not fit on it."""

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

from hpsearch import Categorical
from tests.support.search_processes import RATE
from tests.support.small_trainer import TwoLayers, small_trainer

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


def enlarge(disk: Path) -> None:
    """Give a small disk enough space for all checkpoints."""
    subprocess.run(["mount", "-o", "remount,size=128m", str(disk)], check=True, timeout=10)
