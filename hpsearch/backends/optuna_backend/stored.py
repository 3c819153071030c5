"""What Optuna tells of a study that is on disk, without its storage: from the records of its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState as EngineState

from ...errors import StorageError
from ...redaction import HIDDEN, redacted_url
from ...search.space import SearchSpace
from ...search.stored import StoredStudy
from ...search.trial import TrialRecord
from .importances import importances
from .learning import distribution
from .quiet import quiet_optuna
from .storage import DATABASE_FILE, JOURNAL_FILE, dashboard_command_of, file_of, open_storage, sqlite_url


class StoredEngine:
    """Stands for the backend that ran a search, for a summary of its folder.

    Args:
        study: as its folder knows it.
        records: of its trials.
    """

    def __init__(self, study: StoredStudy, records: Sequence[TrialRecord]) -> None:
        self._study, self._records = study, records

    def engine_study(self) -> optuna.Study:
        """Open the study's storage, and return Optuna's study.

        Raises:
            StorageError: the storage cannot be reached.
        """
        url, name = self.storage(), self._study.name
        if url is None:
            raise StorageError(f"The storage of the study {name!r} was in memory, and is gone.")
        if HIDDEN in unquote(url):
            raise StorageError(
                f"The password of {url} is not on disk: optuna.load_study(study_name={name!r}, storage=...)"
            )
        file = file_of(url)
        if file is not None and not file.is_file():
            raise StorageError(f"The storage {redacted_url(url)} of the study {name!r} is not there.")
        try:
            return optuna.load_study(study_name=name, storage=open_storage(url))
        except KeyError as error:
            raise StorageError(f"The storage {redacted_url(url)} does not know the study {name!r}.") from error

    def storage(self) -> str | None:
        """Return the URL of the storage, or the path of its journal; one that lies in the folder moves with it."""
        named = self._study.settings.get("storage")
        for name in (DATABASE_FILE, JOURNAL_FILE):
            inside = (self._study.folder / name).resolve()
            if named is not None and unquote(str(named)).endswith(f"/{name}") and inside.is_file():
                return sqlite_url(inside) if name == DATABASE_FILE else str(inside)
        return None if named is None else str(named)

    def importances(self) -> dict[str, float]:
        """Return the share of the objective's variation that each parameter explains, largest first."""
        with quiet_optuna():
            return importances(self._from_records())

    def dashboard_command(self) -> str | None:
        """Return the command line that opens the storage in the dashboard, on the loopback address."""
        url = self.storage()
        return None if url is None else dashboard_command_of(url)

    def _from_records(self) -> optuna.Study:
        engine = optuna.create_study(
            directions=[StudyDirection[each.direction.upper()] for each in self._study.objectives]
        )
        known = self._distributions()
        for record in self._records:
            if record.reports and record.values and _are_in(known, record.params):
                engine.add_trial(_trial(record, known))
        return engine

    def _distributions(self) -> dict[str, BaseDistribution]:
        """Return what each parameter could be; of a function, what it was."""
        described = self._study.described_space()
        if isinstance(described, Mapping):
            space = SearchSpace.from_description(described)
            return {name: distribution(each) for name, each in space.all_parameters().items()}
        tried: dict[str, list[Any]] = {}
        for record in self._records:
            for name, value in record.params.items():
                tried.setdefault(name, []).append(value)
        return {
            name: _seen(values)
            for name, values in tried.items()
            if not any(isinstance(each, list | dict) for each in values)
        }


def _are_in(known: Mapping[str, BaseDistribution], params: Mapping[str, Any]) -> bool:
    """Tell whether parameters are those of the space: population-based training goes beyond, lists are in none."""
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
