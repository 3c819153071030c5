"""The value of a trial at a point of its training run, to compare it with another trial there."""

from __future__ import annotations

import bisect
import math

from ...trial_record import Report, TrialRecord

# Reports that differ by this fraction are at the same point: the numbers of steps are rounded.
_TOLERANCE = 0.01


def point_of(report: Report) -> float:
    """Return the fraction of the training run at a report, or the data seen if the fraction is unknown."""
    return report.fraction or report.resource


def value_at(record: TrialRecord, point: float) -> float | None:
    """Return what a trial reported at a point of its training run; None if it has no finite value there."""
    first = bisect.bisect_left(record.reports, point * (1 - _TOLERANCE), key=point_of)
    last = bisect.bisect_right(record.reports, point * (1 + _TOLERANCE), key=point_of)
    near = [each for each in record.reports[first:last] if math.isfinite(each.value)]
    return min(near, key=lambda each: abs(point_of(each) - point)).value if near else None


def is_past(record: TrialRecord, point: float) -> bool:
    """Return whether a trial has trained on from a point of its training run, and reported."""
    return bool(record.reports) and point_of(record.reports[-1]) > point * (1 + _TOLERANCE)


def holds_at_end(record: TrialRecord) -> bool:
    """Return whether a trial has a report, and the last one is finite and breaks no constraint."""
    last = record.reports[-1] if record.reports else None
    return last is not None and math.isfinite(last.value) and all(by <= 0 for by in last.violations.values())
