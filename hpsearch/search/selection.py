"""The one place that decides which report, value and checkpoint stand for a trial, and which trial wins.

Scopes, with the names Ray Tune gives them:

- ``last``: the last report;
- ``all``: the best report;
- ``avg``, ``last-5-avg``, ``last-10-avg``: the mean over all, the last five, the last ten reports; the checkpoint is
  that of the last report, since a mean belongs to no single one.

Reports that are not finite are left out, and averages divide by the number of reports left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import StudyError, nearest_name, one_of
from ..scopes import SCOPES
from .objective import MINIMIZE, Objective
from .trial import Report, TrialRecord

_WINDOWS = {"avg": None, "last-5-avg": 5, "last-10-avg": 10}


@dataclass(frozen=True)
class Selected:
    """The value of a trial by scope, and the report whose weights stand for it."""

    value: float
    report: Report


def check_scope(scope: str) -> str:
    """Return `scope` if it is one.

    Raises:
        StudyError: it is none; the message lists them.
    """
    if scope not in SCOPES:
        raise StudyError(
            f"scope={scope!r} is not a scope; allowed: {one_of(SCOPES)}.{nearest_name(str(scope), SCOPES)}"
        )
    return scope


def select_report(reports: Sequence[Report], scope: str, objective: Objective) -> Selected | None:
    """Return what stands for a trial with these reports; None if none of them is finite.

    >>> from hpsearch.search.objective import resolve_objective
    >>> loss = resolve_objective(None, None, has_metrics=False)
    >>> reports = [Report(value, step, step, step, {}) for step, value in enumerate([3.0, 8.0, 4.0], start=1)]
    >>> [select_report(reports, scope, loss).value for scope in ("last", "all", "avg")]
    [4.0, 3.0, 5.0]
    """
    finite = [report for report in reports if math.isfinite(report.value)]
    if not finite:
        return None
    if scope == "all":
        best: Report = objective.best_of(finite, key=lambda report: report.value)
        return Selected(best.value, best)
    if scope == "last":
        return Selected(finite[-1].value, finite[-1])
    window = _WINDOWS[scope]
    chosen = finite if window is None else finite[-window:]
    return Selected(math.fsum(report.value for report in chosen) / len(chosen), finite[-1])


def ranking(records: Iterable[TrialRecord], objective: Objective) -> list[TrialRecord]:
    """Return the trials that have a result, best first; of equals the earlier trial first."""
    eligible = [each for each in records if each.state.has_result and each.value is not None]
    sign = 1.0 if objective.direction == MINIMIZE else -1.0
    return sorted(eligible, key=lambda record: (sign * float(record.value or 0.0), record.number))


def best_record(records: Iterable[TrialRecord], objective: Objective) -> TrialRecord | None:
    """Return the best trial, or None if no trial has a result."""
    ranked = ranking(records, objective)
    return ranked[0] if ranked else None
