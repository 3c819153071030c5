"""Check the storage in a study's folder, on a copy: nothing in the folder changes."""

from __future__ import annotations

import filecmp
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path

import optuna

from ..search.store.storage_files import JOURNAL_FILE, existing_files, why_not_opened
from ..system.json_types import JsonObject
from ..system.temporary_folders import scratch_folder
from .quiet import quiet_optuna
from .rebuilding import first_line, is_damage, own_path, was_made_in, why_damaged
from .storage import JOURNAL, close, open_storage
from .warm_starts import ORIGIN

_SECONDS_TO_WAIT = 5.0
_AGAIN = "repeat the call of the search: it rebuilds the storage from the folders of the trials"


def problems_of_storage(folder: Path, settings: JsonObject, read_numbers: Callable[[], Collection[int]]) -> list[str]:
    """Return the problems of the storage in a study's folder, in one line each; a storage elsewhere is not checked.

    A search may be at work in the study meanwhile.

    Args:
        folder: of the study.
        settings: what `study.json` holds.
        read_numbers: returns the numbers of the trials whose records can be read now.
    """
    own = [each for each in (None, JOURNAL) if was_made_in(settings, each)]
    if not own:
        return []
    [storage] = own
    path, numbers = own_path(storage, folder), set(read_numbers())
    file = path.name
    if not os.path.lexists(path):
        return [f"{file} is missing; {_AGAIN}"] if numbers else []
    problem = why_not_opened(path, folder)
    if problem is not None:
        return [f"{problem}; {_AGAIN}, and renames {file}"]
    with scratch_folder() as copy:
        reason = _why_not_copied(path.resolve(), copy / file)
        if reason is not None:
            return [f"{file} cannot be checked now ({reason}): run the same command again"]
        reason = why_damaged(storage, copy, settings["study_name"])
        if reason is not None:
            return [f"{file} is damaged ({reason}); {_AGAIN}, and renames {file}"]
        try:
            known = _ended_in(storage, copy, settings["study_name"])
        except Exception as error:  # no damage, but Optuna cannot read it: it may be of another version
            return [
                f"{file} cannot be read ({first_line(error)}); if another version of Optuna created it, use "
                "that version"
            ]
    # A running search writes the record of a trial after the storage knows it, and before it has ended there.
    unknown, lost = sorted(numbers - known.all), sorted(known.ended - set(read_numbers()))
    remedy = "" if numbers else f": restore them, or delete {file} to start again"
    return [
        *([f"{file} does not know {_shown(unknown)}; {_AGAIN}"] if unknown else []),
        *([f"{file} knows {_shown(lost)}, which no readable folder has{remedy}"] if lost else []),
    ]


def _why_not_copied(file: Path, copy: Path) -> str | None:
    """Copy a storage as it is at one moment, and change nothing beside it; return why that is impossible now, if it is.

    A database that nobody has written to meanwhile is copied file by file: opening it could change the files beside it.
    Else another process has it open, and SQLite copies it under its own locks.
    """
    try:
        if _is_copied_at_rest(file, copy) or copy.name == JOURNAL_FILE:
            return None
        for each in existing_files(copy):
            each.unlink()
        with (
            closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", _SECONDS_TO_WAIT, uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()  # waits for the lock, with a limit
            source.backup(target)
    except sqlite3.Error as error:
        if not is_damage(error):
            return str(error)
        _is_copied_at_rest(file, copy)
    except OSError as error:
        return str(error)
    return None


def _is_copied_at_rest(file: Path, copy: Path) -> bool:
    """Copy the files of a storage; return whether none of them has changed before all were copied."""
    found = {each: each.name.replace(file.name, copy.name, 1) for each in existing_files(file)}
    wanted = {each: copy.with_name(name) for each, name in found.items() if not name.endswith(("-shm", ".flock"))}
    try:
        for each, target in wanted.items():
            shutil.copyfile(each, target)
        same = all(filecmp.cmp(each, target, shallow=False) for each, target in wanted.items())
    except FileNotFoundError:  # SQLite has deleted its own file
        return False
    return same and existing_files(file) == list(found)


class _Known:
    """The numbers of all trials that a storage knows, and of those that have ended."""

    def __init__(self, trials: list[optuna.trial.FrozenTrial]) -> None:
        self.all = {each.number for each in trials}
        self.ended = {each.number for each in trials if each.state.is_finished() and ORIGIN not in each.user_attrs}


def _ended_in(storage: object, folder: Path, name: str) -> _Known:
    with quiet_optuna():
        opened = open_storage(storage, folder)
        try:
            known = any(each.study_name == name for each in optuna.get_all_study_summaries(opened))
            return _Known(optuna.load_study(study_name=name, storage=opened).get_trials() if known else [])
        finally:
            close(opened)


def _shown(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (" and more" if len(numbers) > 5 else "")
    return f"trial {shown}" if len(numbers) == 1 else f"trials {shown}"
