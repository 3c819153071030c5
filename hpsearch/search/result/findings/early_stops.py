"""Pruned trials that the noise cannot tell apart from trials that continued."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence

from ...decisions.ladder import Ladder
from ...metrics.objective import MINIMIZE, Objective
from ...trial_record import TrialRecord, TrialState
from ..noise import Noise
from .curve_points import holds_at_end, is_past, point_of, value_at

# Rungs from this fraction of the training run on are late.
_LATE = 0.5


def early_stops(
    objective: Objective, records: Sequence[TrialRecord], noise: Noise | None, ladder: Ladder | None
) -> list[str]:
    """Return a sentence with the number of pruned trials that noise may have stopped, the noise, and what to do.

    These were, at their last report, better than the worst trial that continued from there, or worse by no more than
    the noise.

    Args:
        objective: of the study.
        records: all trials.
        noise: of a value; None: unknown.
        ladder: the rungs, if trials paused; trials that run on whatever they report do not count as trials that
            continued.
    """
    if noise is None or not records:
        return []
    first = min(each.number for each in records)
    judged = [each for each in records if ladder is None or not ladder.is_hedge(each.number - first)]
    worst_of = max if objective.direction == MINIMIZE else min

    @functools.cache
    def worst_that_continued(point: float) -> float | None:
        values = [value_at(each, point) for each in judged if is_past(each, point)]
        return worst_of((each for each in values if each is not None), default=None)

    pruned = [each for each in records if each.state is TrialState.PRUNED and holds_at_end(each)]
    close = []
    for each in pruned:
        worst = worst_that_continued(point_of(each.reports[-1]))
        value = each.reports[-1].value
        if worst is not None and (objective.is_better(value, worst) or noise.is_within(value, worst)):
            close.append(value)
    if not close:
        return []
    trials = f"{len(close)} of {len(pruned)} pruned trials {'was' if len(close) == 1 else 'were'}"
    value = statistics.median_low(close)
    return [
        f"{'The pruned trial was' if len(pruned) == 1 else trials} within the noise of those that continued (standard "
        f"error {noise.standard_error(value):.2g}, of {noise.source(value)}): {_remedy(ladder)}."
    ]


def _remedy(ladder: Ladder | None) -> str:
    """Return how fewer trials are pruned by chance, in words; later rungs only where there are early ones."""
    later = "" if ladder is None or ladder.fractions[0] >= _LATE else f" (pruner=Ladder(({_LATE},)))"
    return f"evaluate on more samples, or prune later{later}, or not at all (pruner=None)"
