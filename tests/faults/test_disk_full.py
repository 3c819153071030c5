"""A disk that is full ends the search, costs no trial, and what was written before stays whole."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpsearch import StorageError
from hpsearch.cli.main import main
from tests.support.search_processes import (
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    records_on_disk,
)
from tests.support.searching import AtMoment, AtStep, states
from tests.support.small_disk import (
    FULL,
    FULL_FOR_ALL,
    LARGE,
    MIDDLE,
    SMALL,
    Filler,
    assert_checkpoint_is_whole,
    enlarge,
    partial_files,
    search,
)
from tests.support.small_disk import small_disk as small_disk

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(("n_jobs", "named"), [(None, "run-1"), (2, r"run-\d")])
def test_a_checkpoint_that_does_not_fit_on_the_disk_ends_the_search_and_is_not_the_fault_of_the_trial(
    small_disk: Path, n_jobs: int | None, named: str
) -> None:
    """With two workers, the other trial may be the one that meets the disk which trial 1 has filled."""
    hidden = [SMALL, LARGE, SMALL, SMALL]
    with pytest.raises(StorageError, match=rf"{named}\b.*cannot be written.*{FULL}.*the same call continues"):
        search(small_disk, 4, hidden, n_jobs=n_jobs)
    left = {record["number"]: record for record in records_on_disk(small_disk / "study")}
    assert left[1]["state"] == "interrupted"
    assert "failed" not in [each["state"] for each in left.values()]
    assert partial_files(small_disk) == []

    enlarge(small_disk)
    best = search(small_disk, 4, hidden, n_jobs=n_jobs)
    assert states(best) == ["complete"] * 4
    assert_disk_and_storage_agree(small_disk / "study")
    assert_nothing_is_left_over(small_disk / "study")


@pytest.fixture
def read_only(small_disk: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a read-only view of a disk with a study of one trial."""
    search(small_disk, 1, [SMALL])
    folder = tmp_path / "read only"
    folder.mkdir()
    subprocess.run(["mount", "--bind", str(small_disk), str(folder)], check=True, timeout=10)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True, timeout=10)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=10)


def test_a_disk_that_is_read_only_is_refused_before_the_first_trial_and_can_be_read(
    read_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = AtStep(lambda: None, -1, -1)
    for folder in (read_only, read_only / "new"):
        with pytest.raises(StorageError, match=r"(?s)read only.*cannot be written.*Read-only file system.*continues"):
            search(folder, 2, [SMALL] * 2, trials)
    assert trials.runs == -1
    study = str(read_only / "study")
    for command in (["show", study], ["best", study], ["report", study, "--output", str(tmp_path / "report.html")]):
        assert main(command) == 0, capsys.readouterr()
    assert (tmp_path / "report.html").is_file()


def test_earlier_checkpoints_of_the_trial_and_of_the_best_one_are_intact(small_disk: Path) -> None:
    """The disk is full when trial 1 writes its second checkpoint: its first one and the best of trial 0 are whole."""
    filler = Filler(small_disk)
    checked: list[str] = []

    class FillsTheDisk(AtStep):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if (self.runs, state.global_step) == (1, 8):
                filler.fill(spare=200_000)  # enough for the records, not for a checkpoint
                for path in small_disk.glob("study/*/checkpoint-*"):
                    assert_checkpoint_is_whole(path)
                    checked.append(path.name)

    with pytest.raises(StorageError, match=FULL):
        search(small_disk, 3, [MIDDLE] * 3, FillsTheDisk(lambda: None, -1, -1), keep_checkpoints=None)
    assert sorted(checked) == ["checkpoint-4", "checkpoint-4", "checkpoint-8"]
    assert [record["state"] for record in records_on_disk(small_disk / "study")] == ["complete", "interrupted"]
    filler.remove()
    steps = AtStep(lambda: None, -1, -1)
    best = search(small_disk, 3, [MIDDLE] * 3, steps, keep_checkpoints=None)
    assert states(best) == ["complete"] * 3
    assert steps.runs == 1, "trial 1 resumes from its checkpoint, trial 0 does not run again"
    assert partial_files(small_disk) == []
    left = sorted(str(path.relative_to(small_disk / "study")) for path in small_disk.glob("study/*/checkpoint-*"))
    assert left == [
        "run-0/checkpoint-4",
        "run-0/checkpoint-8",
        "run-1/checkpoint-4",
        "run-1/checkpoint-8",
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
    with pytest.raises(StorageError, match=FULL_FOR_ALL):
        search(small_disk, 4, [SMALL] * 4, fills_the_disk, storage=storage)
    assert_checkpoint_is_whole(small_disk / "study" / "run-0" / "checkpoint-8")
    assert records_on_disk(small_disk / "study")[0]["state"] == "complete"
    assert partial_files(small_disk) == []

    filler.fill()
    with pytest.raises(StorageError, match=FULL_FOR_ALL):
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
    with pytest.raises(StorageError, match=FULL_FOR_ALL):
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
