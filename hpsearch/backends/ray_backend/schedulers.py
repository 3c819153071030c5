"""Schedulers of Ray Tune, which stop, pause or perturb trials by what they report."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler, create_scheduler

from ...errors import ArgumentError, StudyError, nearest_name, one_of
from ...search.execution import Searchable
from ...search.space import SearchSpace
from ...search.study import Study

_NAMES = ("fifo", "asha", "hyperband", "median_stopping_rule", "pbt", "pb2")


def as_scheduler(scheduler: Any) -> TrialScheduler | None:
    """Return a scheduler of Ray as it is, or one by name; None for None, and for one that lets all trials run.

    Raises:
        StudyError: it is neither.
    """
    if scheduler is None or (isinstance(scheduler, FIFOScheduler) and type(scheduler) is FIFOScheduler):
        return None
    if isinstance(scheduler, TrialScheduler):
        return scheduler
    if isinstance(scheduler, str):
        try:
            return as_scheduler(create_scheduler(scheduler))
        except Exception as error:
            raise StudyError(
                f"scheduler={scheduler!r} cannot be made: {error}. Pass a scheduler of ray.tune.schedulers, or one of "
                f"{one_of(_NAMES)}.{nearest_name(scheduler, _NAMES)}"
            ) from error
    raise StudyError(
        f"scheduler must be a scheduler of ray.tune.schedulers or one of {one_of(_NAMES)}, but got {scheduler!r}."
    )


def check_scheduler(scheduler: TrialScheduler | None, study: Study, recipe: Searchable) -> None:
    """Check that a scheduler has something to judge trials by.

    Raises:
        StudyError: it has not.
    """
    if scheduler is None:
        return
    name = type(scheduler).__name__
    if recipe.args.eval_strategy == "no":
        raise StudyError(
            f"scheduler={name} judges trials while they train, but there is no evaluation during training: set "
            "eval_strategy='epoch' or 'steps' in the TrainingArguments, or leave out the scheduler."
        )
    if len(study.objectives) > 1 and study.pruning_objective is None:
        raise StudyError(
            f"scheduler={name} needs a metric to judge trials by, and this search has {len(study.objectives)} "
            "objectives: name it in pruning_metric, or leave out the scheduler."
        )
    for parameter in perturbed(scheduler):
        try:
            recipe.check_changeable(parameter)
        except ArgumentError as error:
            raise StudyError(f"scheduler={name} perturbs {parameter!r}: {error}") from error
    if isinstance(study.space, SearchSpace):
        check_perturbed(scheduler, study.space.all_parameters())


def perturbed(scheduler: TrialScheduler) -> list[str]:
    """Return the names of the parameters that a scheduler of population-based training changes."""
    if not isinstance(scheduler, PopulationBasedTraining):
        return []
    return [*(getattr(scheduler, "_hyperparam_mutations", None) or getattr(scheduler, "_hyperparam_bounds", {}))]


def check_perturbed(scheduler: TrialScheduler, known: Collection[str]) -> None:
    """Check that the parameters that a scheduler changes are among the `known` ones of a trial.

    Raises:
        StudyError: one is not.
    """
    for parameter in perturbed(scheduler):
        if parameter not in known:
            raise StudyError(
                f"scheduler={type(scheduler).__name__} perturbs {parameter!r}, which is not in the search space; add "
                f"it there.{nearest_name(parameter, known)}"
            )
