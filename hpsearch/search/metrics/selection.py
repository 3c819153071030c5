"""The one place that decides which report, value and checkpoint are selected for a trial, and which trial wins.

Scopes, with the names Ray Tune gives them:

- ``last``: the last report;
- ``all``: the best report;
- ``avg``, ``last-5-avg``, ``last-10-avg``: the mean over all, the last five, the last ten reports; the checkpoint is
  that of the last report, since a mean belongs to no single one.

Reports that are not finite are left out, and averages divide by the number of reports left.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import MissingMetricError, StudyError, one_of
from ...system.scope_names import SCOPES
from ...system.spelling import nearest_name
from ..trial_record import Report, TrialRecord
from .constraints import Constraint
from .objective import MINIMIZE, Objective, sum_of_losses
from .replicas import has_replicas, runs_of, shrunken_costs

BROKEN = 1e100
_WINDOWS = {"avg": None, "last-5-avg": 5, "last-10-avg": 10}


@dataclass(frozen=True)
class Selected:
    """The values of a trial by scope, one for each objective, and the report whose weights are selected."""

    values: tuple[float, ...]
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


def select_report(reports: Sequence[Report], scope: str, objectives: Sequence[Objective]) -> Selected | None:
    """Return the selection for a trial with these reports; None if none of them is finite.

    >>> from hpsearch.search.metrics.objective import resolve_objectives
    >>> loss = resolve_objectives(None, None, has_metrics=False)
    >>> reports = [Report((value,), step, step, step, {}) for step, value in enumerate([3.0, 8.0, 4.0], start=1)]
    >>> [select_report(reports, scope, loss).values for scope in ("last", "all", "avg")]
    [(4.0,), (3.0,), (5.0,)]
    """
    finite = [report for report in reports if all(math.isfinite(value) for value in report.values)]
    if not finite:
        return None
    if scope == "all":
        best: Report = objectives[0].best_of(finite, key=lambda report: report.value)
        return Selected(best.values, best)
    if scope == "last":
        return Selected(finite[-1].values, finite[-1])
    window = _WINDOWS[scope]
    chosen = finite if window is None else finite[-window:]
    columns = zip(*(report.values for report in chosen), strict=True)
    return Selected(tuple(math.fsum(column) / len(chosen) for column in columns), finite[-1])


def says_how_good(reports: Sequence[Report], objective: Objective, place: int = 0) -> bool:
    """Return whether the last of these reports says how good the trial is: by a number, or by having none.

    A metric that is costly may be left out, or be NaN, at some evaluations. One that is left out says nothing. A NaN
    says nothing after a number; before, the model may be of no use for the metric, and that counts as bad. Where the
    loss is not finite, the training has diverged at any rate. Of several objectives, `place` is that of this one.

    >>> from hpsearch.search.metrics.objective import resolve_objectives
    >>> [f1] = resolve_objectives("f1", None, has_metrics=True)
    >>> def report(value, **metrics):
    ...     return Report((value,), 1, 1, 1, metrics)
    >>> says_how_good([report(math.nan, eval_loss=0.7)], f1), says_how_good([report(math.nan, eval_loss=math.nan)], f1)
    (False, True)
    >>> collapsed = report(math.nan, eval_loss=0.7, eval_f1=math.nan)
    >>> says_how_good([collapsed], f1), says_how_good([report(0.3), collapsed], f1)
    (True, False)
    """
    last = reports[-1]
    if not math.isnan(last.values[place]) or not math.isfinite(loss_of(last.metrics)):
        return True
    try:
        objective.value(last.metrics)
    except MissingMetricError:
        return False
    return not any(math.isfinite(each.values[place]) for each in reports)


def loss_of(metrics: Mapping[str, float]) -> float:
    """Return the evaluation loss, 0 if there is none."""
    try:
        return sum_of_losses(metrics)
    except MissingMetricError:
        return 0.0


def ranking(
    records: Iterable[TrialRecord], objectives: Sequence[Objective], first: int | None = None
) -> list[TrialRecord]:
    """Return the trials that may be the best, best first (None: all of them); of equals the earlier trial first.

    Of several objectives, trials that no other one beats in all of them come first, by number. Where trials were
    repeated with other seeds, each has the mean of its runs; of one objective, they are in the order of what they are
    expected to be truly: see `hpsearch.search.metrics.replicas.shrunken_costs`.
    """
    records = list(records)
    if has_replicas(records):
        return _ranked_by_means(records, objectives)[:first]
    if len(objectives) > 1:
        eligible = _eligible(records)
        front = {each.number for each in _front(eligible, objectives)}
        return sorted(eligible, key=lambda record: record.number not in front)[:first]
    sign = sign_of(objectives[0])
    may_be_best = [each for each in records if each.is_eligible]
    if first is not None and first < len(may_be_best):  # a search asks for the best few after every trial
        costs = [sign * each.values[0] for each in may_be_best]
        last = max(heapq.nsmallest(first, costs), default=-math.inf)
        may_be_best = [each for cost, each in zip(costs, may_be_best, strict=True) if cost <= last]
    return sorted(may_be_best, key=lambda record: (sign * record.values[0], record.number))[:first]


def sign_of(objective: Objective) -> float:
    """Return what turns a value of an objective into a cost, of which less is better: 1 or -1."""
    return 1.0 if objective.direction == MINIMIZE else -1.0


def cost_of(report: Report, value: float, objective: Objective) -> float:
    """Return a value as a cost: less is better. What breaks a constraint costs more than all that holds them.

    Args:
        report: holds the broken constraints and the amounts by which they are exceeded.
        value: of the objective; what is not finite costs most.
        objective: gives the direction.
    """
    if not math.isfinite(value):
        return math.inf
    broken = math.fsum(max(each, 0.0) for each in report.violations.values())
    if broken > 0:
        return BROKEN * (1 + broken)
    return value if objective.direction == MINIMIZE else -value


def shares_and_costs(reports: Sequence[Report], objective: Objective) -> list[tuple[float, float]]:
    """Return the learning curve that reports make: for each that says how good the trial is, how far it was, and cost.

    How far is the share of the training, up to 1.
    """
    return [
        (min(report.resource / report.horizon, 1.0), cost_of(report, report.value, objective))
        for count, report in enumerate(reports, start=1)
        if report.horizon > 0 and report.resource > 0 and says_how_good(reports[:count], objective)
    ]


def best_records(records: Iterable[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """Return the best trial, or, of several objectives, the Pareto front: all that no trial beats in every one.

    Empty if no trial has a result that holds the constraints. Where trials were repeated with other seeds, it is the
    first of `ranking`; the front is that of all means.
    """
    if len(objectives) == 1:
        return ranking(records, objectives, 1)
    records = list(records)
    return _front(_means(records) if has_replicas(records) else _eligible(records), objectives)


def _means(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that hold the constraints, by number, each with the mean of its runs."""
    return [each.mean for each in runs_of(records) if each.mean.is_eligible]


def _ranked_by_means(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    if len(objectives) > 1:
        return ranking(_means(records), objectives)
    runs = [each for each in runs_of(records) if each.mean.is_eligible]
    costs = shrunken_costs(runs, sign_of(objectives[0]))
    in_order = sorted(zip(costs, runs, strict=True), key=lambda each: (each[0], each[1].trial.number))
    return [each.mean for _, each in in_order]


def _eligible(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    return sorted((each for each in records if each.is_eligible), key=lambda record: record.number)


def _front(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRecord]:
    """Return the records that no other one dominates, in their order; each is compared with the front so far only."""
    signs = list(map(sign_of, objectives))
    costs = np.array([record.values for record in records], dtype=float).reshape(len(records), len(signs)) * signs
    front: list[int] = []
    for place in np.lexsort(costs.T[::-1]):  # whatever dominates another one comes before it
        better, cost = costs[front], costs[place]
        if not ((better <= cost).all(axis=1) & (better < cost).any(axis=1)).any():
            front.append(int(place))
    return [records[place] for place in sorted(front)]


def closest(records: Iterable[TrialRecord], constraints: Sequence[Constraint]) -> list[TrialRecord]:
    """Return the trials with a result, those first that come closest to holding the constraints."""

    def excess(record: TrialRecord) -> float:
        return max((each.excess(record.violations.get(each.name, 0.0)) for each in constraints), default=0.0)

    return sorted((each for each in records if each.state.has_result and each.values), key=excess)


def dominates(values: Sequence[float], others: Sequence[float], objectives: Sequence[Objective]) -> bool:
    """Return whether `values` are nowhere worse than `others`, and better in one objective at least."""
    compared = list(zip(objectives, values, others, strict=True))
    return any(each.is_better(value, other) for each, value, other in compared) and not any(
        each.is_better(other, value) for each, value, other in compared
    )
