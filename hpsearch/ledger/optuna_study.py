"""The study in Optuna's storage, whatever executor runs its trials: opened, checked against the folder, described."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna

from ..errors import StudyError
from ..search.decisions.ladder import RUNGS
from ..search.decisions.paused_limit import PausedLimit
from ..search.decisions.training_budget import TrainingBudget, full_runs_of
from ..search.result.parameter_importances import Importances
from ..search.store.read_study import read_settings
from ..search.store.stored_study import TRIALS_WAIT
from ..search.study import Study
from ..search.trial_record import TrialRecord
from ..search.wording import counted
from ..system.json_types import JsonObject
from ..trial.searchable import Searchable
from .curve_sampler import CurveSampler
from .directions import optuna_directions
from .importances import importances
from .ledger import Ledger
from .pruning import PruningByOneObjective
from .quiet import quiet_optuna
from .ranges import check_ranges
from .rated_rungs import RatedRungs
from .rebuilding import add_missing, open_own_or_other, own_path, set_aside_damaged, was_made_in
from .recorded_defaults import DEFAULTS
from .same_study import check_same_trials, check_stored, note_of_another_study
from .sampler_and_pruner import Choices, Given
from .sampler_states import check_sampler_states
from .sampling import RepeatableSampling
from .storage import (
    check_storage,
    dashboard_command,
    is_in_study_folder,
    naming_the_storage,
    open_storage,
    short_url,
    sqlite_url,
    storage_url,
)
from .terminators import is_stagnant
from .warm_starts import Learned, check_learned, learn, learn_from

_SETTINGS_LOST = "DAMAGED: study.json is lost, so the defaults (rungs, sampler) are those of a new study"


class OptunaStudy:
    """A study in Optuna's storage: first `connect`, then `prepare`.

    Args:
        given: sampler, pruner and terminator.
        storage, load_if_exists, start_from: see `OptunaBackend`.
        limit: of the paused trials.
        may_repeat: whether trials may have the same parameters, as they change while they train.

    Attributes:
        at_rungs: the rungs; None without.
        budget: in training runs; None without.
        limit: of the paused trials.

    Raises:
        StudyError: the storage is not allowed.
    """

    def __init__(
        self,
        given: Given,
        storage: Any = None,
        load_if_exists: bool = True,
        start_from: object = None,
        limit: PausedLimit | None = None,
        may_repeat: bool = False,
    ) -> None:
        check_storage(storage)
        self._given, self._storage, self._may_exist, self._start_from = given, storage, load_if_exists, start_from
        self.limit, self._may_repeat = limit or PausedLimit(), may_repeat
        self._choices: Choices | None = None
        self._learned_from: Learned | None = None
        self._engine: optuna.Study | None = None
        self._ledger: Ledger | None = None
        self.at_rungs: RatedRungs | None = None
        self.budget: TrainingBudget | None = None

    def connect(self, study: Study, recipe: Searchable) -> None:
        """Check that the options fit the study, and open the storage, unless it lies in the study's folder.

        Raises:
            StudyError: they do not, or it cannot be opened.
        """
        self._choices = Choices.of(self._given, study, recipe)
        if self._start_from is not None:
            is_object = isinstance(self._storage, optuna.storages.BaseStorage)
            place = storage_url(self._storage) if is_object else self._storage
            self._learned_from = learn_from(self._start_from, (place, study.name))
        self._choices.check()
        if self._learned_from is not None:
            self._check_learned(study)
        if not is_in_study_folder(self._storage):
            self._storage = open_storage(self._storage)

    def prepare(
        self,
        study: Study,
        records: Sequence[TrialRecord],
        left_alone: frozenset[int],
        is_alone: bool,
        has_parallel_trials: bool,
    ) -> list[str]:
        """Open the study in the storage, and return what was decided; see `Backend.prepare`.

        A storage in the study's folder is built again if it is lost.

        Args:
            study, records, left_alone, is_alone: see `Backend.prepare`.
            has_parallel_trials: whether the search runs several trials at a time.
        """
        assert self._choices is not None, "connect() comes first"
        is_own = is_in_study_folder(self._storage)
        notes = set_aside_damaged(self._storage, study) if is_own and is_alone else []
        storage = open_own_or_other(self._storage, study.folder)
        settings = read_settings(study.folder)
        has_begun = bool(records) or not is_alone  # another search may be about to begin the first trial
        choices = self._choices = self._choices.begun(settings if has_begun else None)
        with quiet_optuna(), naming_the_storage(storage):
            studies = optuna.get_all_study_summaries(storage, include_best_trial=False)
            check_stored(study, storage, studies, records, self._may_exist)
            notes += [] if self._start_from is not None else note_of_another_study(study, storage, studies)
            sampler = choices.make_sampler(has_parallel_trials)
            sampling = RepeatableSampling(sampler)
            engine = self._engine = optuna.create_study(
                study_name=study.name,
                storage=storage,
                sampler=sampler,
                pruner=choices.pruner,
                directions=optuna_directions(each.direction for each in study.objectives),
                load_if_exists=True,
            )
            if is_own and is_alone and (notes or was_made_in(settings, self._storage)):
                notes += _rebuilt(add_missing(engine, study, records, left_alone), len(records))
            check_sampler_states(engine.get_trials(deepcopy=False), storage_url(storage) or type(storage).__name__)
            notes += check_same_trials(engine, study, records, left_alone, is_own)
            check_ranges(engine, study)
            learned = [] if self._learned_from is None else learn(engine, self._learned_from, study)
            pruning = study.pruning_objective
            by_one = None if pruning is None else PruningByOneObjective(study.name, pruning, self._given.pruner)
        ladder = choices.ladder
        self.budget = None if study.budget is None else TrainingBudget(study.budget, ladder, choices.points)
        if isinstance(engine.sampler, CurveSampler):
            engine.sampler.reliable_from = None  # it may be the sampler of another search
        self.at_rungs = None if ladder is None else RatedRungs(study, engine, ladder)
        may_give = self._given.sampler is None
        self._ledger = Ledger(study, engine, sampling, by_one, may_give=may_give, may_repeat=self._may_repeat)
        return [
            *notes,
            *([_SETTINGS_LOST] if records and settings is None else []),
            *([] if study.budget is None else [_described_budget(study.budget, records)]),
            *choices.notes(sampler),
            *learned,
            f"storage {short_url(storage_url(storage) or type(storage).__name__)}",
        ]

    def describe(self) -> JsonObject:
        """Return sampler, pruner and storage as `study.json` records them."""
        assert self._choices is not None, "connect() comes first"
        engine = self.engine_study()
        return {
            "sampler": type(engine.sampler).__name__,
            "pruner": RUNGS if self._choices.has_rungs else type(engine.pruner).__name__,
            TRIALS_WAIT: self.at_rungs is not None,
            DEFAULTS: self._choices.recorded_defaults,
            "storage": self._recorded_storage(engine),
            "optuna_version": optuna.__version__,
        }

    def _recorded_storage(self, engine: optuna.Study) -> str | None:
        """Return the address of the storage; one in the study's folder is relative, as the folder may be moved."""
        if not is_in_study_folder(self._storage):
            return storage_url(engine._storage)
        place = own_path(self._storage, Path(engine.study_name))
        return sqlite_url(place) if self._storage is None else str(place)

    @property
    def ledger(self) -> Ledger:
        """The trials in the storage; from `prepare` on."""
        assert self._ledger is not None, "prepare() comes first"
        return self._ledger

    def is_converged(self, trials: Sequence[TrialRecord]) -> bool:
        """Return True if the terminator ends the search."""
        terminator, rungs = self._given.terminator, self.at_rungs
        if terminator is None:
            return False
        if self._given.is_default_terminator and rungs is not None:
            return is_stagnant(rungs.count_since_improvement(trials), functools.partial(rungs.most_expected, trials))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return terminator.should_terminate(self.engine_study())

    def engine_study(self) -> optuna.Study:
        """Return the `optuna.Study`."""
        if self._engine is None:
            raise StudyError("The study of Optuna is open in the main process of the search only.")
        return self._engine

    def engine_trial(self, number: int) -> optuna.trial.FrozenTrial:
        """Return the `optuna.trial.FrozenTrial` of a number."""
        engine = self.engine_study()
        storage = engine._storage
        return storage.get_trial(storage.get_trial_id_from_study_id_trial_number(engine._study_id, number))

    def importances(self) -> Importances:
        """Return Optuna's parameter importances, largest first; none of fewer than four trials."""
        with quiet_optuna():
            return importances(self.engine_study())

    def dashboard_command(self) -> str | None:
        """Return the `optuna-dashboard` command for the study's storage, on the loopback address."""
        return dashboard_command(self.engine_study()._storage)

    def _check_learned(self, study: Study) -> None:
        assert self._learned_from is not None
        check_learned(self._learned_from, study)
        if self._given.terminator is not None:
            raise StudyError(
                "A terminator takes the trials of start_from for trials that have found nothing better; pass only one "
                "of the two."
            )
        if len(study.objectives) > 1:
            raise StudyError("start_from is for one objective, but this search has several.")


def _described_budget(budget: float, records: Sequence[TrialRecord]) -> str:
    used = full_runs_of(records)
    so_far = f", of which {used:.3g} are used" if used else ""
    return f"budget {budget:g} full training run{'' if budget == 1 else 's'}{so_far}"


def _rebuilt(count: int, total: int) -> list[str]:
    """Describe the trials that were added to the storage, if any were."""
    if count == 0:
        return []
    if count < total:
        return [f"DAMAGED: the storage had lost its last {counted(count, 'trial')}; added from the folders"]
    return [f"DAMAGED: the storage was lost; it was built again from the folders of {counted(count, 'trial')}"]
