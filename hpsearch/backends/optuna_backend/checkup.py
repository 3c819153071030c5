"""Whether the storage in a study's folder is sound: a copy of it is looked at, and nothing is written to the folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import optuna

from .learning import ORIGIN
from .quiet import quiet_optuna
from .rebuilding import files_of, was_made_in, why_damaged
from .storage import DATABASE_FILE, JOURNAL, JOURNAL_FILE, open_storage

_AGAIN = "make the call of the search again: it builds the storage again from the folders of the trials"


def problems_of_storage(folder: Path, settings: Mapping[str, Any], numbers: Collection[int]) -> list[str]:
    """Return what is wrong with the storage in a study's folder, in one line each; nothing of a storage elsewhere.

    Args:
        folder: of the study.
        settings: what `study.json` holds.
        numbers: of the trials whose records can be read.
    """
    own = [each for each in (None, JOURNAL) if was_made_in(settings, each)]
    if not own:
        return []
    [storage] = own
    file = DATABASE_FILE if storage is None else JOURNAL_FILE
    found = files_of(storage, folder)
    if folder / file not in found:
        return [f"{file} is missing; {_AGAIN}"] if numbers else []
    links = [each.name for each in found if each.is_symlink() or not each.is_file()]
    if links:
        return [f"{links[0]} is not a file, or a link; {_AGAIN}, and sets {links[0]} aside"]
    with tempfile.TemporaryDirectory(prefix="hpsearch-") as copy:
        for each in found:
            if not each.name.endswith("-shm"):
                shutil.copy2(each, copy)
        reason = why_damaged(storage, Path(copy), settings["study_name"])
        if reason is not None:
            return [f"{file} is damaged ({reason}); {_AGAIN}, and sets {file} aside"]
        known = _ended_in(storage, Path(copy), settings["study_name"])
    unknown, lost = sorted(set(numbers) - known.all), sorted(known.ended - set(numbers))
    return [
        *([f"{file} does not know the trials {_shown(unknown)}; {_AGAIN}"] if unknown else []),
        *([f"{file} knows the trials {_shown(lost)}, whose folders are missing or unreadable"] if lost else []),
    ]


class _Known:
    """The numbers of all trials that a storage knows, and of those that have ended."""

    def __init__(self, trials: list[optuna.trial.FrozenTrial]) -> None:
        self.all = {each.number for each in trials}
        self.ended = {each.number for each in trials if each.state.is_finished() and ORIGIN not in each.user_attrs}


def _ended_in(storage: Any, folder: Path, name: str) -> _Known:
    with quiet_optuna():
        opened = open_storage(storage, folder)
        try:
            known = any(each.study_name == name for each in optuna.get_all_study_summaries(opened))
            return _Known(optuna.load_study(study_name=name, storage=opened).get_trials() if known else [])
        finally:
            engine = getattr(getattr(opened, "_backend", None), "engine", None)
            if engine is not None:
                engine.dispose()


def _shown(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (" and more" if len(numbers) > 5 else "")
