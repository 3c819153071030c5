"""Failures before the first success of a study: once another search begins, they do not count."""

from __future__ import annotations

from collections.abc import Sequence

from ...system.json_types import JsonObject
from ..trial_record import TrialRecord, TrialState

# In `study.json`: failed trials with smaller numbers do not count.
UNCOUNTED_BEFORE = "uncounted_before"


def uncounted_before(records: Sequence[TrialRecord]) -> int:
    """Return, of a search that ends with these trials, below which number those that failed will not count.

    >>> failed = TrialRecord(0, "run-0", TrialState.FAILED, {})
    >>> uncounted_before([failed]), uncounted_before([])
    (1, 0)
    """
    if any(each.reports and each.state is not TrialState.FAILED for each in records):
        return 0
    return max((each.number + 1 for each in records if each.state is TrialState.FAILED), default=0)


def count_uncounted(settings: JsonObject | None, records: Sequence[TrialRecord]) -> int:
    """Return how many of the failed trials do not count; `settings` is what `study.json` holds, None of a new study.

    A trial that the user has requested counts: the request has raised the total by one, and is not repeated.
    """
    bound = 0 if settings is None else settings.get(UNCOUNTED_BEFORE, 0)
    failed = (each for each in records if each.state is TrialState.FAILED and each.origin is None)
    return sum(each.number < bound for each in failed)
