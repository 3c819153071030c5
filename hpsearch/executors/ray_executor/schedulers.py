"""Schedulers of Ray Tune, which stop, pause or perturb trials by what they report."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from ray.tune.result import TIME_THIS_ITER_S, TIME_TOTAL_S, TIMESTAMP
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTrainingReplay,
    ResourceChangingScheduler,
    TrialScheduler,
    create_scheduler,
)

from ...errors import StudyError, one_of
from ...search.metrics.added_metrics import ADDED
from ...search.metrics.objective import MINIMIZE, Objective
from ...search.study import Study
from ...system.spelling import nearest_name
from ...trial.searchable import Searchable
from .tune_worker import IN_EVERY_REPORT, OBJECTIVE

Copied = TypeVar("Copied")

# Those that can be made without arguments; Ray has no name for ASHA.
_NAMES = {"asha": "async_hyperband", **{each: each for each in ("hyperband", "median_stopping_rule", "fifo")}}
_INSTEAD = {
    HyperBandForBOHB: "it works with the searcher TuneBOHB only; use HyperBandScheduler",
    PopulationBasedTrainingReplay: "trainer.replay(number=...) trains a trial again with its changes of parameters",
    ResourceChangingScheduler: "a trial keeps its resources_per_trial; pass its base_scheduler",
}


# What Tune itself adds to every report that it passes on.
_IN_EVERY_RESULT = (TIME_TOTAL_S, TIME_THIS_ITER_S, "time_since_restore", "iterations_since_restore", TIMESTAMP)


def as_scheduler(scheduler: object) -> TrialScheduler | None:
    """Return a copy of a scheduler of Ray, or one by name; None for None, and for one that lets all trials run.

    Schedulers remember trials, so that of another search would take those for trials of this one.

    Raises:
        StudyError: it is neither.
    """
    if scheduler is None or (isinstance(scheduler, FIFOScheduler) and type(scheduler) is FIFOScheduler):
        return None
    for kind, instead in _INSTEAD.items():
        if isinstance(scheduler, kind):
            raise StudyError(f"scheduler={kind.__name__} cannot be used here: {instead}.")
    if isinstance(scheduler, TrialScheduler):
        return copied(scheduler)
    if isinstance(scheduler, str):
        try:
            return as_scheduler(create_scheduler(_NAMES.get(scheduler, scheduler)))
        except StudyError:
            raise
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
    _check_metric(scheduler, study.pruning_objective or study.objective)
    _check_keys(scheduler)


def _check_metric(scheduler: TrialScheduler, objective: Objective) -> None:
    name, metric, mode = type(scheduler).__name__, scheduler.metric, getattr(scheduler, "_mode", None)
    if metric is not None and hasattr(scheduler, "_mode") and mode is None:
        raise StudyError(
            f"scheduler={name} was made with metric={metric!r} and no mode: pass mode='min' or 'max' too, or leave "
            f"metric out to judge trials by {objective.name}."
        )
    if metric in (None, OBJECTIVE, objective.name) and mode not in (None, _mode(objective)):
        raise StudyError(
            f"scheduler={name} was made with mode={mode!r}, but {objective.name} is to be {objective.direction}d. "
            "Leave metric and mode out of its constructor."
        )


def _check_keys(scheduler: TrialScheduler) -> None:
    for option, key in _looked_at(scheduler):
        check_key(_made(scheduler), option, key)


def check_key(what: str, option: str, key: str) -> None:
    """Refuse a metric or a counter that no report has; of metrics of evaluations, the reports show what there is.

    Args:
        what: looks at the reports, in words.
        option: names the key there.
        key: of the reports.

    Raises:
        StudyError: there is no such key.
    """
    known = [OBJECTIVE, *IN_EVERY_REPORT, *_IN_EVERY_RESULT]
    if key not in known and key not in ADDED and not str(key).startswith("eval_"):
        offered = [*known, f"eval_{key}"] if option == "metric" else known
        raise StudyError(
            f"{what} {option}={key!r}, which the reports do not have; they have {', '.join(known)}, and metrics of the "
            f"evaluation, which begin with 'eval_'.{nearest_name(str(key), offered)}"
        )


def _made(scheduler: TrialScheduler) -> str:
    return f"scheduler={type(scheduler).__name__} was made with"


def _looked_at(scheduler: TrialScheduler) -> list[tuple[str, str]]:
    keys = (("metric", scheduler.metric), ("time_attr", getattr(scheduler, "_time_attr", None)))
    return [(option, key) for option, key in keys if isinstance(key, str)]


def tell_metric(scheduler: TrialScheduler, metric: str | None, mode: str | None) -> None:
    """Set the metric and mode of a scheduler, unless its constructor has set them."""
    own_mode = getattr(scheduler, "_mode", None)
    scheduler.set_search_properties(None if scheduler.metric else metric, None if own_mode else mode)


def check_report(scheduler: TrialScheduler, result: Mapping[str, object]) -> None:
    """Check that a report has what a scheduler looks at; many of them do nothing if it is not there.

    Raises:
        StudyError: it has not.
    """
    for option, key in _looked_at(scheduler):
        check_reported(_made(scheduler), option, key, result)


def check_reported(what: str, option: str, key: str, result: Mapping[str, object]) -> None:
    """Check that a report has a key; the arguments are those of `check_key`.

    Raises:
        StudyError: it has not.
    """
    if key not in result:
        known = sorted(name for name, value in result.items() if isinstance(value, (int, float)))
        raise StudyError(
            f"{what} {option}={key!r}, which the reports do not have; they have {', '.join(known)}."
            f"{nearest_name(key, known)}"
        )


def is_gathering(scheduler: TrialScheduler | None) -> bool:
    """Return whether a scheduler waits for further trials: HyperBand compares those of a bracket, once it is full."""
    if not isinstance(scheduler, HyperBandScheduler):
        return False
    bracket: Any = scheduler._state["bracket"]
    return bracket is not None and not bracket.filled()


def copied(part: Copied) -> Copied:
    """Return a copy of what a user gave; what cannot be copied as it is."""
    with contextlib.suppress(Exception):
        return copy.deepcopy(part)
    return part


def _mode(objective: Objective) -> str:
    return "min" if objective.direction == MINIMIZE else "max"
