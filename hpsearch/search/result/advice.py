"""Sentences at the end of a search about what a further one might find."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...errors import SpaceError
from ...system.json_types import JsonObject
from ..metrics.objective import Objective
from ..metrics.selection import best_records
from ..space.parameters import Float, Int, Params
from ..space.search_space import SearchSpace
from ..trial import TrialRecord, TrialState
from .earlier_best import earlier_best
from .findings.ties import ties
from .known_study import KnownStudy, known_noise, on_disk

# So near to the end of its range, as a fraction of it, a value is at the end.
_AT_THE_END = 0.01
# A range of fewer whole numbers is at an end too often.
_FEWEST_VALUES = 5


def advice(study: KnownStudy, records: Sequence[TrialRecord]) -> list[str]:
    """Return sentences about the best trial's rivals and parameters, about better pruned trials, and the scope.

    Empty: there is nothing to say, as with several objectives, where another trial is best by each of them.
    """
    best = best_records(records, study.objectives) if len(study.objectives) == 1 else []
    if not best:
        return []
    earlier = earlier_best(records, study.objectives, study.scope)
    return [
        *ties(records, study.objectives, known_noise(on_disk(study), records)),
        *_at_the_ends(study.described_space(), best[0].params),
        *_pruned_ahead(study.objectives[0], best[0], records, best[0].value if earlier is None else earlier.value),
        *([] if earlier is None else [earlier.describe()]),
    ]


def _at_the_ends(described: JsonObject | str, params: Params) -> list[str]:
    try:
        space = SearchSpace.from_description(described if isinstance(described, Mapping) else {})
    except SpaceError:  # of a later version
        return []
    sentences = []
    for name, parameter in space.all_parameters().items():
        value = params.get(name)
        if name == "seed" or not isinstance(parameter, (Float, Int)) or not parameter.contains(value):
            continue
        end = _end(parameter, float(params[name]))
        if end is not None:
            sentences.append(
                f"The best {name}, {value:g}, is at the {end} end of its range: a wider range may hold better values."
            )
    return sentences


def _end(parameter: Float | Int, value: float) -> str | None:
    """Return at which end of its range a value is; None: at neither, or there is nothing beyond."""
    low, high = (float(each) for each in parameter.edges())
    if isinstance(parameter, Int) and (high - low) / parameter.step + 1 < _FEWEST_VALUES:
        return None
    if parameter.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    margin = _AT_THE_END * (high - low)
    if high - value <= margin:
        return "upper"
    is_bound = not parameter.log and low == 0  # what begins at zero has nothing below, most often
    return "lower" if value - low <= margin and not is_bound else None


def _pruned_ahead(
    objective: Objective, best: TrialRecord, records: Sequence[TrialRecord], to_beat: float | None
) -> list[str]:
    """Return a sentence about the best pruned trial, if its last report is better than the result of the best trial.

    Args:
        objective: of the study.
        best: the best trial.
        records: all trials.
        to_beat: the result of the best trial; where trials get worse before their end, the best report of all, as each
            pruned trial looks good then.
    """
    pruned = [
        each
        for each in records
        if each.state is TrialState.PRUNED
        and each.reports
        and all(by <= 0 for by in each.reports[-1].violations.values())
        and objective.is_better(each.reports[-1].value, to_beat)
    ]
    if not pruned:
        return []
    ahead = objective.best_of(pruned, key=lambda each: each.reports[-1].value)
    return [
        f"Trial {ahead.number} was pruned with {ahead.reports[-1].value:.4g}, which is better than {best.value:.4g}, "
        "the result of the best trial: prune later, or not at all (pruner=None)."
    ]
