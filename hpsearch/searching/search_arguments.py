"""The arguments of a search as users give them, and the study and the backend that they make."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..backends import get_backend
from ..backends.base import Backend
from ..errors import ObjectiveError, StudyError
from ..reports.console import console_listener
from ..search.decisions.ladder import RUNGS
from ..search.decisions.training_budget import USUAL_TRIALS
from ..search.folds import Folds
from ..search.listener import SearchListener
from ..search.metrics.constraints import Constraint, resolve_constraints
from ..search.metrics.known_trainers import LOSS, is_rewarded, notices_about_loss, reward_of
from ..search.metrics.objective import Objective, resolve_objectives, resolve_pruning
from ..search.metrics.older_metric_names import named_as_recorded, notice_of_older_name
from ..search.space.initial_trials import notice_of_defaults_outside, resolve_start
from ..search.space.search_space import SearchSpace
from ..search.store.study_folder import check_place, read_settings
from ..search.study import SEEDS, SpaceFunction, SpaceLike, Study, as_space, check_name, known_space
from ..search.study_callbacks import StudyCallback
from ..search.trial import Trial
from ..system.files import working_folder
from ..system.json_types import JsonObject
from .make_folds import make_folds
from .searched_recipe import SearchedRecipe

DEFAULT_STUDY_NAME = "study"
# As in transformers.
POSITIONAL = ("hp_space", "compute_objective", "n_trials", "direction", "backend", "hp_name")
# Arguments of the backend; all others are settings of the study.
_OF_THE_BACKEND = (
    "sampler",
    "pruner",
    "storage",
    "terminator",
    "start_from",
    "n_jobs",
    "devices",
    "trials_per_device",
    "processes_per_trial",
)
# No arguments of users.
_NOT_GIVEN = ("options", "began_in")

Metric = str | Callable[[dict[str, float]], float]


@dataclass(frozen=True, kw_only=True)
class SearchArguments:
    """The arguments of a search; `Trainer.hyperparameter_search` documents them.

    Users do not give `began_in`, the folder in which the search began: a relative `output_dir` is relative to it, even
    if their code changes the working folder.

    >>> SearchArguments.of({"n_trials": 5, "max_paused": 9}).options
    {'max_paused': 9}
    """

    hp_space: SpaceLike = None
    compute_objective: Metric | Sequence[Metric] | None = None
    n_trials: int | None = None
    direction: str | Sequence[str | None] | None = None
    backend: str | None = None
    hp_name: Callable[[Trial], str] | None = None
    directions: Sequence[str | None] | None = None
    study_name: str = DEFAULT_STUDY_NAME
    scope: str | None = None
    constraints: str | Constraint | Sequence[str | Constraint] | None = None
    pruning_metric: str | None = None
    keep_checkpoints: int | None = 1
    timeout: float | None = None
    trial_timeout: float | None = None
    max_epochs: float | None = None
    trial_max_epochs: float | None = None
    budget: float | None = None
    repeats: int = 1
    folds: Any = None
    groups: str | None = None
    stratify: str | None = None
    refit: bool = False
    max_failures: int | None = 5
    oom_fallback: bool = False
    start_with: object = None
    seed: int | None = None
    preflight: bool = True
    callbacks: Sequence[StudyCallback] | None = None
    progress: bool | SearchListener = True
    test_dataset: Any = None
    test_defaults: bool = True
    sampler: object = None
    pruner: object = RUNGS
    storage: object = None
    terminator: object = None
    start_from: object = None
    n_jobs: int | None = None
    devices: Sequence[int] | None = None
    trials_per_device: int | str | None = None
    processes_per_trial: int = 1
    options: Mapping[str, object] = field(default_factory=dict)
    began_in: str = field(default_factory=working_folder)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SearchArguments:
        """Return the arguments among those given; the others are options, which the backend takes or refuses."""
        names = {each.name for each in dataclasses.fields(cls) if each.name not in _NOT_GIVEN}
        known = {name: value for name, value in given.items() if name in names}
        return cls(**known, options={name: value for name, value in given.items() if name not in names})

    def make_backend(self) -> Backend:
        """Return the backend, made with the user's options.

        Raises:
            StudyError: there is no such backend, it does not take an option, or the study has two names.
            MissingPackageError: its package is not installed.
        """
        fields = {each.name: each.default for each in dataclasses.fields(self)}
        given = {name: getattr(self, name) for name in _OF_THE_BACKEND}
        given = {name: value for name, value in given.items() if not _is_default(value, fields[name])}
        backend = get_backend(
            self.backend, given | dict(self.options), [name for name in fields if name not in _NOT_GIVEN]
        )
        if backend.study_name not in (None, self.study_name) and self.study_name != DEFAULT_STUDY_NAME:
            raise StudyError(
                f"name={backend.study_name!r} and study_name={self.study_name!r} both name the study; pass only one of "
                "them."
            )
        return backend

    def make_space(self, backend: Backend, recipe: SearchedRecipe) -> SearchSpace | SpaceFunction:
        """Return the space, a `SearchSpace` or a function of a trial.

        Raises:
            SpaceError: it is neither.
        """
        return as_space(backend.native_space(self.hp_space, self._seed(recipe), recipe))

    def make_folds(self, recipe: SearchedRecipe) -> Folds | None:
        """Return the folds of the cross-validation; None: there is none.

        Raises:
            StudyError: an argument cannot be right.
        """
        code = recipe.user_code if recipe.has_own_data else None
        return make_folds(self.folds, self.groups, self.stratify, recipe.data_to_split, self._seed(recipe), code)

    def make_study(
        self,
        backend: Backend,
        space: SearchSpace | SpaceFunction,
        recipe: SearchedRecipe,
        folds: Folds | None = None,
    ) -> tuple[Study, list[str]]:
        """Return the settings of the study, and what the user should know before the first trial.

        Raises:
            InvalidInputError: an argument cannot be right.
        """
        name = self.study_name if backend.study_name is None else backend.study_name
        folder = Path(self.began_in, recipe.args.output_dir, check_name(name, "study_name"))
        check_place(folder)
        recorded = _settings_on_disk(folder)
        direction = _one_of_both(self.direction, self.directions)
        objectives = objectives_of(recipe, self.compute_objective, direction, recorded.get("objective"))
        constraints = resolve_constraints(self.constraints)
        pruning = resolve_pruning(self.pruning_metric, objectives)
        known = known_space(space)
        searched = dict.fromkeys([*([] if known is None else known.all_parameters()), *recipe.suggested_names])
        notices = [
            *backend.notices,
            *recipe.notices,
            *notice_of_older_name([*objectives, *constraints, pruning]),
            *notices_about_loss(recipe.evaluation.trainer, searched, objectives),
            *notice_of_defaults_outside(self.start_with, space, recipe.defaults),
        ]
        if pruning is not None:
            [pruning] = named_as_recorded([pruning], recorded.get("pruning_metric"))
        study = Study(
            name=name,
            folder=folder,
            space=space,
            objectives=named_as_recorded(objectives, recorded.get("objective")),
            n_trials=self._n_trials,
            scope=recipe.args.ray_scope if self.scope is None else self.scope,
            constraints=named_as_recorded(constraints, recorded.get("constraints")),
            pruning_objective=pruning,
            keep_checkpoints=self.keep_checkpoints,
            timeout=self.timeout,
            trial_timeout=self.trial_timeout,
            max_epochs=self.max_epochs,
            trial_max_epochs=self.trial_max_epochs,
            max_failures=self.max_failures,
            oom_fallback=self.oom_fallback,
            seed=self._seed(recipe),
            hp_name=self.hp_name,
            start_with=resolve_start(self.start_with, space, recipe.defaults),
            preflight=self.preflight,
            budget=self.budget,
            costs_in_seconds=self.timeout is not None
            and (self.n_trials, self.max_epochs, self.budget) == (None, None, None),
            processes=max(recipe.args.world_size, backend.processes_per_trial),
            gpus=max(1, recipe.args.n_gpu) if backend.trains_here else 1,
            unit=recipe.evaluation.unit,
            repeats=self.repeats,
            folds=folds,
        )
        check_seeds(study, searched)
        return study, notices

    @property
    def _n_trials(self) -> int | None:
        """The total of trials; `USUAL_TRIALS` if the call has no limit at all."""
        has_no_limit = (self.n_trials, self.budget, self.timeout, self.max_epochs) == (None, None, None, None)
        return USUAL_TRIALS if has_no_limit else self.n_trials

    def _seed(self, recipe: SearchedRecipe) -> int:
        return recipe.default_seed if self.seed is None else self.seed


def check_seeds(study: Study, searched: Iterable[str]) -> None:
    """Check that the seed of a trial may be changed to repeat it.

    Raises:
        StudyError: it is searched.
    """
    seed = next((name for name in searched if name in SEEDS), None)
    if study.repeats > 1 and seed is not None:
        raise StudyError(
            f"repeats={study.repeats} trains trials again with other seeds, but {seed!r} is searched: take it out of "
            "the space, or leave repeats out."
        )


def objectives_of(
    recipe: SearchedRecipe, compute_objective: object, direction: object, recorded: object = None
) -> tuple[Objective, ...]:
    """Return the objectives of a search; `recorded` are those that the study on disk has, by name.

    Raises:
        ObjectiveError: they cannot be right.
    """
    sets, has_metrics, trainer, reported, _ = recipe.evaluation
    if compute_objective is None and reported:
        compute_objective = list(reported) if len(reported) > 1 else reported[0]
    if compute_objective is None and is_rewarded(trainer) and recorded != LOSS:
        return (reward_of(trainer, direction),)
    return resolve_objectives(compute_objective, direction, has_metrics, sets)


def listener_of(progress: object) -> SearchListener:
    """Return the listener that shows a search: the one given, or a live view.

    Raises:
        StudyError: `progress` is neither a bool nor a listener.
    """
    if isinstance(progress, SearchListener):
        return progress
    if not isinstance(progress, bool):
        raise StudyError(f"progress must be True, False or a SearchListener, but got {progress!r}.")
    return console_listener(progress)


def _is_default(value: object, default: object) -> bool:
    """Return True if an argument was not given; objects of users, which may define any equality, are not compared."""
    is_plain = isinstance(value, (str, int, float)) or type(value).__module__ == "numpy"
    return value is default or (is_plain and bool(value == default))


def _one_of_both(direction: object, directions: object) -> object:
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


def _settings_on_disk(folder: Path) -> JsonObject:
    """Return the settings of the study in a folder; empty for a new one, and where they cannot be read (yet)."""
    with contextlib.suppress(StudyError):
        return read_settings(folder) or {}
    return {}
