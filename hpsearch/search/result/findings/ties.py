"""Trials that cannot be told apart from the best one."""

from __future__ import annotations

from collections.abc import Sequence

from ...metrics.objective import Objective
from ...metrics.selection import ranking
from ...trial_record import TrialRecord
from ..noise import Noise

_MOST_NAMED = 3


def tied_with_best(
    records: Sequence[TrialRecord], objectives: Sequence[Objective], noise: Noise | None
) -> list[TrialRecord]:
    """Return the trials whose values are within the noise of the best one, best first, without the best one.

    Each is compared with the best trial alone. The best of many equal trials owes its place to luck, so some that are
    equal to it are missing from the list.

    Returns:
        An empty list with several objectives and without an estimate of the noise.
    """
    if noise is None or len(objectives) != 1:
        return []
    ranked = ranking(records, objectives)
    return [each for each in ranked[1:] if noise.is_within(ranked[0].values[0], each.values[0])]


def ties(records: Sequence[TrialRecord], objectives: Sequence[Objective], noise: Noise | None) -> list[str]:
    """Return a sentence about the trials that cannot be told apart from the best one; at most three are named."""
    tied = tied_with_best(records, objectives, noise)
    if noise is None or not tied:
        return []
    [best] = ranking(records, objectives, 1)
    named = [f"{_digits(each.values[0])} (trial {each.number})" for each in tied[:_MOST_NAMED]]
    more = [f"{len(tied) - _MOST_NAMED} more"] if len(tied) > _MOST_NAMED else []
    *first, last = [*named, *more]
    listed = f"{', '.join(first)} and {last}" if first else last
    value, verb = best.values[0], "are" if first else "is"
    return [
        f"{_digits(value)} (trial {best.number}) is the best value; {listed} {verb} within the noise of "
        f"{noise.source(value)} (standard error {noise.standard_error(value):.2g})."
    ]


def _digits(value: float) -> str:
    """Return a value with four significant digits, zeros at the end included: the values are compared."""
    return f"{value:#.4g}".rstrip(".")
