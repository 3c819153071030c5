"""What a backend is: what the user's options make of a study in Optuna's storage and of an executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from ..search.trial_record import TrialRecord
from ..system.json_types import JsonObject
from .engine_options import EngineOption

if TYPE_CHECKING:  # reading a study must not import what trains
    from ..coordinator.search_session import SearchSession
    from ..ledger.optuna_study import OptunaStudy
    from ..search.space.static_checks import TakesParameters
    from ..search.study import Study
    from ..trial.searchable import Searchable


class Backend(ABC):
    """Opens the study of a search, and runs its trials.

    Made with the options the user gave (`sampler`, `pruner`, `storage`, ...); everything that can be checked without
    the study is checked by the constructor, the rest by `prepare`.

    Attributes:
        name: how users ask for it.
        options: the names of the options it takes.
        engine_options: options of the engine itself that it takes with some values only, or not at all.
        notices: what the search does about those that were given.
        study_name: the name of the study, if an option gives it.
        stored: the study in Optuna's storage.
        processes_per_trial: the number of processes that it starts for each trial; those of a launcher do not count.
        trains_here: whether this process trains the trials, on all GPUs that it sees; else each process has its own.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]]
    engine_options: ClassVar[Mapping[str, EngineOption]] = {}
    notices: Sequence[str] = ()
    study_name: str | None = None
    stored: OptunaStudy
    processes_per_trial: int = 1
    trains_here: bool = False

    @abstractmethod
    def __init__(self, **options: object) -> None: ...

    def native_space(self, hp_space: object, seed: int, recipe: TakesParameters) -> Any:
        """Translate a search space of the engine; return any other one as it is.

        Args:
            hp_space: as the user gave it.
            seed: of random draws.
            recipe: checks the parameters that the engine's options name.

        Raises:
            SpaceError: it cannot be.
            StudyError: an option names a parameter that cannot be searched so.
        """
        return hp_space

    @abstractmethod
    def connected(self, study: Study, recipe: Searchable) -> AbstractContextManager[None]:
        """Check that the options fit study and trainer, and keep open what lies outside the study's folder.

        Nothing is written to the folder yet. What was opened is closed when the block ends.

        Raises:
            StudyError: they do not fit, or it cannot be opened.
        """

    def call_in_group(self, recipe: Searchable, function: Callable[[], Any]) -> Any:
        """Call a function of a recipe as its trials are called, before the study is opened; return what it returns.

        With `processes_per_trial`, all processes of a group call it, and the result is that of the first one.

        Raises:
            StudyError: there cannot be such a group here.
            BaseException: the error of the function, or that a process has died.
        """
        return function()

    @abstractmethod
    def prepare(
        self,
        study: Study,
        records: Sequence[TrialRecord],
        left_alone: frozenset[int] = frozenset(),
        is_alone: bool = False,
    ) -> list[str]:
        """Open the storage and return what was decided, in words, for the user to read; under the study's lock.

        Args:
            study: the settings.
            records: the trials in the study's folder.
            left_alone: numbers of trials there whose records cannot be read.
            is_alone: no other search uses the study now, so damage can be repaired.

        Raises:
            StudyError: the stored study cannot continue with these settings, or is not the one in the folder.
        """

    def describe(self) -> JsonObject:
        """Return the settings that `study.json` records: sampler, pruner, storage."""
        return {"backend": self.name, **self.stored.describe()}

    @abstractmethod
    def search(self, session: SearchSession) -> None:
        """Run trials until the study has its total, or a limit or an error ends the search.

        Trials that a session left half-done, or whose process has died, resume first. Returns when all trials have
        ended, those of other processes included.

        Raises:
            TrialEndedSearch: a trial found that the search must end; the storage has its end.
        """
