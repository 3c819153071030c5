"""Sockets of multiprocessing are made in a temporary folder of ours, and only while trials load data in processes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpsearch.system import temporary_folders as scratch
from hpsearch.system.sockets import keep_sockets_in, keeping_sockets
from tests.support.small_trainer import small_trainer

CONFIG: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder for temporary files; multiprocessing has made nothing there yet."""
    monkeypatch.setitem(CONFIG, "tempdir", None)
    monkeypatch.setattr(scratch, "_of_processes", {})
    with tempfile.TemporaryDirectory(prefix="s") as folder:  # a short path: sockets have no long ones
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        for each in scratch._of_processes.values():
            each.end()
        assert list(Path(folder).iterdir()) == []


def test_the_folder_is_used_in_the_block_and_exists_after_it(temporary: Path) -> None:
    used: list[str] = []
    for _ in range(2):
        with keeping_sockets(is_needed=True):
            used.append(multiprocessing.util.get_temp_dir())
        assert CONFIG["tempdir"] is None
        assert Path(used[-1]).is_dir()
    assert used[0] == used[1]
    assert Path(used[0]).parent == temporary
    shutil.rmtree(used[0])  # as systems do with temporary files that are some days old
    with keeping_sockets(is_needed=True):
        assert Path(multiprocessing.util.get_temp_dir()).is_dir()


def test_a_block_that_needs_none_and_a_program_that_has_one_change_nothing(temporary: Path) -> None:
    with keeping_sockets(is_needed=False):
        assert CONFIG["tempdir"] is None
    CONFIG["tempdir"] = "of the program"
    with keeping_sockets(is_needed=True):
        assert CONFIG["tempdir"] == "of the program"
    assert CONFIG["tempdir"] == "of the program"


def test_a_path_that_is_too_long_for_a_socket_is_not_used() -> None:
    keep_sockets_in(Path("/" + "x" * 100))
    assert CONFIG["tempdir"] is None


@pytest.mark.parametrize(
    ("arguments", "space"), [({"dataloader_num_workers": 1}, {}), ({}, {"dataloader_num_workers": 1})]
)
def test_a_trial_whose_data_are_loaded_in_processes_has_its_sockets_there(
    temporary: Path, tmp_path: Path, arguments: dict[str, Any], space: dict[str, Any]
) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=1, **arguments)

    def suggest(trial: Any) -> dict[str, Any]:
        return {"learning_rate": trial.suggest_float("learning_rate", 0.01, 0.1), **space}

    trainer.hyperparameter_search(suggest, "loss", n_trials=1, progress=False)
    assert len(list(temporary.glob("hpsearch-scratch-*.lock"))) == 1
    assert list(temporary.glob("pymp-*")) == []
    assert CONFIG["tempdir"] is None
