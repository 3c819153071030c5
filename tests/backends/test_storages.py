"""Where studies are stored: SQLite, a journal file, PostgreSQL; what is shown of it, and what happens without it."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import shlex
import sqlite3
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import optuna
import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages.journal import JournalFileBackend

from hpsearch import BestRun, HpsearchError, MissingPackageError, SearchInterrupted, StorageError, StudyError
from hpsearch.ledger import storage as storage_module
from hpsearch.ledger.storage import close, naming_the_storage, open_storage
from tests.support.postgresql import PostgreSQL, server_or_skip
from tests.support.search_processes import (
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    load,
    records_on_disk,
)
from tests.support.searching import RATE, AtMoment, AtStep, Events, interrupt, states
from tests.support.small_trainer import small_trainer

SECRET = "Geheimnis"


def search(folder: Path, n_trials: int, *callbacks: Any, storage: Any = None, **options: Any) -> Any:
    arguments = {"compute_objective": "loss", "pruner": "none", "progress": False, **options}
    trainer = small_trainer(folder, *callbacks, save_strategy="epoch")
    return trainer.hyperparameter_search(RATE, n_trials=n_trials, storage=storage, **arguments)


def told(best: BestRun) -> list[Any]:
    return [(record.number, record.params, record.values) for record in best.run_summary.records]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return what a search of four trials in the default storage tells."""
    return told(search(tmp_path_factory.mktemp("undisturbed"), 4))


@pytest.fixture(params=["default", "journal", "journal file", "relative file", "sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql_url")()
    monkeypatch.chdir(tmp_path)
    return {
        "default": None,
        "journal": "journal",
        "journal file": str(tmp_path / "mine.log"),
        "relative file": "mine.log",
        "sqlite": f"sqlite:///{tmp_path / 'mine.db'}",
    }[request.param]


def test_a_study_goes_on_in_every_storage(tmp_path: Path, storage: Any, undisturbed: list[Any]) -> None:
    search(tmp_path, 1, storage=storage)
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 4, AtStep(interrupt, run=1, step=2), storage=storage)
    best = search(tmp_path, 4, storage=storage)
    assert told(best) == undisturbed
    records = assert_disk_and_storage_agree(tmp_path / "study", storage)
    assert [record["state"] for record in records] == ["complete"] * 4
    assert_nothing_is_left_over(tmp_path / "study")
    assert (tmp_path / "study" / "study.db").exists() is (storage is None)
    assert (tmp_path / "study" / "study.log").exists() is (storage == "journal")


def test_a_new_database_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, link = [], os.link
    monkeypatch.setattr("os.fsync", lambda file: done.append(os.path.getsize(file)))

    def take_name(partial: Path, path: Path) -> None:
        done.append(path.name)
        link(partial, path)

    monkeypatch.setattr("os.link", take_name)
    close(open_storage(None, tmp_path))
    assert done == [(tmp_path / "study.db").stat().st_size, "study.db"]
    assert [each.name for each in tmp_path.iterdir()] == ["study.db"]
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_making_a_database_waits_for_the_disk_at_none_of_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, statements = sqlite3.connect, list[list[str]]()

    def traced(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        statements.append([])
        connection.set_trace_callback(statements[-1].append)
        return connection

    monkeypatch.setattr("sqlite3.connect", traced)
    inspect.unwrap(storage_module._write_tables)(tmp_path / "study.db")
    assert {each[0].rstrip("; ") for each in statements} == {"PRAGMA synchronous=OFF"}
    assert any("CREATE TABLE" in statement for each in statements for statement in each)


def test_what_is_not_a_storage_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for storage in ("study.db", "", 7, tmp_path / "study.log", f"postgresql:/u:{SECRET}@h/x"):
        with pytest.raises(StudyError, match="storage") as caught:
            search(tmp_path, 1, storage=storage)
        assert SECRET not in shown(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("storage", ["nowhere/mine.log", "sqlite:///nowhere/mine.db"])
def test_a_storage_in_a_folder_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError, match=r"nowhere.*cannot be opened"):
        search(tmp_path, 1, storage=storage)
    assert not (tmp_path / "study").exists()


def test_a_study_does_not_change_its_storage(tmp_path: Path) -> None:
    search(tmp_path, 1)
    with pytest.raises(StudyError, match="that the storage does not know"):
        search(tmp_path, 2, storage="journal")
    assert states(search(tmp_path, 2)) == ["complete", "complete"]


@pytest.mark.parametrize("storage", [f"mysql+pymysql://u:{SECRET}@host/x", f"postgresql+pg8000://u:{SECRET}@host/x"])
def test_a_missing_driver_is_named(tmp_path: Path, storage: str) -> None:
    driver = storage.partition(":")[0].partition("+")[2]
    with pytest.raises(MissingPackageError, match=driver) as caught:
        search(tmp_path, 1, storage=storage)
    assert SECRET not in shown(caught.value)
    assert not (tmp_path / "study").exists()


# Passwords.


def shown(error: BaseException) -> str:
    """Return all that a traceback shows of an error and those it came from; source lines are no secret."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join([str(error), *(line for line in lines if not line.startswith("    "))])


def all_that_a_search_shows(best: BestRun, events: Events, log: pytest.LogCaptureFixture, folder: Path) -> str:
    files = [path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()]
    summary = best.run_summary
    return "\n".join([*files, *events.notes, log.text, repr(best), repr(summary), str(summary.dashboard_command())])


@pytest.mark.parametrize("way", ["in the authority", "in the query", "quoted"])
def test_a_password_is_shown_nowhere(
    tmp_path: Path, postgresql: PostgreSQL, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    caplog.set_level(logging.DEBUG)
    url, secrets = postgresql.new_database(), [postgresql.password]
    if way == "in the query":
        url = url.replace(f":{postgresql.password}@", "@") + f"?password={postgresql.password}"
    if way == "quoted":
        secrets = [f"a@{SECRET}:b/c", quote(f"a@{SECRET}:b/c", safe=""), SECRET]
        postgresql.execute("DROP ROLE IF EXISTS quoted")
        postgresql.execute(f"CREATE ROLE quoted LOGIN SUPERUSER PASSWORD 'a@{SECRET}\\:b/c'")
        url = url.replace(f"hpsearch:{postgresql.password}@", f"quoted:{secrets[1]}@")
    events = Events()
    best = search(tmp_path, 2, storage=url, progress=events)
    assert states(best) == ["complete", "complete"]
    everything = all_that_a_search_shows(best, events, caplog, tmp_path)
    assert f"127.0.0.1:{postgresql.port}" in everything
    for secret in secrets:
        assert secret not in everything


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"postgresql://u:{SECRET}@127.0.0.1:1/x", "refused"),
        (f"postgresql://127.0.0.1:1/x?user=u&password={SECRET}", "refused"),
        (f"postgresql://u:{SECRET}@127.0.0.1:port/x", "cannot be opened"),
        (f"postgresql://u:a@{SECRET}@127.0.0.1:1/x", "%40"),
        (f"postgresql://u:a/{SECRET}@127.0.0.1:1/x", "cannot be opened"),
        (f"postgresql://u:a#{SECRET}@127.0.0.1:1/x", "cannot be opened"),
        (f"postgresql://u:a/{SECRET}@b@127.0.0.1:1/x", "%40"),
        (f"postgresql://127.0.0.1:1/x?user=u&passwd={SECRET}", "cannot be opened"),
        (f"postgresql://127.0.0.1:1/x?user=u&PWD={SECRET}", "cannot be opened"),
        (f"postgresql://127.0.0.1:{SECRET}/x?token={SECRET}", "cannot be opened"),
        (f"postgresql//u:{SECRET}@127.0.0.1:1/x", "is not a URL"),
        (f"nonsense://u:{SECRET}@127.0.0.1:1/x", "nonsense"),
        (f"://u:{SECRET}@127.0.0.1:1/x", "storage"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_without_its_password(tmp_path: Path, url: str, reason: str) -> None:
    with pytest.raises(HpsearchError, match=reason) as caught:
        search(tmp_path, 1, storage=url)
    assert SECRET not in shown(caught.value)
    assert not (tmp_path / "study").exists()


def test_a_wrong_password_is_refused_without_showing_it(tmp_path: Path, postgresql: PostgreSQL) -> None:
    url = postgresql.new_database().replace(postgresql.password, SECRET)
    with pytest.raises(StudyError, match="password authentication failed") as caught:
        search(tmp_path, 1, storage=url)
    assert SECRET not in shown(caught.value)
    assert not (tmp_path / "study").exists()


def test_an_error_of_a_driver_that_repeats_the_password_is_shown_without_it() -> None:
    storage: Any = SimpleNamespace(url=f"postgresql://u:{SECRET}@127.0.0.1:1/x")

    def lose_the_server() -> None:
        try:
            raise ConnectionError(f"connection of u:{SECRET}@127.0.0.1 lost")
        except ConnectionError as error:
            raise StorageInternalError("An exception is raised during the commit.") from error

    said = r"connection of u:\*\*\*@127\.0\.0\.1 lost"
    with pytest.raises(StorageError, match=said) as caught, naming_the_storage(storage):
        lose_the_server()
    assert SECRET not in shown(caught.value)


def test_a_database_that_is_not_there_is_named(tmp_path: Path, postgresql: PostgreSQL) -> None:
    with pytest.raises(StudyError, match='"nowhere" does not exist') as caught:
        search(tmp_path, 1, storage=postgresql.url("nowhere"))
    assert postgresql.password not in shown(caught.value)


# The dashboard.


@pytest.mark.parametrize("storage", ["journal", "mine.log"])
def test_the_dashboard_opens_a_journal_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str) -> None:
    monkeypatch.chdir(tmp_path)
    command = search(tmp_path, 1, storage=storage).run_summary.dashboard_command()
    program, *arguments, path = shlex.split(command)
    assert program.endswith("optuna-dashboard")
    assert arguments == ["--host", "127.0.0.1"]
    assert Path(path).suffix == ".log"
    opened = optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(JournalFileBackend(path)))
    assert [trial.state.name for trial in opened.trials] == ["COMPLETE"]


def test_the_dashboard_opens_postgresql(tmp_path: Path, postgresql: PostgreSQL) -> None:
    url = postgresql.new_database()
    command = search(tmp_path, 1, storage=url).run_summary.dashboard_command()
    program, *arguments = shlex.split(command)
    assert program.endswith("optuna-dashboard")
    assert arguments == ["--host", "127.0.0.1", url.replace(postgresql.password, "***")]


# A server that goes away.


@pytest.fixture(scope="module")
def frail() -> Iterator[PostgreSQL]:
    """Return a server of these tests' own, which they may stop."""
    with server_or_skip() as server:
        yield server


@pytest.mark.process
@pytest.mark.parametrize("moment", ["begin", "step", "end"])
def test_a_server_that_goes_away_ends_the_search_and_nothing_is_lost(
    tmp_path: Path, frail: PostgreSQL, undisturbed: list[Any], moment: str
) -> None:
    url = frail.new_database()
    try:
        with pytest.raises(HpsearchError, match=r"(?s)server closed the connection|refused") as caught:
            search(tmp_path, 4, AtMoment(frail.stop, moment), storage=url)
        assert frail.password not in shown(caught.value)
        left = records_on_disk(tmp_path / "study")
        assert [record["number"] for record in left] == [0, 1]
        assert left[1]["state"] != "failed", "the trial is not to blame"
        with pytest.raises(StudyError, match=r"cannot be opened.*refused") as caught:
            search(tmp_path, 4, storage=url)
        assert frail.password not in shown(caught.value)
        assert records_on_disk(tmp_path / "study") == left
    finally:
        frail.start()
    counts = AtStep(lambda: None, -1, -1)
    best = search(tmp_path, 4, counts, storage=url)
    assert states(best) == ["complete"] * 4
    assert told(best) == undisturbed
    assert counts.runs + 1 == (2 if moment == "end" else 3), "a trial that has ended does not run again"
    assert_disk_and_storage_agree(tmp_path / "study", url)
    assert_nothing_is_left_over(tmp_path / "study")


@pytest.mark.process
@pytest.mark.parametrize("moment", ["begin", "step", "end"])
def test_a_server_that_is_started_again_at_once_is_not_even_noticed(
    tmp_path: Path, frail: PostgreSQL, undisturbed: list[Any], moment: str
) -> None:
    def restart() -> None:
        frail.stop()
        frail.start()

    url = frail.new_database()
    best = search(tmp_path, 4, AtMoment(restart, moment), storage=url)
    assert told(best) == undisturbed
    assert_disk_and_storage_agree(tmp_path / "study", url)
    assert len(load(tmp_path / "study", url).trials) == 4


def test_ctrl_c_while_rows_are_read_is_no_error_of_the_connection_pool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage: Any = open_storage(f"sqlite:///{tmp_path / 'study.db'}")
    pool = storage._backend.engine.pool.logger
    for cause in (KeyboardInterrupt(), RuntimeError()):
        try:
            try:
                raise cause
            finally:
                raise OSError("the cursor cannot be closed")
        except OSError:
            pool.error("Error closing cursor", exc_info=True)
    assert [repr(each.exc_info[1].__context__) for each in caplog.records] == ["RuntimeError()"]
