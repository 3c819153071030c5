"""A storage in the study's own folder that was lost or is damaged: it is built again from the records of the trials.

The records decide: whatever a storage knows of a trial that has ended, its record knows too. What a sampler of Optuna
has written there for itself, such as the places of a grid, is lost.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from ..errors import HpsearchError, SpaceError, StorageError, StudyError
from ..search.space.parameters import Parameter
from ..search.store.checked_json import printable
from ..search.store.storage_files import DATABASE_FILE, JOURNAL_FILE, existing_files, why_not_opened
from ..search.study import Study
from ..search.trial import FixedTrial
from ..search.trial_record import TrialRecord, TrialState
from .ledger import attributes_of
from .quiet import quiet_optuna
from .storage import close, file_of, open_storage
from .warm_starts import distribution

# Building it again would take longer than a search does.
_MOST_MISSING = 10_000
# Where Optuna keeps the values of a trial that has been given them.
_GIVEN = "fixed_params"
# Errors of SQLite: a table or column is missing, a page is damaged, the file is no database.
_DAMAGE = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MADE_OF = {TrialState.PRUNED: EngineState.PRUNED, TrialState.FAILED: EngineState.FAIL}


def set_aside_damaged(storage: object, study: Study) -> list[str]:
    """Rename the storage in the study's folder if it cannot be read; return what was done, in words.

    The caller holds the study's lock, and no other search is at work in the folder.

    Args:
        storage: the argument of the search: None for the database in the folder, or ``"journal"``.
        study: the settings.
    """
    file = own_path(storage, study.folder)
    found, reason = existing_files(file), why_damaged(storage, study.folder, study.name)
    if reason is None:
        return []
    aside = _free_name(file)
    for each in found:
        with contextlib.suppress(FileNotFoundError):  # SQLite has just deleted its own file
            each.rename(each.with_name(f"{aside}{each.name.removeprefix(file.name)}"))
    return [f"DAMAGED: {file.name} ({reason}); it was renamed to {aside}"]


def own_path(storage: object, folder: Path) -> Path:
    """Return the file of the storage in a study's folder: of the database for None, else of the journal."""
    return folder / (DATABASE_FILE if storage is None else JOURNAL_FILE)


def why_damaged(storage: object, folder: Path, name: str) -> str | None:
    """Return why the storage in a study's folder is damaged; None if it is not, or if there is none.

    Args:
        storage: None for the database, or ``"journal"``.
        folder: of the study.
        name: of the study.
    """
    file = own_path(storage, folder)
    found, problem = existing_files(file), why_not_opened(file, folder)
    if problem is not None:
        return problem
    if file in found:
        return _why_unreadable(storage, folder, name)
    return "the rest of it was deleted" if found and storage is None else None


def _free_name(file: Path) -> str:
    """Return a name that no file beside this one has."""
    names = (f"{file.name}.damaged{'' if count == 1 else f'-{count}'}" for count in range(1, _MOST_MISSING))
    return next(name for name in names if not list(file.parent.glob(f"{name}*")))


def open_own_or_other(storage: object, folder: Path) -> optuna.storages.BaseStorage:
    """Open the storage that a search's argument asks for; see `open_storage`.

    Raises:
        StorageError: the one in the study's folder cannot be opened, for a reason that is no damage.
    """
    try:
        return open_storage(storage, folder)
    except HpsearchError:
        raise
    except Exception as error:
        raise StorageError(
            f"The storage {str(folder / DATABASE_FILE)!r} cannot be opened: {first_line(error)}. Run the same command "
            "again once it can."
        ) from error


def _why_unreadable(storage: object, folder: Path, name: str) -> str | None:
    """Return why a storage in the study's folder is damaged; None if it is not, or if that cannot be determined now."""
    if storage is None:
        reason = _damage_of_sqlite(folder / DATABASE_FILE)
        if reason is not None:
            return reason
    try:
        with quiet_optuna():
            opened = open_storage(storage, folder)
    except Exception as error:  # Optuna reads a journal where it opens it; a database may be of another version
        return first_line(error) if storage is not None and is_damage(_cause(error)) else None
    try:
        with quiet_optuna():
            known = [each.study_name for each in optuna.get_all_study_summaries(opened)]
            trials = (
                optuna.load_study(study_name=name, storage=opened).get_trials(deepcopy=False) if name in known else []
            )
        lacking = sorted({*range(len(trials))} - {each.number for each in trials})
        return f"it lacks trial {lacking[0]}" if lacking else None
    except Exception as error:  # what is damaged may make any part of Optuna fail
        return first_line(error) if is_damage(_cause(error)) else None
    finally:
        close(opened)


def _damage_of_sqlite(file: Path) -> str | None:
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.Error as error:
        return str(error) if is_damage(error) else None
    result = str(found[0][0]).removeprefix("*** in database main ***\n")
    return None if result == "ok" else result.partition("\n")[0]


def is_damage(error: BaseException) -> bool:
    """Return whether an error says that a file is damaged, not that it is locked, or that the disk is full."""
    code = getattr(error, "sqlite_errorcode", None)
    return not isinstance(error, OSError | MemoryError) if code is None else code & 0xFF in _DAMAGE


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """Return the type and the first line of the first error in a chain of causes."""
    cause = _cause(error)
    return printable(f"{type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}")


def was_made_in(settings: Mapping[str, object] | None, storage: object) -> bool:
    """Return whether the settings of a study say that its storage lies in its own folder, which may have been moved."""
    recorded = None if settings is None or not settings.get("storage") else _path(str(settings["storage"]))
    if settings is None or recorded is None:
        return False
    return (recorded.parent.name, recorded.name) == (settings["study_name"], own_path(storage, Path()).name)


def _path(url: str) -> Path | None:
    try:
        return file_of(url)
    except ValueError:  # no URL at all
        return None


def add_missing(engine: optuna.Study, study: Study, records: Sequence[TrialRecord], left_alone: Collection[int]) -> int:
    """Add the trials after the last one that a storage knows; return how many of them there are records of.

    A number that has no record is taken by a trial that does not count, so that it is never given again.

    Args:
        engine: Optuna's study.
        study: the settings.
        records: of all trials in the folder.
        left_alone: numbers of trials whose records cannot be read.

    Raises:
        StudyError: the numbers of the trials have gaps that no search makes.
    """
    first, known = len(engine.get_trials(deepcopy=False)), {each.number: each for each in records}
    numbers = range(first, max([*known, *left_alone], default=-1) + 1)
    if len(numbers) - len(known) > _MOST_MISSING:
        raise StudyError(
            f"The study {study.name!r} has {len(known)} trials with numbers up to {numbers[-1]}, so its storage "
            f"cannot be rebuilt. Move the folders of those with the largest numbers out of {str(study.folder)!r}."
        )
    place = sum(1 for _ in _begun_with(study, [known[each] for each in sorted(known) if each < first]))
    places = _begun_with(study, [known[each] for each in numbers if each in known], place)
    for number in numbers:
        record = known.get(number, TrialRecord(number, "", TrialState.REFUSED, {}))
        engine.add_trial(_stored(record, study, places.get(number)))
    return sum(number in known for number in numbers)


def _begun_with(study: Study, records: Sequence[TrialRecord], place: int = 0) -> dict[int, int]:
    """Return which of the parameters in `start_with` trials have begun with, by number: they come in order."""
    found: dict[int, int] = {}
    for record in records:
        if place < len(study.start_with) and study.start_with[place].items() <= record.params.items():
            found[record.number] = place
            place += 1
    return found


def _stored(record: TrialRecord, study: Study, place: int | None) -> FrozenTrial:
    """Return a trial as the storage would hold it."""
    asked = _parameters_of(record, study)
    has_values = record.state.has_result and bool(record.values) and not any(map(math.isnan, record.values))
    state = EngineState.RUNNING
    if record.state.is_counted or record.state is TrialState.REFUSED:
        state = EngineState.COMPLETE if has_values else _MADE_OF.get(record.state, EngineState.FAIL)
    others = {name: value for name, value in record.params.items() if name not in asked}
    curve = {each.comparable_resource: each.value for each in record.reports if each.comparable_resource is not None}
    return optuna.trial.create_trial(
        state=state,
        values=list(record.values) if state is EngineState.COMPLETE else None,
        params={name: record.params[name] for name in asked},
        distributions={name: distribution(each) for name, each in asked.items()},
        user_attrs=attributes_of(record, place),
        system_attrs={_GIVEN: others} if state is EngineState.RUNNING and others else None,
        intermediate_values=curve if len(study.objectives) == 1 else None,
        constraints={name: by for name, by in record.violations.items() if not math.isnan(by)},
    )


def _parameters_of(record: TrialRecord, study: Study) -> dict[str, Parameter]:
    """Return the parameters that the space asks for, of those that a trial has; user code may have asked for more."""
    asked = _Asked(record)
    with contextlib.suppress(SpaceError):  # the trial ended before it had the next one, or the space has changed
        study.suggest(asked)
    return asked.parameters


class _Asked(FixedTrial):
    """A trial that has its values, and remembers which parameters it was asked for."""

    def __init__(self, record: TrialRecord) -> None:
        super().__init__(record.params, record.number)
        self.parameters: dict[str, Parameter] = {}

    def suggest(self, name: str, parameter: Parameter) -> object:
        """Return the value that the trial has, if the parameter can have it."""
        value = super().suggest(name, parameter)
        if not parameter.contains(value):
            raise SpaceError(f"{name}={value!r} is not in {parameter!r}.")
        self.parameters[name] = parameter
        return value
