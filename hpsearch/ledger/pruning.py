"""Pruners by name; and pruning by one of several objectives, which Optuna itself does not do."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

import optuna
from optuna.trial import TrialState as EngineState

from ..errors import MissingMetricError, StudyError, one_of
from ..search.decisions.ladder import RUNGS, Ladder
from ..search.metrics.objective import Objective
from ..search.trial_record import TrialRecord, TrialState
from ..system.spelling import nearest_name
from .directions import optuna_directions

PRUNERS: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "none": optuna.pruners.NopPruner,
    "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
}


def as_pruner(pruner: object) -> optuna.pruners.BasePruner:
    """Return a pruner of Optuna as it is, or one by name; for the rungs, the one that takes their place without them.

    Raises:
        StudyError: it is neither.
    """
    if pruner is None:
        return optuna.pruners.NopPruner()
    if is_rungs(pruner):
        return optuna.pruners.MedianPruner()
    if isinstance(pruner, optuna.pruners.BasePruner):
        return pruner
    if isinstance(pruner, str) and pruner in PRUNERS:
        return PRUNERS[pruner]()
    raise StudyError(
        f"pruner must be an Optuna pruner, a Ladder, None or one of {one_of([RUNGS, *PRUNERS])}, but got {pruner!r}."
        f"{nearest_name(str(pruner), [RUNGS, *PRUNERS])}"
    )


def is_rungs(pruner: object) -> bool:
    """Return whether a user asks for rungs, where trials pause, in place of a pruner of Optuna."""
    return isinstance(pruner, Ladder) or (isinstance(pruner, str) and pruner == RUNGS)


class PruningByOneObjective:
    """Asks a pruner about a study of several objectives as if it had only one.

    It keeps a second study in memory, of that objective alone, with the reports of all ended trials under the numbers
    they have (if several searches share the study, as far as possible).

    Args:
        name: of the study; Hyperband's brackets depend on it.
        objective: the one that prunes.
        pruner: any pruner of Optuna.
    """

    def __init__(self, name: str, objective: Objective, pruner: optuna.pruners.BasePruner) -> None:
        self._objective = objective
        [direction] = optuna_directions([objective.direction])
        self._study = optuna.create_study(study_name=name, pruner=pruner, direction=direction)
        self._known: set[int] = set()

    def begin(self, records: Sequence[TrialRecord], number: int) -> optuna.Trial:
        """Take the ended trials into account, and return the trial whose reports the pruner will judge."""
        ended = {each.number: each for each in records if each.state.is_counted and each.number not in self._known}
        for place in range(len(self._study.get_trials(deepcopy=False)), number):
            if place not in ended:  # still running elsewhere, or refused
                self._study.tell(self._study.ask(), state=EngineState.FAIL)
            else:
                self._repeat(ended.pop(place))
        for record in ended.values():
            self._repeat(record)
        return self._study.ask()

    def end(self, trial: optuna.Trial, record: TrialRecord) -> None:
        """Take the end of a trial into account that the pruner has judged."""
        if record.state.is_counted:
            self._known.add(record.number)
        values = [value for value in self._values(record).values() if math.isfinite(value)]
        if record.state.has_result and values:
            self._study.tell(trial, values[-1], state=EngineState.COMPLETE)
        else:
            is_pruned = record.state is TrialState.PRUNED
            self._study.tell(trial, state=EngineState.PRUNED if is_pruned else EngineState.FAIL)

    def _repeat(self, record: TrialRecord) -> None:
        """Let the pruner see a trial of another session, report by report: it may note how far each has come."""
        trial = self._study.ask()
        for resource, value in self._values(record).items():
            trial.report(value, resource)
            trial.should_prune()
        self.end(trial, record)

    def _values(self, record: TrialRecord) -> dict[int, float]:
        """Return the objective by resource, where it was reported and finite."""
        seen: dict[int, float] = {}
        for report in record.reports:
            resource = report.comparable_resource
            with contextlib.suppress(MissingMetricError):
                value = self._objective.value(report.metrics)
                if resource is not None and math.isfinite(value):
                    seen.setdefault(resource, value)
        return seen
