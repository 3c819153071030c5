"""The best value of a search by what it had cost until then: the epochs of all trials, and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..search.result.best_run import SearchSummary
from ..search.trial_record import Span, TrialRecord
from ..search.wording import metric_label


class Improvement(NamedTuple):
    """A trial that was better than all before it when it ended.

    Attributes:
        trial: its number.
        value: its objective.
        epochs: the epochs that all trials had trained until then.
        seconds: of the search until then, without the time in which no trial was trained; None if that is not known.
    """

    trial: int
    value: float
    epochs: float
    seconds: float | None


class BestByCost(NamedTuple):
    """The improvements of a search, and the cost of the whole search.

    Attributes:
        steps: the trials that were the best when they ended.
        epochs, seconds: as for an `Improvement`.
    """

    steps: list[Improvement]
    epochs: float
    seconds: float | None


def best_by_cost(summary: SearchSummary) -> BestByCost:
    """Return the trials that were the best when they ended, in this order, by the first objective.

    The epochs of a trial are spread evenly over the time in which it was trained. If that is not recorded of all
    trials, they count as trained one after the other.
    """
    trained = [each for each in summary.records if each.epochs or each.reports]
    if all(each.spans for each in trained):
        return _by_time(summary, trained)
    steps, epochs = list[Improvement](), 0.0
    for record in trained:
        epochs += record.epochs
        if _is_better(summary, record, steps):
            steps.append(Improvement(record.number, record.values[0], epochs, None))
    return BestByCost(steps, epochs, None)


def _is_better(summary: SearchSummary, record: TrialRecord, steps: Sequence[Improvement]) -> bool:
    return record.is_eligible and (not steps or summary.objective.is_better(record.values[0], steps[-1].value))


def _by_time(summary: SearchSummary, trained: Sequence[TrialRecord]) -> BestByCost:
    spans = [(span, each) for each in trained for span in each.spans]
    begins, ends = (np.array([getattr(span, name) for span, _ in spans]) for name in ("begin", "end"))
    lengths = {each.number: sum(span.end - span.begin for span in each.spans) for each in trained}
    rates = np.array([each.epochs / (lengths[each.number] or 1.0) for _, each in spans])
    busy = _merged([span for span, _ in spans])

    def epochs_until(moment: float) -> float:
        with np.errstate(all="ignore"):  # the times of a file may be anything
            return float(np.sum(rates * np.clip(moment - begins, 0.0, np.maximum(ends - begins, 0.0))))

    def seconds_until(moment: float) -> float:
        return sum(max(0.0, min(moment, end) - begin) for begin, end in busy)

    steps = list[Improvement]()
    for record in sorted(trained, key=lambda each: (max(span.end for span in each.spans), each.number)):
        if _is_better(summary, record, steps):
            moment = max(each.end for each in record.spans)
            steps.append(Improvement(record.number, record.values[0], epochs_until(moment), seconds_until(moment)))
    last = max((end for _, end in busy), default=0.0)
    return BestByCost(steps, sum(each.epochs for each in trained), seconds_until(last))


def _merged(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Return the periods in which a trial was trained, in order.

    >>> _merged([Span(5.0, 6.0), Span(0.0, 2.0), Span(1.0, 3.0)])
    [(0.0, 3.0), (5.0, 6.0)]
    """
    merged: list[tuple[float, float]] = []
    for span in sorted(spans):
        if merged and span.begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span.end))
        else:
            merged.append((span.begin, span.end))
    return merged


def label(summary: SearchSummary) -> str:
    """Return the name of the objective, or the first of several, for readers."""
    return metric_label(summary.objective.name, summary.study.unit)


def resource_unit(summary: SearchSummary) -> str:
    """Return the unit of the resource of the reports: samples if trials are evaluated by steps, else epochs."""
    last = (each.reports[-1] for each in summary.records if each.reports)
    return "sample" if any(each.resource > 4 * max(each.epoch, 1.0) for each in last) else summary.study.unit
