"""The files of a storage in a study's own folder: a database or a journal, and the files that are written beside it."""

from __future__ import annotations

import os
from pathlib import Path

DATABASE_FILE, JOURNAL_FILE = "study.db", "study.log"
# SQLite's write-ahead log, the index of that log, and its rollback journal; the lock of a journal.
_BESIDE = ("-wal", "-shm", "-journal", ".flock")
STORAGE_FILES = tuple(f"{name}{ending}" for name in (DATABASE_FILE, JOURNAL_FILE) for ending in ("", *_BESIDE))


def files_beside(file: Path) -> list[Path]:
    """Return the paths of all files that SQLite, or the lock of a journal, may write beside a file."""
    return [file.with_name(f"{file.name}{ending}") for ending in _BESIDE]


def existing_files(file: Path) -> list[Path]:
    """Return a storage's file and the files beside it, those that exist."""
    return [each for each in (file, *files_beside(file)) if os.path.lexists(each)]


def why_not_opened(file: Path, folder: Path) -> str | None:
    """Return why the file of a storage must not be opened, in words; None if it may be opened or made.

    The file may be a link to another one in the study's folder. Of the files beside it none may be a link: SQLite and
    the lock make none.

    Args:
        file: of the storage.
        folder: of the study.
    """
    target = Path(os.path.realpath(file))
    if not target.is_relative_to(os.path.realpath(folder)):
        return f"{file.name} is a link that leads out of the study's folder"
    beside = [*files_beside(file), *files_beside(target)]  # SQLite follows the link first
    links = [each.name for each in beside if each.is_symlink()]
    if links:
        return f"{links[0]} is a link, and links are not followed"
    wrong = [each.name for each in (file, *beside) if os.path.lexists(each) and not each.is_file()]
    return f"{wrong[0]} is not a file" if wrong else None
