"""Optuna's view of a study on disk, from the records of its trials: the storage is not needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState as EngineState

from ..errors import StorageError, StudyError
from ..search.metrics.replicas import without_replicas
from ..search.result.parameter_importances import Importances
from ..search.space.search_space import SearchSpace
from ..search.store.storage_files import DATABASE_FILE, JOURNAL_FILE
from ..search.store.stored_study import StoredStudy
from ..search.trial_record import TrialRecord
from ..system.redaction import HIDDEN, redacted_url
from .importances import importances
from .quiet import quiet_optuna
from .storage import dashboard_command_of, file_of, open_storage, own_file, sqlite_url, storage_url
from .warm_starts import distribution


class StudyFromRecords:
    """Takes the place of the backend that ran a search, in a summary of its folder.

    Args:
        study: as its folder knows it.
        records: of its trials.
        storage: a URL, a journal file or an Optuna storage in place of the one that the folder names.
        trust: open the storage that the folder names also if it lies outside of the folder.
    """

    def __init__(
        self, study: StoredStudy, records: Sequence[TrialRecord], storage: object = None, trust: bool = False
    ) -> None:
        self._study, self._records = study, records
        self._given, self._trust = storage, trust

    def engine_study(self) -> optuna.Study:
        """Open the study's storage, and return Optuna's study.

        Raises:
            StudyError: the storage lies outside of the study's folder, and was neither given nor trusted.
            StorageError: the storage cannot be reached.
        """
        storage, name = self.storage(), self._study.name
        if storage is None:
            raise StorageError(f"The storage of the study {name!r} was in memory, and ended with its process.")
        shown = redacted_url(storage) if isinstance(storage, str) else type(storage).__name__
        if isinstance(storage, str):
            if HIDDEN in unquote(storage):
                raise StorageError(
                    f"The password of {storage} is not on disk: optuna.load_study(study_name={name!r}, storage=...)"
                )
            file = file_of(storage)
            if file is not None and not file.is_file():
                raise StorageError(f"The storage {shown} of the study {name!r} does not exist.")
        try:
            return optuna.load_study(study_name=name, storage=open_storage(storage))
        except KeyError as error:
            raise StorageError(f"The storage {shown} does not know the study {name!r}.") from error

    def storage(self) -> Any:
        """Return the storage that was given, or the URL or journal file that the folder names; None: in memory.

        Raises:
            StudyError: the storage lies outside of the study's folder, and was neither given nor trusted.
        """
        if self._given is not None:
            return self._given
        named = self._study.settings.get("storage")
        if named is None:
            return None
        inside = storage_in_folder(str(named), self._study.folder)
        if inside is None and not self._trust:
            raise outside_of_folder(str(named), "storage=URL or trust=True, in a command --storage URL or --trust")
        return str(named) if inside is None else inside

    def importances(self) -> Importances:
        """Return the share of the objective's variation that each parameter explains, largest first."""
        with quiet_optuna():
            return importances(self._from_records())

    def dashboard_command(self) -> str | None:
        """Return the command line that opens the storage in the dashboard, on the loopback address."""
        storage = self.storage()
        url = storage if storage is None or isinstance(storage, str) else storage_url(storage)
        return None if url is None else dashboard_command_of(url)

    def _from_records(self) -> optuna.Study:
        engine = optuna.create_study(
            directions=[StudyDirection[each.direction.upper()] for each in self._study.objectives]
        )
        known = self._distributions()
        for record in without_replicas(self._records):
            if record.reports and record.values and _are_in(known, record.params):
                engine.add_trial(_trial(record, known))
        return engine

    def _distributions(self) -> dict[str, BaseDistribution]:
        """Return what each parameter could be; of a function, what it was."""
        described = self._study.described_space()
        if isinstance(described, Mapping):
            space = SearchSpace.from_description(described)
            return {name: distribution(each) for name, each in space.all_parameters().items()}
        tried: dict[str, list[object]] = {}
        for record in self._records:
            for name, value in record.params.items():
                tried.setdefault(name, []).append(value)
        return {
            name: _seen(values)
            for name, values in tried.items()
            if not any(isinstance(each, list | dict) for each in values)
        }


def storage_in_folder(storage: str, folder: Path, start: Path = Path()) -> str | None:
    """Return the URL or the journal file of a storage that lies in a study's folder, which may have been moved.

    None if the storage lies elsewhere. Nothing is opened.

    Args:
        storage: as the folder names it: a URL, or the path of a journal file.
        folder: of the study.
        start: where relative paths start.

    Raises:
        StudyError: it is a link that leads out of the folder.
    """
    for name in (DATABASE_FILE, JOURNAL_FILE):
        if unquote(storage).endswith(f"/{name}") and (folder / name).exists():
            return _opens(own_file(folder, name), name == DATABASE_FILE)
    inside = os.path.realpath(folder)
    try:
        file = file_of(storage)
        path = None if file is None else Path(os.path.realpath(start / file))
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return None
    if path is None or not path.is_relative_to(inside):
        return None
    return _opens(own_file(folder, str(path.relative_to(inside))), "://" in storage)


def _opens(file: Path, is_database: bool) -> str:
    return sqlite_url(file.resolve()) if is_database else str(file.resolve())


def outside_of_folder(storage: str, remedy: str) -> StudyError:
    """Return the error for a storage outside of the study's folder that was neither given nor trusted."""
    return StudyError(
        f"The storage {redacted_url(storage)!r} lies outside of the study's folder, so it is opened only if you "
        f"name it, or trust the folder: {remedy}."
    )


def _are_in(known: Mapping[str, BaseDistribution], params: Mapping[str, object]) -> bool:
    """Return whether parameters are those of the space: population-based training goes beyond, lists are in none."""
    try:
        return all(
            name in known and known[name]._contains(known[name].to_internal_repr(each)) for name, each in params.items()
        )
    except (TypeError, ValueError):
        return False


def _seen(values: Sequence[Any]) -> BaseDistribution:
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in values):
        return FloatDistribution(min(values), max(values))
    return CategoricalDistribution(list({repr(each): each for each in values}.values()))


def _trial(record: TrialRecord, known: Mapping[str, BaseDistribution]) -> optuna.trial.FrozenTrial:
    is_single = len(record.values) == 1
    return optuna.trial.create_trial(
        state=EngineState.COMPLETE if record.state.has_result else EngineState.PRUNED,
        params=record.params,
        distributions={name: known[name] for name in record.params},
        values=list(record.values) if record.state.has_result else None,
        intermediate_values=_curve(record) if is_single else {},
    )


def _curve(record: TrialRecord) -> dict[int, float]:
    places = ((each.comparable_resource, each.value) for each in record.reports)
    return {place: value for place, value in places if place is not None}
