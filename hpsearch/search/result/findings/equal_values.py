"""Results that cannot be compared: equal values, or a single one."""

from __future__ import annotations

from collections.abc import Sequence

from ...metrics.objective import Objective
from ...trial_record import TrialRecord


def are_equal(records: Sequence[TrialRecord]) -> bool:
    """Return whether at least two trials may be the best, and all of them have the same value."""
    values = [each.values[0] for each in records if each.is_eligible]
    return len(values) > 1 and len(set(values)) == 1


def equal_values(objective: Objective, records: Sequence[TrialRecord]) -> list[str]:
    """Return a sentence if all results are equal."""
    if not are_equal(records):
        return []
    values = [each.values[0] for each in records if each.is_eligible]
    trials = "Both trials" if len(values) == 2 else f"All {len(values)} trials"
    return [
        f"{trials} with a result have the same {objective.name}, {values[0]:.4g}: the metric does not distinguish "
        "them, or it is constant."
    ]


def single_result(records: Sequence[TrialRecord]) -> list[str]:
    """Return a sentence if only one trial has a result, and no other may still get one."""
    with_result = [each for each in records if each.state.has_result and each.values]
    if len(with_result) != 1 or any(each.state.is_open for each in records):
        return []
    [only] = with_result
    return [f"Only trial {only.number} has a result, {only.values[0]:.4g}: it has nothing to be compared with."]
