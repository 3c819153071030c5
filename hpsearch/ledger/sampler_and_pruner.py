"""The sampler, pruner, rungs and terminator of a search: those that the user gave, or the defaults for its study."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import optuna
from optuna.pruners import NopPruner

from ..errors import StudyError
from ..search.decisions.evaluation_points import epochs_of, points_of
from ..search.decisions.ladder import RUNGS, TOO_FEW, Ladder
from ..search.decisions.repeats import Repeats
from ..search.decisions.training_budget import expected_trials
from ..search.space.search_space import SearchSpace
from ..search.study import Study
from ..system.json_types import JsonObject
from ..trial.searchable import Searchable
from .branches import branches_of
from .curve_sampler import CurveSampler
from .named_samplers import TPE, as_sampler, sampler_kind
from .pruning import as_pruner, is_rungs
from .recorded_defaults import DEFAULTS, Defaults
from .terminators import STAGNATION, as_terminator

# They take a paused trial for one that is not done, and try the same again.
_TRY_EVERYTHING = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
_BY_SECONDS = (
    "the cost of a trial is its measured seconds, as timeout= is given without n_trials=: the choices "
    "cannot be repeated (with n_trials= the cost is a count of operations)"
)


class Given:
    """The sampler, pruner and terminator as the user gave them; see `Trainer.hyperparameter_search`.

    Args:
        sampler, pruner, terminator: of Optuna, by name, or a default.
        is_scheduled: whether a scheduler stops trials in place of a pruner.

    Raises:
        StudyError: one of them is not allowed.
        MissingPackageError: the sampler needs a package.
    """

    def __init__(
        self, sampler: Any = None, pruner: object = RUNGS, terminator: object = None, is_scheduled: bool = False
    ) -> None:
        self.sampler, self.sampler_kind = sampler, sampler_kind(sampler)
        self.has_rungs = is_rungs(pruner)
        self.ladder = pruner if isinstance(pruner, Ladder) else None
        self.pruner = as_pruner(pruner)
        self.terminator = as_terminator(terminator)
        self.is_default_terminator = terminator is True
        self.is_scheduled = is_scheduled


@dataclass(frozen=True)
class Choices:
    """What a study is searched with.

    Attributes:
        given: by the user.
        study: the settings.
        is_evaluated: whether trials are evaluated while they train.
        cannot_pause: why trials that would pause at rungs cannot; None: they can, or need not.
        points: the fractions of a training run at which trials are evaluated; None: unknown.
        epochs: of each trial's training run; None: unknown.
        defaults: of the study.
        recorded_defaults: the defaults that `study.json` records; None: the study is too small to have some.
    """

    given: Given
    study: Study
    is_evaluated: bool = True
    cannot_pause: str | None = None
    points: tuple[float, ...] | None = None
    epochs: float | None = None
    defaults: Defaults = field(default_factory=Defaults.of_0_8_0)
    recorded_defaults: JsonObject | None = None

    @classmethod
    def of(cls, given: Given, study: Study, recipe: Searchable) -> Choices:
        """Return the choices for a study whose trials a recipe makes; `begun` adds those that the study recorded."""
        is_evaluated = recipe.args.eval_strategy != "no"
        found = cls(given, study, is_evaluated, None, points_of(recipe, study), epochs_of(recipe, study))
        return replace(found, cannot_pause=recipe.cannot_pause) if found._may_pause else found

    def begun(self, settings: JsonObject | None) -> Choices:
        """Return the choices with the defaults that the study has.

        Args:
            settings: what `study.json` holds; None: the study is new.
        """
        defaults = Defaults.of(self.study, settings, self.given.ladder, self.epochs, self._may_pause)
        recorded = defaults.to_json() if self._has_many else (settings or {}).get(DEFAULTS)
        return replace(self, defaults=defaults, recorded_defaults=recorded)

    def check(self) -> None:
        """Check that they fit the study.

        Raises:
            StudyError: they do not.
        """
        given, study = self.given, self.study
        if study.start_with and issubclass(given.sampler_kind, optuna.samplers.GridSampler):
            raise StudyError("start_with cannot be combined with a GridSampler, which has an order of its own.")
        if given.is_scheduled and Repeats.of(study).is_possible:
            name = "folds" if study.fold_count else "repeats"
            raise StudyError(
                f"{name}={study.fold_count or study.repeats} trains trials again to completion, but a scheduler of Ray "
                f"Tune judges every trial: leave {name} or scheduler out."
            )
        if len(study.objectives) == 1:
            return
        prunes = not self.has_rungs and not isinstance(given.pruner, NopPruner)
        if prunes and study.pruning_objective is None:
            raise StudyError(
                f"pruner={type(given.pruner).__name__} needs a metric to judge trials by, and this search has "
                f"{len(study.objectives)} objectives: name it in pruning_metric, or pass pruner='none'."
            )
        if given.terminator is not None:
            raise StudyError("A terminator judges one objective, but this search has several.")

    @property
    def has_rungs(self) -> bool:
        """True if the user wants rungs, by default or not, and trials can pause."""
        return self.given.has_rungs and self.cannot_pause is None

    @property
    def prunes_by_rungs(self) -> bool:
        """True if trials pause at rungs: an evaluation can judge them, and there are enough of them.

        A study of several objectives that began before they had rungs has none, unless the user passes a ladder.
        """
        is_new_enough = len(self.study.objectives) == 1 or self.defaults.pauses_several
        return self._may_pause and (is_new_enough or self.given.ladder is not None)

    @property
    def ladder(self) -> Ladder | None:
        """The rungs; None without."""
        return self.defaults.ladder if self.prunes_by_rungs else None

    @property
    def pruner(self) -> optuna.pruners.BasePruner:
        """The pruner of Optuna; with rungs there is none, but where one of several objectives prunes."""
        is_by_rungs = self.has_rungs and self.study.pruning_objective is None
        return NopPruner() if is_by_rungs else self.given.pruner

    def make_sampler(self, has_parallel_trials: bool) -> optuna.samplers.BaseSampler:
        """Return the sampler: the one given, or a Gaussian process over learning curves, or TPE."""
        study = self.study
        if self.given.sampler is None and self._may_model:
            branches = branches_of(study.space) if isinstance(study.space, SearchSpace) else None
            first, by_seconds = self.defaults.first(study), study.costs_in_seconds
            return CurveSampler(study.seed, study.objective, first, study.priors(), branches, by_seconds)
        wanted = TPE if self.given.sampler is None else self.given.sampler
        return as_sampler(wanted, study.seed, has_parallel_trials)

    def notes(self, sampler: optuna.samplers.BaseSampler) -> list[str]:
        """Describe the sampler, the pruner and the terminator for the user."""
        is_by_seconds = self.study.costs_in_seconds and isinstance(sampler, CurveSampler)
        return [
            f"{_described_sampler(sampler, self.study)}{self._why_no_curves}",
            *([_BY_SECONDS] if is_by_seconds else []),
            self._described_pruner(),
            *([] if self.given.terminator is None else [self._described_terminator()]),
        ]

    @property
    def _has_many(self) -> bool:
        """Whether the study is expected to have more trials than those that all run to completion."""
        return expected_trials(self.study.n_trials, self.study.budget) > TOO_FEW

    @property
    def _may_pause(self) -> bool:
        """Whether trials pause at rungs in a study that begins now."""
        tries_everything = issubclass(self.given.sampler_kind, _TRY_EVERYTHING)
        is_worth_it = self._has_many and self.is_evaluated and not tries_everything
        return self.has_rungs and is_worth_it and self.study.pruning_objective is None

    @property
    def _may_model(self) -> bool:
        """Whether the Gaussian process over learning curves proposes parameters; it models one objective."""
        return len(self.study.objectives) == 1 and (self.prunes_by_rungs or self._models_complete_trials)

    @property
    def _models_complete_trials(self) -> bool:
        """Whether the Gaussian process proposes parameters although every trial runs to completion."""
        may_model = self.defaults.models_in_full and not self.given.is_scheduled
        return may_model and isinstance(self.pruner, NopPruner)

    @property
    def _why_no_curves(self) -> str:
        """Why TPE proposes parameters although no sampler is given; empty where it does not."""
        if self.given.sampler is not None or self._may_model or self.cannot_pause is None:
            return ""
        return ", as the default one needs trials that pause at rungs or run to completion"

    def _described_terminator(self) -> str:
        if self.given.is_default_terminator and self.prunes_by_rungs:
            return f"terminator: ends after {STAGNATION} trials in a row without a new best at any rung, or sooner"
        return f"terminator {type(self.given.terminator).__name__}"

    @property
    def _why_no_rungs(self) -> str:
        """Why trials do not pause although no pruner is given; empty where the arguments of the search say it."""
        if not self._has_many:
            return f", as there are fewer than {TOO_FEW + 1}"
        return "" if self.is_evaluated else ", as there is no evaluation during training"

    def _described_pruner(self) -> str:
        given, study = self.given, self.study
        if self.prunes_by_rungs:
            default = "" if given.ladder is not None else " (default; pruner=None trains every trial to completion)"
            by = "" if len(study.objectives) == 1 else " by non-dominated sorting"
            return f"{self.defaults.ladder.describe(self.points, by)}{default}"
        unused = "" if given.ladder is None else "; the Ladder is left aside"
        if self._may_pause:
            return (
                "nothing is pruned (the study began in a version without rungs for several objectives; "
                "pruner=Ladder(...) adds rungs)"
            )
        if len(study.objectives) > 1 and study.pruning_objective is None and self.cannot_pause is not None:
            why = f"trials do not pause, as {self.cannot_pause}"
            return f"nothing is pruned: {why} (pruning_metric= names a metric that prunes){unused}"
        is_by_rungs = self.has_rungs and study.pruning_objective is None
        if isinstance(given.pruner, NopPruner) or is_by_rungs:
            return f"pruner none: every trial runs to completion{self._why_no_rungs if is_by_rungs else ''}{unused}"
        by = "" if study.pruning_objective is None else f" by {study.pruning_objective.name}"
        why = "" if self.cannot_pause is None else f" in place of rungs: trials do not pause, as {self.cannot_pause}"
        return f"pruner {type(given.pruner).__name__}{by}{why}{unused}"


def _described_sampler(sampler: optuna.samplers.BaseSampler, study: Study) -> str:
    priors = ", ".join(f"{name}={value!r}" for name, value in study.priors().items())
    if not priors:
        return f"sampler {type(sampler).__name__}"
    use = "with the prior" if isinstance(sampler, CurveSampler) else "which does not use the prior"
    return f"sampler {type(sampler).__name__}, {use} {priors}"
