"""Trials that were better during their training than at its end, as where a loss turns upwards.

With scope "last" a trial is judged by its last report. If many trials get worse before their end, scope "all", which
selects the best report of each, finds better checkpoints.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..metrics.objective import MINIMIZE, Objective
from ..metrics.selection import best_records, select_report
from ..trial_record import Report, TrialRecord, TrialState

# The least number of trials that turned, and the least fraction of the complete ones: noise makes a few seem to turn.
# With fewer evaluations than the last number it is larger: so short a curve does not show how much it wiggles.
_FEWEST, _PART, _PART_IF_SHORT, _SHORT = 3, 1 / 2, 2 / 3, 4
# A rise is more than the wiggling of a curve if it is larger than this many times the largest step against its shape.
_TIMES_WIGGLING = 2


class EarlierBest(NamedTuple):
    """The selection that another scope would make among the trials of a study.

    Attributes:
        turned: the number of complete trials that were clearly better before their end.
        complete: the number of complete trials.
        fraction: of the training run, after which these were at their best; the median.
        number: of the trial that scope "all" selects.
        value: of that trial, by scope "all".
        last: the best value by scope "last".
    """

    turned: int
    complete: int
    fraction: float
    number: int
    value: float
    last: float

    def describe(self) -> str:
        """Describe it, with what the user can do.

        >>> print(EarlierBest(7, 9, 0.4, 3, 0.41, 0.52).describe())  # doctest: +NORMALIZE_WHITESPACE
        7 of 9 complete trials were clearly better before their end (median: after 40% of the training). A new search
        with scope="all" (another study_name) selects the best evaluation of each trial and its checkpoint; of these
        trials it would select trial 3 with 0.41, in place of 0.52.
        """
        return (
            f"{self.turned} of {self.complete} complete trials were clearly better before their end (median: after "
            f'{self.fraction:.0%} of the training). A new search with scope="all" (another study_name) selects the '
            f"best evaluation of each trial and its checkpoint; of these trials it would select trial {self.number} "
            f"with {self.value:.4g}, in place of {self.last:.4g}."
        )


def earlier_best(records: Sequence[TrialRecord], objectives: Sequence[Objective], scope: str) -> EarlierBest | None:
    """Return the selection of scope "all", if enough trials were clearly better before their end.

    A trial was, if it got worse since its best report by more than the values of complete trials usually differ (their
    median distance from their median), and by more than twice the largest step of its curve against that shape: up
    before the best report, or down after it.

    Args:
        records: the trials of the study.
        objectives: of the study.
        scope: of the study.

    Returns:
        None with another scope than "last", with several objectives, with fewer than three such trials or less than
        half of the complete ones (two thirds, where these have three evaluations or fewer), and if scope "all" would
        not select one of them. Reports that are not finite are left out, as they are by each scope.
    """
    if scope != "last" or len(objectives) > 1:
        return None
    complete = [each for each in records if each.state is TrialState.COMPLETE and each.values]
    if len(complete) < _FEWEST:
        return None
    spread = _spread([each.values[0] for each in complete])
    at_best = {each.number: _best_before_end(each.reports, objectives, spread) for each in complete}
    turned = {number: fraction for number, fraction in at_best.items() if fraction is not None}
    is_short = statistics.median(len(each.reports) for each in complete) < _SHORT
    enough = max(_FEWEST, len(complete) * (_PART_IF_SHORT if is_short else _PART))
    by_last = best_records(records, objectives)
    by_all = best_records([_by_all(each, objectives) for each in records], objectives)
    if len(turned) < enough or not by_last or not by_all or by_all[0].number not in turned:
        return None
    fraction = statistics.median(turned.values())
    return EarlierBest(
        len(turned), len(complete), fraction, by_all[0].number, by_all[0].values[0], by_last[0].values[0]
    )


def _spread(values: Sequence[float]) -> float:
    """Return the median distance of values from their median: one that is far off does not matter."""
    middle = statistics.median(values)
    return statistics.median(abs(each - middle) for each in values)


def _best_before_end(reports: Sequence[Report], objectives: Sequence[Objective], spread: float) -> float | None:
    """Return the fraction of the training run after which a trial was at its best; None if that was its end."""
    objective = objectives[0]
    best, last = (select_report(reports, scope, objectives) for scope in ("all", "last"))
    if best is None or last is None or any(each > 0 for each in best.report.violations.values()):
        return None
    rise = _cost(last.report, objective) - _cost(best.report, objective)
    finite = [each for each in reports if math.isfinite(each.value)]
    steps = [(each, _cost(after, objective) - _cost(each, objective)) for each, after in itertools.pairwise(finite)]
    against = [-step if each.step >= best.report.step else step for each, step in steps]
    if rise <= spread or rise <= _TIMES_WIGGLING * max(against, default=0.0):
        return None
    return best.report.fraction or best.report.step / max(last.report.step, 1)


def _by_all(record: TrialRecord, objectives: Sequence[Objective]) -> TrialRecord:
    """Return a trial as it would be with scope "all"."""
    selected = select_report(record.reports, "all", objectives)
    if selected is None:
        return record
    return replace(record, values=selected.values, violations=selected.report.violations)


def _cost(report: Report, objective: Objective) -> float:
    return report.value if objective.direction == MINIMIZE else -report.value
