"""A stored study as the source of a warm start: nothing is created in its storage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.trial import TrialState

from ..errors import StudyError
from ..search.store.study_folder import STUDY_FILE
from ..system.redaction import redacted_url
from ..system.spelling import nearest_name
from .quiet import quiet_optuna
from .storage import file_of, open_storage

_MOST_NAMES = 10
_BEGINNING_OF_SQLITE = b"SQLite format 3\0"


def open_source(place: str | os.PathLike[str], name: str | None, learner: tuple[str | None, str]) -> optuna.Study:
    """Open a study of a storage.

    Args:
        place: the URL of a storage, or a journal file.
        name: of the study; None: the only one there.
        learner: the storage and the name of the study that is to learn: if `name` is None, that one is not meant.

    Raises:
        StudyError: the storage does not exist or cannot be opened, or it is not known which study is meant.
    """
    text = os.fspath(place)
    shown = redacted_url(text)
    _check_exists(text, shown)
    with quiet_optuna():
        storage = open_storage(text, argument="start_from")
        names = sorted(each.study_name for each in storage.get_all_studies())
        is_shared = learner[0] is not None and redacted_url(learner[0]) == shown
        others = [each for each in names if not (is_shared and each == learner[1])]
        candidates = others if name is None else [name]
        if len(candidates) != 1 or candidates[0] not in names:
            raise _not_one(shown, name, names)
        return optuna.load_study(study_name=candidates[0], storage=storage)


def _check_exists(text: str, shown: str) -> None:
    """Check that a storage that is a file exists: opening one that does not would create it."""
    problem, file = f"start_from={shown!r}", Path(text) if "://" not in text else None
    if file is None:
        file = _file_of(text)
        if file is not None and not file.is_file():
            raise StudyError(f"{problem}: the file {str(file)!r} does not exist.")
    elif (file / STUDY_FILE).is_file():
        raise StudyError(f"{problem} is the folder of a study: pass start_from=hpsearch.open_study({text!r}).")
    elif not file.is_file():
        raise StudyError(
            f"{problem} is neither a URL (such as sqlite:///optuna.db) nor a journal file that exists. Allowed are "
            "these, an Optuna study, the summary or best run of a search, and a WarmStart."
        )
    elif _begins_as_sqlite(file):
        raise StudyError(f"{problem} is a database of SQLite: write start_from={f'sqlite:///{text}'!r}.")


def _file_of(url: str) -> Path | None:
    try:
        return file_of(url)
    except Exception:  # it is no URL, as opening it says
        return None


def _begins_as_sqlite(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(_BEGINNING_OF_SQLITE)) == _BEGINNING_OF_SQLITE


def _not_one(shown: str, name: str | None, names: Sequence[str]) -> StudyError:
    listed = ", ".join(map(repr, names[:_MOST_NAMES])) + (", ..." if len(names) > _MOST_NAMES else "")
    if not names:
        return StudyError(f"start_from={shown!r}: the storage holds no study.")
    if name is not None:
        return StudyError(
            f"start_from=WarmStart({shown!r}, study_name={name!r}): the storage holds no study of that name, but "
            f"{listed}.{nearest_name(str(name), names)}"
        )
    return StudyError(
        f"start_from={shown!r}: the storage holds {len(names)} studies: {listed}. Name one: "
        f"start_from=hpsearch.WarmStart({shown!r}, study_name={names[0]!r})."
    )


def warm_start_from(storage: str | None, name: str) -> str:
    """Return the argument by which a search learns from a study in a storage, which may have no URL, as code."""
    if storage is None:
        return f"start_from=optuna.load_study(study_name={name!r}, storage=...)"
    return f"start_from=hpsearch.WarmStart({storage!r}, study_name={name!r})"


def is_of_optuna(study: optuna.Study) -> bool:
    """Return whether Optuna itself has run trials of a study: some have begun, and no search has marked any."""
    trials = [each for each in study.get_trials(deepcopy=False) if each.state is not TrialState.WAITING]
    marks = (name for each in trials for name in each.user_attrs)
    return bool(trials) and not any(name.startswith("hpsearch:") for name in marks)
