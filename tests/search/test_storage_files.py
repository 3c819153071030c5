"""The files of a storage in a study's folder: those beside it go with it, and a check of them changes nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpsearch import SpaceError, StudyError
from hpsearch.cli import main
from hpsearch.ledger import checkup
from hpsearch.search.store.storage_files import STORAGE_FILES, why_not_opened
from hpsearch.system.temporary_folders import remove_scratch_of_the_dead
from tests.support.searching import HearsNotices, load
from tests.support.small_search import interrupted_study, records_of, search
from tests.support.small_trainer import small_trainer

BESIDE = ("-wal", "-shm", "-journal")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one trial that has ended, and one that was interrupted."""
    return interrupted_study(tmp_path_factory.mktemp("whole"), 2)


@pytest.fixture
def study(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, whose database nobody has open."""
    copy = Path(shutil.copytree(whole, tmp_path / "study", symlinks=True))
    with contextlib.closing(sqlite3.connect(copy / "study.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return copy


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


FILES: dict[str, tuple[Callable[[Path], Any], str | None]] = {
    "no file": (lambda s: None, None),
    "a file": (lambda s: (s / "study.db").touch(), None),
    "a link to a file in the folder": (lambda s: ((s / "data.db").touch(), link(s / "study.db", s / "data.db")), None),
    "a link to no file": (lambda s: link(s / "study.db", s / "data.db"), "study.db is not a file"),
    "a link out of the folder": (lambda s: link(s / "study.db", s.parent / "mine.db"), "study.db is a link that leads"),
    "a folder": (lambda s: (s / "study.db").mkdir(), "study.db is not a file"),
    **{
        f"{ending} that is a link": (lambda s, e=ending: link(s / f"study.db{e}", s / "trial.json"), f"{ending} is a")
        for ending in BESIDE
    },
    "a folder beside it": (lambda s: (s / "study.db-journal").mkdir(), "study.db-journal is not a file"),
    "a link beside what it leads to": (
        lambda s: (
            (s / "data.db").touch(),
            link(s / "study.db", s / "data.db"),
            link(s / "data.db-journal", s.parent / "mine"),
        ),
        "data.db-journal is a link",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_storage_s_file_is_opened_unless_it_or_one_beside_it_leads_elsewhere(tmp_path: Path, case: str) -> None:
    act, reason = FILES[case]
    folder = tmp_path / "study"
    folder.mkdir()
    act(folder)
    found = why_not_opened(folder / "study.db", folder)
    assert (found is None) is (reason is None)
    assert reason is None or reason in str(found)


def test_a_database_that_is_a_link_to_a_file_in_the_folder_is_used(study: Path, capfd: Any) -> None:
    (study / "study.db").rename(study / "data.db")
    (study / "study.db").symlink_to("data.db")
    assert main(["doctor", str(study)]) == 0
    events = HearsNotices()
    best = search(study.parent, 3, progress=events, trainer={"save_strategy": "epoch"})
    assert len(records_of(best)) == 3
    assert not [each for each in events.notes if each.startswith("DAMAGED: ")]
    assert (study / "study.db").is_symlink()
    assert len(load(study, f"sqlite:///{study}/data.db").trials) == 3


def test_a_damaged_database_is_set_aside_with_all_files_beside_it(study: Path) -> None:
    """A rollback journal that stays would be rolled back into the database that is built again."""
    (study / "study.db").unlink()
    (study / "study.db").mkdir()
    for ending in BESIDE:
        (study / f"study.db{ending}").write_bytes(ending.encode())
    search(study.parent, 2, trainer={"save_strategy": "epoch"})
    assert [(study / f"study.db.damaged{each}").read_bytes() for each in BESIDE] == [b"-wal", b"-shm", b"-journal"]
    assert not (study / "study.db-journal").exists()


def test_a_study_that_was_refused_in_its_first_trial_is_replaced_with_all_files_of_its_storage(tmp_path: Path) -> None:
    def refused(trial: Any) -> Any:
        raise SpaceError("refused")

    with pytest.raises(SpaceError, match="refused"):
        small_trainer(tmp_path).hyperparameter_search(refused, n_trials=1, progress=False)
    (tmp_path / "study" / "study.log-journal").write_text("an earlier one")
    assert len(records_of(search(tmp_path, 1))) == 1
    assert not (tmp_path / "study" / "study.log-journal").exists()


@pytest.mark.parametrize("name", STORAGE_FILES)
def test_no_run_has_the_name_of_a_storage_s_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(StudyError, match="the name of a file of the study"):
        search(tmp_path, 1, hp_name=lambda trial: name)


# `hpsearch doctor` while others write.


def content(study: Path) -> dict[str, tuple[bytes, int]]:
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in study.rglob("*") if each.is_file()}


@contextlib.contextmanager
def writer(study: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Open the database of a study as another process would, with a cache so small that it writes before a commit."""
    with contextlib.closing(sqlite3.connect(study / "study.db", isolation_level=None)) as connection:
        assert connection.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode.lower(),)
        connection.execute("PRAGMA cache_size=1")
        yield connection


def add_rows(connection: sqlite3.Connection, first: int = 0) -> None:
    """Write many pages."""
    for number in range(first, first + 200):
        value = f"1{'0' * 2000}"
        connection.execute(
            "INSERT INTO trial_user_attributes VALUES (?, 1, ?, ?)", (1000 + number, f"k{number}", value)
        )


def remove_rows(connection: sqlite3.Connection) -> None:
    """Free pages that are part of a tree before."""
    connection.execute("DELETE FROM trial_user_attributes WHERE key LIKE 'k%' AND trial_user_attribute_id % 3")


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
@pytest.mark.parametrize("begins", ["BEGIN", "BEGIN EXCLUSIVE"])
def test_a_check_while_a_transaction_is_open_finds_no_damage_and_changes_nothing(
    study: Path, mode: str, begins: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with writer(study, mode) as connection:
        add_rows(connection)
        connection.execute(begins)
        remove_rows(connection)
        before = content(study)
        assert main(["doctor", str(study)]) == 0, capfd.readouterr()
        assert content(study) == before


@pytest.mark.parametrize(("mode", "name"), [("WAL", "study.db"), ("WAL", "study.db-wal"), ("DELETE", "study.db")])
def test_a_check_while_the_database_changes_finds_no_damage(
    study: Path, mode: str, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """After one of the files was copied, a writer commits, writes all back and begins again."""
    original, counts = shutil.copyfile, itertools.count(200, 200)
    with writer(study, mode) as connection:

        def copyfile(source: Any, target: Any, **options: Any) -> Any:
            copied = original(source, target, **options)
            if Path(source).name == name:
                remove_rows(connection)
                add_rows(connection, next(counts))
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                add_rows(connection, next(counts))
            return copied

        add_rows(connection)
        monkeypatch.setattr(shutil, "copyfile", copyfile)
        names = sorted(content(study))
        assert main(["doctor", str(study)]) == 0, capfd.readouterr()
        assert sorted(content(study)) == names


def test_a_hot_journal_of_a_killed_writer_is_no_damage_and_stays(study: Path, tmp_path: Path) -> None:
    with writer(study, "DELETE") as connection:
        add_rows(connection)
        connection.execute("BEGIN")
        remove_rows(connection)
        killed = Path(shutil.copytree(study, tmp_path / "killed" / "study"))
    assert (killed / "study.db-journal").exists()
    before = content(killed)
    assert main(["doctor", str(killed)]) == 0
    assert content(killed) == before


def test_a_database_that_is_locked_all_the_time_is_said_not_to_be_checked(
    study: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    original = shutil.copyfile
    monkeypatch.setattr(checkup, "_SECONDS_TO_WAIT", 0)
    with writer(study, "DELETE") as connection:
        connection.execute("BEGIN EXCLUSIVE")

        def copyfile(source: Any, target: Any, **options: Any) -> Any:
            copied = original(source, target, **options)
            if Path(source).name == "study.db":
                add_rows(connection)
            return copied

        monkeypatch.setattr(shutil, "copyfile", copyfile)
        assert main(["doctor", str(study)]) == 1
    assert "study.db cannot be checked now (database is locked): run the same command again" in capfd.readouterr().out


@pytest.mark.process
def test_the_copy_of_a_check_that_is_killed_is_deleted_by_the_next_search_or_check(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(checkup, "why_damaged", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    child = os.fork()
    if child == 0:
        try:
            main(["doctor", str(study)])
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(temporary.rglob("study.db"))) == 1
    remove_scratch_of_the_dead()  # as both do when they begin
    assert list(temporary.iterdir()) == []


def test_a_trial_that_ends_during_a_check_is_no_damage(tmp_path: Path) -> None:
    """The records are read again after the storage."""
    search(tmp_path, 2)
    settings = {"storage": f"sqlite:///{tmp_path}/study/study.db", "study_name": "study"}
    readings = iter([[0], [0, 1]])
    assert checkup.problems_of_storage(tmp_path / "study", settings, lambda: next(readings)) == []
    [problem] = checkup.problems_of_storage(tmp_path / "study", settings, lambda: [0])
    assert "knows trial 1, which no readable folder has" in problem
