"""The storage of an Optuna study: by default SQLite in the study's folder."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shlex
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages.journal import JournalFileBackend

from ..errors import MissingPackageError, StorageError, StudyError
from ..search.store.storage_files import DATABASE_FILE, JOURNAL_FILE, why_not_opened
from ..system.files import PARTIAL_MARK, disk_problem, short_path, sync_file
from ..system.redaction import has_unquoted_at, redacted_text, redacted_url, safe_cause
from ..system.spelling import nearest_name
from .journal import JournalFile

JOURNAL = "journal"
_SECONDS_TO_WAIT_FOR_SQLITE = 60
_ATTEMPTS = 10
_CONTINUES = "Nothing is lost: run the same command again to continue."


def is_in_study_folder(storage: object) -> bool:
    """Return whether a search's argument asks for a storage in the study's own folder."""
    return storage is None or storage == JOURNAL


def own_file(folder: Path, name: str) -> Path:
    """Return a file of the storage in a study's own folder.

    Raises:
        StudyError: the file may not be opened, such as a link that leads out of the folder.
    """
    problem = why_not_opened(folder / name, folder)
    if problem is not None:
        raise StudyError(
            f"The storage {str(folder / name)!r} is not opened: {problem}. Move it away, or pass the intended file "
            "as storage=."
        )
    return folder / name


def open_storage(storage: Any, folder: Path = Path(), argument: str = "storage") -> optuna.storages.BaseStorage:
    """Return the storage that a search's argument asks for.

    Args:
        storage: None: SQLite in the study's folder; ``"journal"``: a journal file there; the name of a journal file,
            ending in ``.log``; a URL of a database; or an Optuna storage object.
        folder: of the study, where the storage lies in it.
        argument: the name of the search's argument, for errors.

    Raises:
        StudyError: the storage is none of these, or cannot be opened.
        MissingPackageError: the database's driver is not installed.
    """
    if isinstance(storage, optuna.storages.BaseStorage):
        return storage
    if storage is None:
        url = sqlite_url(own_file(folder, DATABASE_FILE))
        try:
            return _sqlite(url)
        except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error) as error:
            raise StorageError(f"The storage {url} cannot be opened: {first_cause(error)}. {_CONTINUES}") from error
    if storage == JOURNAL:
        storage = str(own_file(folder, JOURNAL_FILE))
    try:
        if "://" not in storage:
            return _journal(Path(storage))
        if storage.startswith("sqlite"):
            return _sqlite(storage)
        # A server may have ended a connection meanwhile; a file does not.
        return optuna.storages.get_storage(_database(_with_driver(storage), pool_pre_ping=True))
    except ImportError as error:
        extra = ": pip install 'hpsearch[postgresql]'" if storage.startswith("postgresql://") else f" for it. {error}"
        raise MissingPackageError(f"{argument}={redacted_url(storage)!r} needs a driver{extra}") from error
    except Exception as error:
        text = redacted_text(str(error), storage)
        shown = redacted_url(storage)
        raise StudyError(f"{argument}={shown!r} cannot be opened: {text}") from safe_cause(error, storage)


def close(storage: optuna.storages.BaseStorage) -> None:
    """Close the connections to a database: a connection that is closed later would delete files of the next one."""
    engine = getattr(getattr(storage, "_backend", storage), "engine", None)
    if engine is not None:
        engine.dispose()


def check_storage(storage: object) -> None:
    """Check that a search's argument may be a storage, without opening it.

    Raises:
        StudyError: it may not.
    """
    if storage is None or isinstance(storage, optuna.storages.BaseStorage):
        return
    if not isinstance(storage, str):
        raise StudyError(f"storage must be a URL, 'journal', an Optuna storage or None, but got {storage!r}.")
    if storage != JOURNAL and "://" not in storage and not storage.endswith(".log"):
        shown = redacted_url(storage)
        raise StudyError(
            f"storage={shown!r} is not a URL (such as sqlite:///study.db or postgresql://user:password@host/name), "
            f"'journal', or the name of a journal file, which ends in .log.{nearest_name(shown, [JOURNAL])}"
        )
    _check_password(storage)


@contextlib.contextmanager
def naming_the_storage(storage: optuna.storages.BaseStorage) -> Iterator[None]:
    """Turn an error of the storage, such as a lost server or a full disk, into one that names the cause.

    Raises:
        StorageError: in place of Optuna's, which blames the data.
    """
    try:
        yield
    except (StorageInternalError, sqlalchemy.exc.SQLAlchemyError, OSError) as error:
        if isinstance(error, OSError) and disk_problem(error) is None:
            raise
        url = str(getattr(getattr(storage, "_backend", storage), "url", ""))
        first_line = redacted_text(first_cause(error), url)
        raise StorageError(
            f"The storage {storage_url(storage) or type(storage).__name__} failed: {first_line}. {_CONTINUES}"
        ) from safe_cause(error, url)


def first_cause(error: BaseException) -> str:
    """Return the first line of the first error in a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0]


def storage_url(storage: optuna.storages.BaseStorage) -> str | None:
    """Return the address of a storage, its password hidden: a URL, or the path of a journal file.

    None if there is none.
    """
    backend = getattr(storage, "_backend", storage)
    if isinstance(backend, JournalFileBackend):
        return str(backend._file_path)
    url = getattr(backend, "url", None)
    return None if url is None else redacted_url(str(url))


def file_of(url: str) -> Path | None:
    """Return the file of an SQLite database or a journal; None of a server."""
    if "://" not in url:
        return Path(url)
    name = sqlalchemy.make_url(url).database if url.startswith("sqlite") else None
    return None if name is None else Path(name)


def dashboard_command(storage: optuna.storages.BaseStorage) -> str | None:
    """Return the command line that opens a storage in the dashboard, on the loopback address; None if it cannot."""
    url = storage_url(storage)
    return None if url is None else dashboard_command_of(url)


def dashboard_command_of(url: str) -> str:
    """Return the command line that opens the storage of a URL, or of a journal file, in the dashboard.

    Its password is hidden. The program is called by name if the shell finds it, else beside this interpreter.
    """
    program, beside = "optuna-dashboard", Path(sys.executable).with_name("optuna-dashboard")
    if not shutil.which(program) and beside.exists():
        program = shlex.quote(os.path.relpath(beside))
    return f"{program} --host 127.0.0.1 {shlex.quote(redacted_url(short_url(url)))}"


def short_url(url: str) -> str:
    """Return the address of a file as a user would write it: relative if the file lies in the working folder."""
    if url.startswith("/"):
        return short_path(Path(url))
    file = file_of(url) if url.startswith("sqlite:////") else None
    return url if file is None or url != sqlite_url(file) else sqlite_url(Path(short_path(file)))


def _check_password(url: str) -> None:
    """Refuse a password with an '@' that is not quoted: a part of it would be taken for the host."""
    if has_unquoted_at(url):
        raise StudyError(
            f"The storage {redacted_url(url)} has an '@' in its password: write it as %40, or the password would end "
            "there."
        )


def _with_driver(url: str) -> str:
    """Name the driver that is installed in a URL of PostgreSQL that names none: psycopg2, else psycopg."""
    scheme = "postgresql://"
    driver = next((each for each in ("psycopg2", "psycopg") if importlib.util.find_spec(each)), None)
    return url if driver is None or not url.startswith(scheme) else f"postgresql+{driver}://{url[len(scheme) :]}"


def _journal(path: Path) -> optuna.storages.BaseStorage:
    return optuna.storages.JournalStorage(JournalFile(path))


def _sqlite(url: str) -> optuna.storages.BaseStorage:
    """Open an SQLite file with a write-ahead log, and wait for other processes instead of giving up.

    A commit is then one write without a wait for the disk, several times cheaper than the default. A power cut may
    lose the last commits, never the file; a killed process loses nothing.
    """
    name = sqlalchemy.make_url(url).database
    if name not in (None, "", ":memory:") and not Path(str(name)).exists():
        _make_sqlite(Path(str(name)))
    storage = _database(url, connect_args={"timeout": _SECONDS_TO_WAIT_FOR_SQLITE})
    sqlalchemy.event.listen(storage.engine, "connect", _relax_sync)
    storage.engine.dispose()
    return optuna.storages.get_storage(storage)


def _make_sqlite(path: Path) -> None:
    """Make the file with all its tables, whole or not at all; one that another process has made meanwhile stays."""
    partial = path.with_name(f"{PARTIAL_MARK}{os.getpid()}-{path.name}")
    partial.unlink(missing_ok=True)
    try:
        _write_tables(partial)
        sync_file(partial)
        _put_in_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _write_tables(path: Path) -> None:
    """Write a database with Optuna's tables, without waiting for the disk: the caller syncs the file."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path)
        connection.executescript("PRAGMA synchronous=OFF; PRAGMA journal_mode=MEMORY")
        return connection

    optuna.storages.RDBStorage(sqlite_url(path), engine_kwargs={"creator": connect}).engine.dispose()
    with contextlib.closing(connect()) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def _put_in_place(partial: Path, path: Path) -> None:
    """Give a file its name, unless there is one of that name."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            os.replace(partial, path)


def sqlite_url(path: Path) -> str:
    """Return the URL of a file: as it is written by hand, unless its name has characters that mean something there."""
    plain = f"sqlite:///{path}"
    if sqlalchemy.make_url(plain).database == str(path) and "{" not in plain:  # braces mean something to Optuna
        return plain
    return sqlalchemy.URL.create("sqlite", database=str(path)).render_as_string()


def _database(url: str, **engine: object) -> optuna.storages.RDBStorage:
    """Open a database; of processes that make its tables at the same moment all but one fail, so try again."""
    for attempt in range(_ATTEMPTS):
        try:
            storage = optuna.storages.RDBStorage(url, engine_kwargs=engine)
            pool_logger: Any = storage.engine.pool.logger
            pool_logger.addFilter(_is_no_interruption)
            return storage
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError):
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(0.2)
    raise AssertionError("the last attempt returns or raises")


def _is_no_interruption(logged: logging.LogRecord) -> bool:
    """Return whether a log record has another cause than Ctrl-C, which may come while rows are read."""
    error = logged.exc_info[1] if logged.exc_info else None
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return False
        error = error.__cause__ or error.__context__
    return True


def _relax_sync(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")
