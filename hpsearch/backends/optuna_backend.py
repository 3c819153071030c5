"""The embedded backend: asks Optuna for parameters, runs the trials on this machine, tells Optuna how they ended."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import optuna
from optuna.trial import TrialState as EngineState

from ..coordinator.applied_decisions import AppliedDecisions
from ..coordinator.coordinator import Coordinator
from ..coordinator.search_session import SearchSession
from ..errors import StudyError
from ..executors.inline import run_inline
from ..executors.processes.parallel import Parallel
from ..ledger.at_rungs import AtRungs
from ..ledger.branches import branches_of
from ..ledger.curve_sampler import CurveSampler
from ..ledger.importances import importances
from ..ledger.ledger import Ledger
from ..ledger.named_samplers import TPE, as_sampler, sampler_kind
from ..ledger.proposer import Proposer
from ..ledger.pruning import PruningByOneObjective, as_pruner, is_rungs
from ..ledger.quiet import quiet_optuna
from ..ledger.ranges import check_ranges
from ..ledger.rebuilding import add_missing, open_own_or_other, set_aside_damaged, was_made_in
from ..ledger.sampler_states import check_sampler_states
from ..ledger.sampling import RepeatableSampling
from ..ledger.storage import (
    check_storage,
    dashboard_command,
    is_in_study_folder,
    naming_the_storage,
    open_storage,
    storage_url,
)
from ..ledger.stored_source import is_of_optuna, warm_start_from
from ..ledger.terminators import STAGNATION, as_terminator, is_stagnant
from ..ledger.warm_starts import ORIGIN, Learned, check_learned, learn, learn_from
from ..search.evaluation_points import epochs_of, points_of
from ..search.ladder import RUNGS, TOO_FEW, Ladder
from ..search.paused_limit import PausedLimit
from ..search.space import SearchSpace
from ..search.store.reading import read_settings
from ..search.store.stored_study import TRIALS_WAIT
from ..search.study import Study
from ..search.training_budget import TrainingBudget, expected_trials, full_runs_of
from ..search.trial import TrialRecord
from ..trial.execution import Searchable
from .base import Backend
from .defaults import DEFAULTS, Defaults
from .engine_options import EngineOption

_SETTINGS_LOST = "DAMAGED: study.json is lost, so the defaults (rungs, sampler) are those of a new study"
_BY_SECONDS = (
    "the cost of a trial is its measured seconds, as timeout= alone limits the search: its choices cannot be repeated "
    "(with n_trials= the cost is a count of operations)"
)
# They take a paused trial for one that is not done, and try the same again.
_TRY_EVERYTHING = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
# Options of `optuna.Study.optimize` on which nothing about the result depends.
OPTIMIZE_OPTIONS: Mapping[str, EngineOption] = {
    "gc_after_trial": EngineOption.harmless("the memory of a trial is always released"),
    "catch": EngineOption.harmless("an error in a trial is always recorded, and the search continues"),
    "show_progress_bar": EngineOption.harmless("progress= decides what is shown"),
}


class OptunaBackend(Backend):
    """Optuna in this process; trials here too, one after the other, or in workers of this machine, several at once.

    Several processes may be at one study.

    Args:
        sampler: an `optuna.samplers.BaseSampler`; or the name of one, which gets the study's seed: ``"tpe"``,
            ``"random"``, ``"gp"``, ``"cmaes"``, ``"qmc"``, ``"nsgaii"``, ``"nsgaiii"``, ``"brute_force"``. None: a
            Gaussian process over the learning curves of all trials (see `hpsearch.search.curves`); TPE with a pruner of
            Optuna, and with several objectives.
        pruner: ``"rungs"``, the default: trials pause, and the best of them resume (see `hpsearch.search.rungs`); where
            depends on the number of trials, or a `hpsearch.Ladder` says it. With several objectives, median pruning by
            the `pruning_metric`, if there is one; for trainers of `tune` that cannot resume exactly, median pruning; a
            sampler that tries everything there is, or fewer than four trials: all to completion. Or an
            `optuna.pruners.BasePruner`, or ``"median"``, ``"successive_halving"``, ``"hyperband"``. None, ``"none"``:
            every trial runs to completion.
        storage: None: SQLite in the study folder; ``"journal"``: a journal file there; the name of a journal file,
            ending in ``.log``; a URL, such as ``postgresql://user:password@host/name``; or an Optuna storage.
        load_if_exists: False refuses to continue a study that is in the storage already.
        terminator: ends the search when it has stopped improving: an `optuna.terminator.BaseTerminator`, which looks at
            trials with a result; or True: when 30 trials in a row were the best so far at no rung (15, if the model of
            their curves expects no more), without rungs when 30 with a result have found nothing better. None, False:
            never.
        start_from: the sampler learns from the trials of another study: an `optuna.Study`, the summary or best run of
            a search, the URL or journal file of a storage, or a `hpsearch.WarmStart` that names the study in a storage
            or renames parameters.
        max_paused: the most trials that may be paused at once, at least three; the worst of the others are pruned.
        max_paused_bytes: the most bytes that checkpoints of paused trials may take, the three best apart; None: half of
            the free disk space, plus the space that they take already.
        n_jobs: how many trials run at once, each in a worker of its own; -1: one on each GPU, or each core if there is
            no GPU. 1: one after the other, in this process; in a worker if `trials_per_worker` or `worker_memory` is
            given.
        devices: the numbers of the GPUs to use, such as ``[0, 1]``; default: all, if `n_jobs` or `trials_per_device` is
            given.
        trials_per_device: how many trials share a GPU.
        trials_per_worker: the number of trials after which a worker is replaced by a new one; None: never for that.
        worker_memory: a worker is replaced after a trial that leaves it with more bytes of memory than these; None: its
            share of nine tenths of the machine's, or its container's.
        trial_retries: the number of times that a trial is resumed in another worker after its worker has died.

    Attributes:
        runs_several_at_once: set by a backend that runs its trials elsewhere, several at once.
        is_scheduled: set by a backend in which something else than a pruner stops trials.
        may_repeat: set by a backend whose trials may have the same parameters, as they change while they train.

    Raises:
        StudyError: an option is not one of these, or has another value.
    """

    name: ClassVar[str] = "optuna"
    options: ClassVar[tuple[str, ...]] = (
        "sampler",
        "pruner",
        "storage",
        "load_if_exists",
        "terminator",
        "start_from",
        "max_paused",
        "max_paused_bytes",
        "n_jobs",
        "devices",
        "trials_per_device",
        "trials_per_worker",
        "worker_memory",
        "trial_retries",
    )
    engine_options: ClassVar[Mapping[str, EngineOption]] = {
        **OPTIMIZE_OPTIONS,
        "max_concurrent_trials": EngineOption("pass n_jobs"),
        "resources_per_trial": EngineOption("pass devices and trials_per_device (or backend='ray')"),
        "scheduler": EngineOption("pass pruner (or backend='ray')"),
        "search_alg": EngineOption("pass sampler (or backend='ray')"),
        "address": EngineOption("pass backend='ray'"),
        "autoscaling": EngineOption("pass backend='ray'"),
        "storage_path": EngineOption("pass storage, and the trainer's output_dir (or backend='ray')"),
    }

    def __init__(
        self,
        sampler: Any = None,
        pruner: Any = RUNGS,
        storage: Any = None,
        load_if_exists: bool = True,
        terminator: Any = None,
        start_from: Any = None,
        max_paused: int = 50,
        max_paused_bytes: float | None = None,
        n_jobs: int | None = 1,
        devices: Sequence[int] | None = None,
        trials_per_device: int | None = None,
        trials_per_worker: int | None = None,
        worker_memory: float | None = None,
        trial_retries: int = 3,
    ) -> None:
        self._parallel = Parallel(n_jobs, devices, trials_per_device, trials_per_worker, worker_memory, trial_retries)
        self._may_exist = load_if_exists
        self._sampler, self._sampler_kind = sampler, sampler_kind(sampler)
        self._has_rungs = is_rungs(pruner)
        self._ladder = pruner if isinstance(pruner, Ladder) else None
        self._pruner = as_pruner(pruner)
        self._is_evaluated = True
        self._at_rungs: AtRungs | None = None
        self._defaults = Defaults.of_0_8_0()
        self._recorded_defaults: Any = None
        self._points: tuple[float, ...] | None = None
        self._epochs: float | None = None
        self._cannot_pause: str | None = None
        self._terminator = as_terminator(terminator)
        self._is_default_terminator = terminator is True
        self._limit = PausedLimit(max_paused, max_paused_bytes)
        self._start_from = start_from
        self._learned_from: Learned | None = None
        check_storage(storage)
        self._storage = storage
        self.runs_several_at_once = self.may_repeat = self.is_scheduled = False
        self._study: optuna.Study | None = None
        self._ledger: Ledger | None = None
        self._budget: TrainingBudget | None = None

    @contextmanager
    def connected(self, study: Study, recipe: Searchable) -> Iterator[None]:
        """Check the options, and open the storage, unless it lies in the study's folder."""
        self._is_evaluated = recipe.args.eval_strategy != "no"
        self._points, self._epochs = points_of(recipe, study), epochs_of(recipe, study)
        if recipe.cannot_pause is not None and self._prunes_by_rungs(study):
            self._cannot_pause, self._has_rungs = recipe.cannot_pause, False
        if self._start_from is not None:
            is_object = isinstance(self._storage, optuna.storages.BaseStorage)
            place = storage_url(self._storage) if is_object else self._storage
            self._learned_from = learn_from(self._start_from, (place, study.name))
        self._check_fit(study)
        if not is_in_study_folder(self._storage):
            self._storage = open_storage(self._storage)
        with self._parallel.packed(study, recipe):
            yield

    def prepare(
        self,
        study: Study,
        records: Sequence[TrialRecord],
        left_alone: frozenset[int] = frozenset(),
        is_alone: bool = False,
    ) -> list[str]:
        """Open the storage and the study in it; one that lies in the study's folder is built again if it is lost."""
        is_own = is_in_study_folder(self._storage)
        aside = set_aside_damaged(self._storage, study) if is_own and is_alone else []
        storage = open_own_or_other(self._storage, study.folder)
        settings = read_settings(study.folder)
        has_begun = bool(records) or not is_alone  # another search may be about to begin the first trial
        has_rungs = self._prunes_by_rungs(study)
        self._defaults = Defaults.of(study, settings if has_begun else None, self._ladder, self._epochs, has_rungs)
        known_before = (settings or {}).get(DEFAULTS) if has_begun else None
        self._recorded_defaults = self._defaults.to_json() if _has_many(study) else known_before
        with quiet_optuna(), naming_the_storage(storage):
            aside += self._check_stored(study, storage, records)
            sampler = self._made_sampler(study)
            sampling = RepeatableSampling(sampler)
            engine = self._study = optuna.create_study(
                study_name=study.name,
                storage=storage,
                sampler=sampler,
                pruner=self._pruner_of(study),
                directions=[optuna.study.StudyDirection[each.direction.upper()] for each in study.objectives],
                load_if_exists=True,
            )
            if is_own and is_alone and (aside or was_made_in(settings, self._storage)):
                rebuilt = add_missing(engine, study, records, left_alone)
                aside += [_said_of_rebuilt(rebuilt, len(records))] if rebuilt else []
            check_sampler_states(engine.get_trials(deepcopy=False), storage_url(storage) or type(storage).__name__)
            aside += _check_same_trials(engine, study, records, left_alone, is_own)
            check_ranges(engine, study)
            learned = [] if self._learned_from is None else learn(engine, self._learned_from, study)
            pruning = study.pruning_objective
            by_one = None if pruning is None else PruningByOneObjective(study.name, pruning, self._pruner)
        ladder = self._defaults.ladder if has_rungs else None
        if study.budget is not None:
            self._budget = TrainingBudget(study.budget, ladder, self._points)
        self._at_rungs = None if ladder is None else AtRungs(study, engine, ladder)
        may_give = self._sampler is None
        self._ledger = Ledger(study, engine, sampling, by_one, may_give=may_give, may_repeat=self.may_repeat)
        return [
            *aside,
            *([_SETTINGS_LOST] if records and settings is None else []),
            *self._parallel.notes,
            *([] if study.budget is None else [_described_budget(study.budget, records)]),
            _described_sampler(sampler, study),
            *([_BY_SECONDS] if study.costs_in_seconds and isinstance(sampler, CurveSampler) else []),
            self._described_pruner(study),
            *([] if self._terminator is None else [self._described_terminator()]),
            *learned,
            f"storage {storage_url(storage) or type(storage).__name__}",
        ]

    def describe(self) -> Mapping[str, Any]:
        """Return sampler, pruner and storage as `study.json` records them."""
        study = self.engine_study()
        return {
            "backend": self.name,
            "sampler": type(study.sampler).__name__,
            "pruner": RUNGS if self._has_rungs else type(study.pruner).__name__,
            TRIALS_WAIT: self._at_rungs is not None,
            DEFAULTS: self._recorded_defaults,
            "storage": storage_url(study._storage),
            "optuna_version": optuna.__version__,
        }

    def search(self, session: SearchSession) -> None:
        """Run trials here or in workers until the study has its total, or a limit is exhausted."""
        coordinator = self.coordinator(session, retries=self._parallel.retries)
        if self._parallel.is_wanted:
            self._parallel.run(coordinator, session.study.folder)
        else:
            run_inline(coordinator, session.local)

    def coordinator(self, session: SearchSession, proposer: Proposer | None = None, retries: int = 3) -> Coordinator:
        """Return what gives trials to an executor, and receives what they report.

        Args:
            session: whose trials these are.
            proposer: chooses parameters in place of the sampler; None: the sampler does.
            retries: the number of times that a trial is resumed after its process has died.
        """
        assert self._ledger is not None, "prepare() comes first"
        decisions = AppliedDecisions(
            session, self._ledger, self._at_rungs, self._is_converged, self._budget, self._limit
        )
        return Coordinator(session, self._ledger, decisions, proposer, retries)

    def engine_study(self) -> optuna.Study:
        """Return the `optuna.Study`."""
        if self._study is None:
            raise StudyError("The study of Optuna is open in the main process of the search only.")
        return self._study

    def engine_trial(self, number: int) -> optuna.trial.FrozenTrial:
        """Return the `optuna.trial.FrozenTrial` of a number."""
        storage, study = self.engine_study()._storage, self.engine_study()
        return storage.get_trial(storage.get_trial_id_from_study_id_trial_number(study._study_id, number))

    def importances(self) -> dict[str, float]:
        """Return Optuna's parameter importances, largest first; none of fewer than four trials."""
        with quiet_optuna():
            return importances(self.engine_study())

    def dashboard_command(self) -> str | None:
        """Return the `optuna-dashboard` command for the study's storage, on the loopback address."""
        return dashboard_command(self.engine_study()._storage)

    def _made_sampler(self, study: Study) -> optuna.samplers.BaseSampler:
        if self._sampler is None and (self._prunes_by_rungs(study) or self._models_in_full(study)):
            branches = branches_of(study.space) if isinstance(study.space, SearchSpace) else None
            first, by_seconds = self._defaults.first(study), study.costs_in_seconds
            return CurveSampler(study.seed, study.objective, first, study.priors(), branches, by_seconds)
        several = self._parallel.is_wanted or self.runs_several_at_once
        return as_sampler(TPE if self._sampler is None else self._sampler, study.seed, several)

    def _is_converged(self, trials: Sequence[TrialRecord]) -> bool:
        if self._terminator is None:
            return False
        if self._is_default_terminator and self._at_rungs is not None:
            return is_stagnant(
                self._at_rungs.count_since_improvement(trials),
                functools.partial(self._at_rungs.most_expected, trials),
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._terminator.should_terminate(self.engine_study())

    def _check_fit(self, study: Study) -> None:
        if study.start_with and issubclass(self._sampler_kind, optuna.samplers.GridSampler):
            raise StudyError("start_with cannot be combined with a GridSampler, which has an order of its own.")
        if self._learned_from is not None:
            check_learned(self._learned_from, study)
            if self._terminator is not None:
                raise StudyError(
                    "A terminator takes the trials of start_from for trials that have found nothing better; pass only "
                    "one of the two."
                )
        if len(study.objectives) == 1:
            return
        prunes = not self._has_rungs and not isinstance(self._pruner, optuna.pruners.NopPruner)
        if prunes and study.pruning_objective is None:
            raise StudyError(
                f"pruner={type(self._pruner).__name__} needs a metric to judge trials by, and this search has "
                f"{len(study.objectives)} objectives: name it in pruning_metric, or pass pruner='none'."
            )
        if self._terminator is not None:
            raise StudyError("A terminator judges one objective, but this search has several.")
        if self._learned_from is not None:
            raise StudyError("start_from is for one objective, but this search has several.")

    def _prunes_by_rungs(self, study: Study) -> bool:
        """Tell whether trials pause at rungs: there is something to judge them by, and enough to choose from."""
        tries_everything = issubclass(self._sampler_kind, _TRY_EVERYTHING)
        is_worth_it = _has_many(study) and self._is_evaluated and not tries_everything
        return self._has_rungs and is_worth_it and len(study.objectives) == 1

    def _models_in_full(self, study: Study) -> bool:
        """Tell whether the Gaussian process proposes parameters although every trial runs to completion."""
        is_in_full = isinstance(self._pruner_of(study), optuna.pruners.NopPruner)
        may_model = self._defaults.models_in_full and not self.is_scheduled
        return may_model and is_in_full and len(study.objectives) == 1

    def _pruner_of(self, study: Study) -> optuna.pruners.BasePruner:
        """Return the pruner of Optuna; with rungs there is none, but where several objectives are pruned by one."""
        is_by_rungs = self._has_rungs and len(study.objectives) == 1
        return optuna.pruners.NopPruner() if is_by_rungs else self._pruner

    def _described_terminator(self) -> str:
        if self._is_default_terminator and self._at_rungs is not None:
            return f"terminator: ends after {STAGNATION} trials in a row without a new best at any rung, or sooner"
        return f"terminator {type(self._terminator).__name__}"

    def _described_pruner(self, study: Study) -> str:
        if self._prunes_by_rungs(study):
            default = "" if self._ladder is not None else " (default; pruner=None trains every trial to completion)"
            return f"{self._defaults.ladder.describe(self._points)}{default}"
        aside = "" if self._ladder is None else "; the Ladder is left aside"
        if len(study.objectives) > 1 and study.pruning_objective is None:
            return f"nothing is pruned (several objectives; pruning_metric= names one that prunes){aside}"
        is_left_aside = self._has_rungs and len(study.objectives) == 1
        if isinstance(self._pruner, optuna.pruners.NopPruner) or is_left_aside:
            return f"pruner none: every trial runs to completion{aside}"
        by = "" if study.pruning_objective is None else f" by {study.pruning_objective.name}"
        why = "" if self._cannot_pause is None else f" in place of rungs: trials do not pause, as {self._cannot_pause}"
        return f"pruner {type(self._pruner).__name__}{by}{why}{aside}"

    def _check_stored(
        self, study: Study, storage: optuna.storages.BaseStorage, records: Sequence[TrialRecord]
    ) -> list[str]:
        """Check that the storage has no other study of this name; return what else the user should know of it."""
        there = optuna.get_all_study_summaries(storage, include_best_trial=False)
        known = next((each for each in there if each.study_name == study.name), None)
        if known is None:
            return self._notes_of_the_only_study(there, storage)
        if not records and is_of_optuna(optuna.load_study(study_name=study.name, storage=storage)):
            raise StudyError(
                f"The study {study.name!r} in the storage has {known.n_trials} trials that Optuna itself has run, so a "
                "search cannot continue it. To learn from them, pass "
                f"{warm_start_from(storage_url(storage), study.name)}, and another study_name or storage."
            )
        if not self._may_exist:
            raise StudyError(
                f"load_if_exists=False, but the storage has a study {study.name!r} already, with {known.n_trials} "
                "trials. Pass another study_name."
            )
        stored, wanted = [each.name.lower() for each in known.directions], [each.direction for each in study.objectives]
        if stored != wanted:
            before, now = (shown[0] if len(shown) == 1 else shown for shown in (stored, wanted))
            raise StudyError(
                f"The study {study.name!r} in the storage was made with direction={before!r}, now {now!r}. Pass "
                "another study_name."
            )
        return []

    def _notes_of_the_only_study(self, there: Sequence[Any], storage: optuna.storages.BaseStorage) -> list[str]:
        """Say of a storage with one study, which Optuna made, how to learn from it; of several it would be a guess."""
        if self._start_from is not None or len(there) != 1:
            return []
        name = there[0].study_name
        if not is_of_optuna(optuna.load_study(study_name=name, storage=storage)):
            return []
        return [f"a new study beside {name!r}; to learn from that one: {warm_start_from(storage_url(storage), name)}"]


def _has_many(study: Study) -> bool:
    """Tell whether a study is expected to have more trials than those that all run to completion."""
    return expected_trials(study.n_trials, study.budget) > TOO_FEW


def _described_budget(budget: float, records: Sequence[TrialRecord]) -> str:
    used = full_runs_of(records)
    so_far = f", of which {used:.3g} are used" if used else ""
    return f"budget {budget:g} full training run{'' if budget == 1 else 's'}{so_far}"


def _said_of_rebuilt(count: int, total: int) -> str:
    if count < total:
        return f"DAMAGED: the storage had lost its last {count} trials; they were added from their folders"
    return f"DAMAGED: the storage was lost; it was built again from the folders of {count} trials"


def _check_same_trials(
    engine: optuna.Study, study: Study, records: Sequence[TrialRecord], left_alone: frozenset[int], is_own: bool
) -> list[str]:
    """Check that the storage and the folder hold the same trials; return which folders were deleted, in words.

    That the storage knows more is no other study, if the folder has later trials, or the storage lies in it.
    """
    trials = engine.get_trials(deepcopy=False)
    place = storage_url(engine._storage) or "in memory"
    stored = {trial.number for trial in trials if trial.state.is_finished() and ORIGIN not in trial.user_attrs}
    running = {trial.number for trial in trials if trial.state is EngineState.RUNNING}
    on_disk = {record.number for record in records}
    last = max(on_disk, default=-1)
    deleted = stored - on_disk - left_alone
    after_the_last = {each for each in deleted if each > last}
    is_same = bool(on_disk) and (is_own or not after_the_last)
    if is_own and deleted and not on_disk:
        raise StudyError(
            f"The study {study.name!r}: the folders of all its trials were deleted from {str(study.folder)!r}. Restore "
            f"them, delete {place} to begin again, or pass another study_name."
        )
    for numbers, here, there in (
        (on_disk - stored - running, "the folder", "the storage"),
        (set() if is_same else deleted, "the storage", "the folder"),
    ):
        if numbers:
            raise StudyError(
                f"The study {study.name!r}: {here} has trials {sorted(numbers)[:5]} that {there} does not know "
                f"(folder {str(study.folder)!r}, storage {place}). Pass the storage it was made with, or another "
                "study_name. (If a power cut has cost the storage its last trials: delete their folders.)"
            )
    return [f"DAMAGED: the folder of trial {each} was deleted; the trial still counts" for each in after_the_last]


def _described_sampler(sampler: optuna.samplers.BaseSampler, study: Study) -> str:
    priors = ", ".join(f"{name}={value!r}" for name, value in study.priors().items())
    if not priors:
        return f"sampler {type(sampler).__name__}"
    use = "with the prior" if isinstance(sampler, CurveSampler) else "which does not use the prior"
    return f"sampler {type(sampler).__name__}, {use} {priors}"
