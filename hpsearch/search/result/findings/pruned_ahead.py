"""A pruned trial that had been better than the result of the best one."""

from __future__ import annotations

from collections.abc import Sequence

from ...metrics.objective import Objective
from ...trial_record import TrialRecord, TrialState
from .curve_points import holds_at_end, point_of, value_at


def pruned_ahead(
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
        and holds_at_end(each)
        and objective.is_better(each.reports[-1].value, to_beat)
    ]
    if not pruned:
        return []
    ahead = objective.best_of(pruned, key=lambda each: each.reports[-1].value)
    why = "; ".join(each for each in (ahead.reason, _rank(objective, ahead, records)) if each)
    return [
        f"Trial {ahead.number} was pruned with {ahead.reports[-1].value:.4g}, which is better than {best.value:.4g}, "
        f"the result of the best trial{f' ({why})' if why else ''}: prune later, or not at all (pruner=None)."
    ]


def why_pruned(
    objective: Objective, trial: TrialRecord, best: TrialRecord, records: Sequence[TrialRecord]
) -> str | None:
    """Return why a trial was pruned whose last report is better than the best result; None if that is not so.

    Args:
        objective: of the study.
        trial: that has just ended.
        best: the best trial.
        records: all trials.
    """
    is_pruned = trial.state is TrialState.PRUNED and trial.replica is None and holds_at_end(trial)
    if not is_pruned or not objective.is_better(trial.reports[-1].value, best.value):
        return None
    last = trial.reports[-1]
    of_its_run = f", {last.fraction:.0%} of its training run" if last.fraction else ""
    return (
        f"trial {trial.number} was {trial.reason or 'pruned'} (step {last.step}{of_its_run}) though {last.value:.4g} "
        f"is better than the best result, {best.value:.4g}: "
        f"{_rank(objective, trial, records) or 'no other trial was better at that point, but it was not promoted'}"
    )


def _rank(objective: Objective, ahead: TrialRecord, records: Sequence[TrialRecord]) -> str:
    """Return how many of the other trials were better at the same point, in words; empty if none was."""
    last = ahead.reports[-1]
    values = [value_at(each, point_of(last)) for each in records if each.number != ahead.number]
    known = [each for each in values if each is not None]
    better = sum(objective.is_better(each, last.value) for each in known)
    return (
        f"{better} of {len(known)} other trials {'was' if better == 1 else 'were'} better at that point"
        if better
        else ""
    )
