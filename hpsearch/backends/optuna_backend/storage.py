"""Where an Optuna study is stored: SQLite in the study folder, unless the user says otherwise."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy

from ...errors import StudyError

DATABASE_FILE = "study.db"


def open_storage(storage: Any) -> optuna.storages.BaseStorage:
    """Return an Optuna storage object as it is, or one made from a URL.

    Raises:
        StudyError: the storage is neither, or cannot be opened.
    """
    if isinstance(storage, optuna.storages.BaseStorage):
        return storage
    if not isinstance(storage, str):
        raise StudyError(f"storage must be a URL, an Optuna storage or None, but got {storage!r}.")
    try:
        return optuna.storages.get_storage(storage)
    except Exception as error:
        raise StudyError(f"storage={storage!r} cannot be opened: {error}") from error


def storage_url(storage: optuna.storages.BaseStorage) -> str | None:
    """Return the URL that opens the same storage elsewhere, its password hidden; None if there is none."""
    backend = getattr(storage, "_backend", storage)
    url = getattr(backend, "url", None)
    return None if url is None else sqlalchemy.make_url(str(url)).render_as_string(hide_password=True)


def sqlite_storage(folder: Path) -> optuna.storages.BaseStorage:
    """Open the SQLite storage in a study's folder, with a write-ahead log.

    A commit is then one write without a wait for the disk, several times cheaper than the default. A power cut may
    lose the last commits, never the file; a killed process loses nothing.
    """
    path = folder / DATABASE_FILE
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    sqlalchemy.event.listen(storage.engine, "connect", _relax_sync)
    storage.engine.dispose()
    return optuna.storages.get_storage(storage)


def _relax_sync(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")
