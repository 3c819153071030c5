"""What a recipe does about hyperparameters: it searches for them, and replays a trial of a search."""

from __future__ import annotations

import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from ..backends import get_backend
from ..errors import ObjectiveError, StudyError
from ..reports.console import console_listener
from ..search.constraints import Constraint, resolve_constraints
from ..search.initial_trials import resolve_start
from ..search.known_trainers import LOSS, is_rewarded, notices_about_loss, reward_of
from ..search.ladder import RUNGS
from ..search.listener import SearchListener
from ..search.objective import Objective, resolve_objectives, resolve_pruning
from ..search.older_metric_names import named_as_recorded, notice_of_older_name
from ..search.space import SearchSpace
from ..search.static_checks import check_space
from ..search.store.folder import check_place, read_settings
from ..search.study import SpaceLike, Study, as_space, check_name
from ..search.study_callbacks import StudyCallback, check_callbacks
from ..search.trial import TrialRecord
from ..training.randomness import preserved_streams
from ..trial.execution import Searchable
from .hyperparameter_search import Search
from .processes import ranks_of
from .replay import Replay, replay

_DEFAULT_TRIALS = 20
_STUDY = "study"  # the name of a study that is given none

Metric = str | Callable[[dict[str, float]], float]


class Evaluation(NamedTuple):
    """What the evaluations of a recipe are: of how many sets, whether there is a `compute_metrics`, by which class."""

    sets: int
    has_metrics: bool
    trainer: type = object


class Searching(ABC):
    """What is the same in every search, whatever makes the trainers of its trials.

    `hpsearch.Trainer` is one such recipe, `TrainerFunction` another one.
    """

    args: Any
    cannot_pause: str | None = None  # why trials must not pause; None: they resume with the same numbers
    training_samples: int | None = None  # None: not known
    sets_arguments_by_name = True
    has_fixed_model = False  # whether it is certain that no parameter of a trial changes the number of weights

    @abstractmethod
    def for_trial(self, trial: Any, output_dir: str | None = None) -> Any:
        """Return the trainer of a trial."""

    @abstractmethod
    def check_parameter(self, name: str, value: Any, conditions: Mapping[str, Any] | None = None) -> None:
        """Raise an ArgumentError if a trial could not set `name` to `value` under `conditions`."""

    @abstractmethod
    def check_changeable(self, name: str) -> None:
        """Raise an ArgumentError if training cannot resume from a checkpoint with another value of a parameter."""

    @abstractmethod
    def with_arguments(self, **parameters: Any) -> Any:
        """Return the same recipe with other arguments."""

    @property
    def _default_seed(self) -> int:
        """The seed of the sampler if none is given."""
        return int(self.args.seed)

    @property
    def _defaults(self) -> Any:
        """What has the defaults of parameters that have none of their own, as attributes."""
        return self.args

    @abstractmethod
    def _prepare(self, space: Any) -> None:
        """Check that there is all that a search in this space needs; None: a replay."""

    @property
    @abstractmethod
    def _evaluation(self) -> Evaluation:
        """What is evaluated."""

    @abstractmethod
    def _data(self) -> dict[str, Any]:
        """Return names to datasets, or to their fingerprints, to tell whether they are those of an earlier session."""

    @abstractmethod
    def _functions(self) -> dict[str, Any]:
        """Return the functions that trials are made of, and the class of their trainers, by name."""

    @abstractmethod
    def _build_best_model(self, record: TrialRecord, folder: Path) -> torch.nn.Module:
        """Build the model of a trial anew, with the weights in a folder, in evaluation mode."""

    def hyperparameter_search(
        self,
        hp_space: SpaceLike = None,
        compute_objective: Metric | Sequence[Metric] | None = None,
        n_trials: int | None = None,
        direction: str | Sequence[str | None] | None = None,
        backend: str | None = None,
        hp_name: Callable[[Any], str] | None = None,
        *,
        directions: Sequence[str | None] | None = None,
        study_name: str = _STUDY,
        scope: str | None = None,
        constraints: str | Constraint | Sequence[str | Constraint] | None = None,
        pruning_metric: str | None = None,
        keep_checkpoints: int | None = 1,
        timeout: float | None = None,
        trial_timeout: float | None = None,
        max_epochs: float | None = None,
        trial_max_epochs: float | None = None,
        budget: float | None = None,
        max_failures: int | None = 5,
        oom_fallback: bool = False,
        start_with: Any = None,
        seed: int | None = None,
        preflight: bool = True,
        callbacks: Sequence[StudyCallback] | None = None,
        progress: bool | SearchListener = True,
        sampler: Any = None,
        pruner: Any = RUNGS,
        storage: Any = None,
        terminator: Any = None,
        start_from: Any = None,
        n_jobs: int | None = 1,
        devices: Sequence[int] | None = None,
        trials_per_device: int | None = None,
        **options: Any,
    ) -> Any:
        """Search for the best hyperparameters and return the best run, with its model.

        Each trial is a new trainer with the trial's parameters as arguments, a new model from `model_init`, and the
        trial's own seed; this trainer is not changed. A trial that fails is recorded with its reason, and the search
        continues. The same call again continues the same study, half-done trials first, from their last checkpoint;
        several processes may make it at the same time. Under `torchrun`, all processes make it, and train each trial
        together.

        Args:
            hp_space: a mapping of names to `Float`, `Int` or `Categorical` (or a `SearchSpace`); a function of a trial
                that suggests (``trial.suggest_float(...)``) and returns the parameters as a dict, or None to use all
                it suggested; or None for the default space. Names are training arguments, or dotted: ``optim.*`` for
                the optimizer; ``model.*``, ``lora.*``, ``data.*`` for ``model_init(trial)`` to read.
            compute_objective: a metric's name, or a function from an evaluation's metrics to a number; or a list of
                these, or a function that returns a tuple, with a list of directions. Default: the evaluation loss;
                with `compute_metrics`, the sum of all metrics except losses, speed and memory; for TRL's trainers of
                online reinforcement learning (GRPO, RLOO), the reward.
            n_trials: the study's total of trials; failed and pruned ones count. Default: 20; with a `budget` no limit.
            direction: ``"minimize"`` or ``"maximize"``, or a list of them; default: losses and errors are minimised,
                other metrics maximised.
            directions: a list of directions, as Optuna calls it; the same as `direction`.
            backend: ``"optuna"``, the default: in this process, or with `n_jobs` or `devices` in workers on this
                machine; or ``"ray"``: on a cluster.
            hp_name: a function of a trial that names its run and folder; default ``run-<number>``.
            study_name: names the study and its folder inside `args.output_dir`.
            scope: which reports of a trial give its value and its checkpoint: ``last``, ``all`` (the best), ``avg``,
                ``last-5-avg`` or ``last-10-avg``; default: `args.ray_scope`.
            constraints: what the best trial must hold: texts such as ``"num_parameters <= 1e6"`` or
                ``"runtime <= 2"``, or `Constraint`s.
            pruning_metric: with several objectives, the metric by which trials are pruned; default: none are.
            keep_checkpoints: how many of the best trials keep their weights on disk (with several objectives, 1 keeps
                those of the whole Pareto front); 0: none; None: every trial, and every checkpoint.
            timeout: seconds for this call; a trial that is running then is stopped at its next step. Without `n_trials`
                and `max_epochs`, a trial's cost is its measured seconds, so the choices cannot be repeated.
            trial_timeout: seconds for one trial.
            max_epochs: passes over the data, of all trials of the study together.
            trial_max_epochs: passes over the data for one trial, whatever its `num_train_epochs`, which its
                learning-rate schedule is made for.
            budget: full training runs, of all trials of the study together, at least 1; a trial costs the fraction of
                its own training run that it has trained. No trial is stopped in the middle.
            max_failures: stop after this many consecutive failures; None: no limit.
            oom_fallback: run a trial that is out of memory again with half the micro-batch and twice the accumulation.
            start_with: parameters to try first: a dict, ``"defaults"`` (the defaults of the space, else this trainer's
                own arguments), or a list of these; what they leave open, the sampler chooses.
            seed: seed of the sampler; default `args.seed`.
            preflight: before the first trial of a study, train one step and evaluate two batches with its parameters,
                where it will run, on a model that is thrown away, so that a mistake costs no trial.
            callbacks: functions of Optuna's study and its trial, called after each trial, as in `Study.optimize`;
                `study.stop()` lets no further trial begin.
            progress: show a live view; or a `SearchListener` of your own.
            sampler: an `optuna.samplers.BaseSampler`, or the name of one (``"tpe"``, ``"random"``, ...), which gets
                the seed; default: a Gaussian process over the learning curves of all trials.
            pruner: ``"rungs"``: trials pause, and the best of them resume; or a `Ladder`, which says where; or an
                `optuna.pruners.BasePruner` or its name (``"median"``, ...); None: every trial runs to completion.
            storage: a URL such as ``"postgresql://user:password@host/name"``, the name of a journal file (``.log``),
                ``"journal"``, or an Optuna storage; default: SQLite in the study's folder.
            terminator: True ends the search when it has stopped improving; or an `optuna.terminator.BaseTerminator`.
            start_from: another study to learn from: an `optuna.Study`, a best run or summary, a storage's URL, or a
                `WarmStart`.
            n_jobs: the number of parallel trials on this machine, each in a worker of its own; -1: one on each GPU, or
                each core if there is no GPU; None: as `devices` and `trials_per_device` say; 1: one trial at a time,
                in this process. On Ray `max_concurrent_trials` takes its place.
            devices: the numbers of the GPUs to use, such as ``[0, 1]``; default: all. On Ray `resources_per_trial`
                takes its place, also of the next one.
            trials_per_device: the number of trials that share a GPU.
            options: that fewer need: `load_if_exists`, `max_paused`, `max_paused_bytes`, `trial_retries`; in workers
                `trials_per_worker`, `worker_memory`; on Ray `address`, `resources_per_trial`, `max_concurrent_trials`,
                `autoscaling`, `storage_path`, `scheduler`, `search_alg`, `stop`. Options of the engine that change
                nothing about the result are taken with a notice; others are refused, with what takes their place.

        Returns:
            A `BestRun`; with several objectives a list of them, the Pareto front.

        Raises:
            InvalidInputError: something about the search cannot be right; raised before the first trial where it can
                be known, and in the first trial otherwise.
            MissingPackageError: the backend's package is not installed.
            StorageError: the storage cannot be reached or written; the same call continues once it can.
            NoCompletedTrialError: no trial may be the best, since none has a result or all break a constraint. It says
                why, and carries all trials (`run_summary`). If a budget ended the search before the first evaluation,
                the same call continues.
            TooManyFailuresError: trial after trial failed; it carries the best run so far.
            SearchInterrupted: the user pressed Ctrl-C; it carries the best run so far.
        """
        named = {"sampler": sampler, "storage": storage, "terminator": terminator, "start_from": start_from}
        named |= {"devices": devices, "trials_per_device": trials_per_device}
        given = {name: value for name, value in named.items() if value is not None}
        if n_jobs != 1:
            given["n_jobs"] = n_jobs
        if not (isinstance(pruner, str) and pruner == RUNGS):
            given["pruner"] = pruner
        arguments = inspect.signature(Searching.hyperparameter_search).parameters
        known = [each for each in arguments if each not in ("self", "options")]
        engine = get_backend(backend, given | options, known)
        study_name = _named_once(study_name, engine.study_name)
        listener = _listener(progress)
        called_back = check_callbacks(callbacks)
        seed = self._default_seed if seed is None else seed
        space = as_space(engine.native_space(hp_space, seed, self))
        self._prepare(space)
        folder = Path(self.args.output_dir, check_name(study_name, "study_name"))
        check_place(folder)
        earlier = _settings_on_disk(folder)
        direction = _one_of_both(direction, directions)
        objectives = self._objectives(compute_objective, direction, earlier.get("objective"))
        bounds, pruning = resolve_constraints(constraints), resolve_pruning(pruning_metric, objectives)
        notices = [
            *engine.notices,
            *notice_of_older_name([*objectives, *bounds, pruning]),
            *notices_about_loss(self._evaluation.trainer, self._searched_names(space), objectives),
        ]
        objectives = named_as_recorded(objectives, earlier.get("objective"))
        bounds = named_as_recorded(bounds, earlier.get("constraints"))
        if pruning is not None:
            [pruning] = named_as_recorded([pruning], earlier.get("pruning_metric"))
        study = Study(
            name=study_name,
            folder=folder,
            space=space,
            objectives=objectives,
            n_trials=_DEFAULT_TRIALS if n_trials is None and budget is None else n_trials,
            scope=self.args.ray_scope if scope is None else scope,
            constraints=bounds,
            pruning_objective=pruning,
            keep_checkpoints=keep_checkpoints,
            timeout=timeout,
            trial_timeout=trial_timeout,
            max_epochs=max_epochs,
            trial_max_epochs=trial_max_epochs,
            max_failures=max_failures,
            oom_fallback=oom_fallback,
            seed=seed,
            hp_name=hp_name,
            start_with=resolve_start(start_with, space, self._defaults),
            preflight=preflight,
            budget=budget,
            costs_in_seconds=timeout is not None and n_trials is None and max_epochs is None and budget is None,
        )
        check_space(study.space, self)
        with preserved_streams():
            functions = {**self._functions(), **study.functions()}
            return Search(
                cast(Searchable, self),
                study,
                engine,
                listener,
                ranks_of(self.args),
                self._build_best_model,
                self._data(),
                functions,
                notices=notices,
                callbacks=called_back,
            ).run()

    def replay(
        self,
        study_name: str = _STUDY,
        number: int | None = None,
        compute_objective: Metric | Sequence[Metric] | None = None,
        direction: str | Sequence[str | None] | None = None,
        progress: bool | SearchListener = True,
    ) -> Replay:
        """Run one trial of a study again, alone, from what is on disk; on CPU it makes the same reports.

        The trial gets the parameters, the seed and the arguments that the study recorded, also where those of this
        trainer have changed since; that, and other versions or data, are said before it begins. The study is not
        changed: the replay writes to ``<study>/replays/<run>``, its weights included.

        Args:
            study_name: names the study inside `args.output_dir`.
            number: of the trial; default: the best one.
            compute_objective, direction: as in the search; needed again if the objective was a function.
            progress: show a live view; or a `SearchListener` of your own.

        Raises:
            StudyError: there is no such study or trial, or its objective is another one.
        """
        self._prepare(None)
        listener = _listener(progress)
        folder = Path(self.args.output_dir, check_name(study_name, "study_name"))
        is_given = compute_objective is not None or direction is not None
        objectives = self._objectives(compute_objective, direction) if is_given else None
        with preserved_streams():
            return replay(
                cast(Searchable, self), folder, number, objectives, listener, ranks_of(self.args), self._data()
            )

    def _objectives(self, compute_objective: Any, direction: Any, earlier: Any = None) -> tuple[Objective, ...]:
        """Return the objectives of a search; `earlier` is what the study on disk records of them."""
        sets, has_metrics, trainer = self._evaluation
        if compute_objective is None and is_rewarded(trainer) and earlier != LOSS:
            return (reward_of(trainer, direction),)
        return resolve_objectives(compute_objective, direction, has_metrics, sets)

    def _searched_names(self, space: Any) -> list[str]:
        """Return the parameters that are searched, as far as they are known before the first trial."""
        known = space if isinstance(space, SearchSpace) else getattr(space, "parameters", None)
        return list(known.all_parameters()) if isinstance(known, SearchSpace) else []


def _one_of_both(direction: Any, directions: Any) -> Any:
    """Return the directions, whichever of the two arguments has them.

    Raises:
        ObjectiveError: both have, or `directions` is no list.
    """
    if directions is None:
        return direction
    if direction is not None:
        raise ObjectiveError(f"direction={direction!r} and directions={directions!r} say the same; pass only one.")
    if not isinstance(directions, (list, tuple)):
        raise ObjectiveError(f"directions must be a list of 'minimize' and 'maximize', but got {directions!r}.")
    return directions


def _settings_on_disk(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the study in a folder; empty for a new one, and where they cannot be read (yet)."""
    with contextlib.suppress(StudyError):
        return read_settings(folder) or {}
    return {}


def _named_once(study_name: str, by_option: str | None) -> str:
    """Return the name of the study, which an option of the engine may give in place of `study_name`."""
    if by_option not in (None, study_name) and study_name != _STUDY:
        raise StudyError(
            f"name={by_option!r} and study_name={study_name!r} both name the study; pass only one of them."
        )
    return study_name if by_option is None else by_option


def _listener(progress: Any) -> SearchListener:
    if isinstance(progress, SearchListener):
        return progress
    if not isinstance(progress, bool):
        raise StudyError(f"progress must be True, False or a SearchListener, but got {progress!r}.")
    return console_listener(progress)
