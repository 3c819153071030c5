"""The standings of the trials of a search at the rungs: costs, ranks, paused and promoted trials.

Kept up to date trial by trial: a decision costs as much as has changed since the last one.
"""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..metrics.objective import MINIMIZE
from ..metrics.selection import cost_of, loss_of, says_how_good, select_report
from ..store.stored_study import StoredStudy
from ..study import Study
from ..time_and_epoch_limits import ended_by_itself
from ..trial_record import Report, TrialRecord, TrialState
from .agreement import Agreement, Compared, agreement
from .ladder import Ladder
from .pareto_order import Costs, ParetoRanks

WITHOUT_RESULT = (TrialState.FAILED, TrialState.REFUSED)
_ON_ITS_WAY = (TrialState.RUNNING, TrialState.INTERRUPTED)


class Cost(NamedTuple):
    """The values of a trial at a report; less is better.

    Attributes:
        values: of the objectives; all infinite if one of them is not finite.
        loss: of the evaluation, 0 if there is none: of trials with the same value, such as an accuracy, the one with
            the lower loss is better.
    """

    values: Costs
    loss: float = 0.0

    @property
    def value(self) -> float:
        """The value of the objective, or of the first of several."""
        return self.values[0]


_NUMBER = operator.attrgetter("number")


@dataclass(frozen=True)
class Standing:
    """The standing of one trial.

    Attributes:
        trial: its record.
        costs: its cost at each level that it was at, when it came there, and the loss, which breaks ties.
        top: the highest of these levels.
        is_ranked: whether it is among the trials that are compared at rungs.
        ranked_costs: the costs by which it is compared at rungs: none if it is not; not that at a rung that a probe
            has passed without a pause.
        promoted_from: of `ranked_costs`, the levels that it was promoted from, or passed.
    """

    trial: TrialRecord
    costs: Mapping[int, Cost]
    top: int
    is_ranked: bool
    ranked_costs: Mapping[int, Cost]
    promoted_from: frozenset[int]


class Standings:
    """Keeps the trials of a study ordered at each rung.

    Args:
        study: the settings, also as read from the folder of a study. Trials of several objectives are ranked by
            `pareto_order`.
        ladder: the rungs.

    Attributes:
        begun: the number of trials that were not refused.
        compared_at: for each level, the standings of the trials that were there and show how well it ranks: complete
            ones, and probes that have come to the last rung.
    """

    def __init__(self, study: Study | StoredStudy, ladder: Ladder) -> None:
        self._ladder, self._scope, self._objectives = ladder, study.scope, study.objectives
        self._none = Cost((math.inf,) * len(study.objectives))
        self._climbs: dict[int, tuple[Sequence[Report], list[tuple[int, Cost]]]] = {}
        self._agreements: dict[int, tuple[list[TrialRecord], Agreement]] = {}
        self._forget()

    def _forget(self) -> None:
        self._first = 0
        self._latest: tuple[TrialRecord, ...] | None = None
        self._standings: dict[int, Standing] = {}
        self._order: defaultdict[int, list[tuple[Cost, int]]] = defaultdict(list)
        self._pareto: defaultdict[int, ParetoRanks] = defaultdict(ParetoRanks)
        self._paused: defaultdict[int, dict[int, TrialRecord]] = defaultdict(dict)
        self._promoted: defaultdict[int, set[int]] = defaultdict(set)
        self.compared_at: defaultdict[int, dict[int, Standing]] = defaultdict(dict)
        self._open: dict[int, int] = {}
        self._at_their_end: set[int] = set()
        self.begun = 0

    def of(self, trials: Iterable[TrialRecord]) -> Standings:
        """Return these standings with all trials of the study as they are now; a tuple is read once."""
        if trials is self._latest:
            return self
        known = tuple(trials)
        # The index of a trial counts from the first one: trials of another study have smaller numbers.
        first = min(map(_NUMBER, known), default=0)
        if first != self._first or len(known) < len(self._standings):
            self._forget()
            self._first = first
        # Of the same trials in the same order, few have changed.
        latest = self._latest or ()
        changed = itertools.compress(known, map(operator.is_not, known, latest))
        for trial in itertools.chain(changed, known[len(latest) :]):
            standing = self._standings.get(trial.number)
            if standing is None or standing.trial is not trial:
                self._replace(standing, self._standing(trial))
        if len(known) < len(self._standings):  # others came before
            self._forget()
            return self.of(known)
        self._latest = known
        return self

    def rank(self, level: int, number: int) -> int | None:
        """Return how many of the ranked trials were better at a level; None if a trial is not ranked there."""
        standing = self._standings[number]
        if level not in standing.ranked_costs:
            return None
        if len(self._objectives) > 1:
            return self._pareto[level].rank(number)
        return bisect_left(self._order[level], (standing.costs[level], number))

    def count(self, level: int) -> int:
        """Return the number of ranked trials that were at a level."""
        return len(self._order[level])

    def count_finite(self, level: int) -> int:
        """Return the number of ranked trials that had not diverged when they came to a level."""
        return bisect_left(self._order[level], (self._none._replace(loss=-math.inf), -1))

    def paused(self, level: int) -> list[TrialRecord]:
        """Return the trials that are paused at a level, by number."""
        return [each for _, each in sorted(self._paused[level].items())]

    def levels(self) -> list[int]:
        """Return the levels at which trials are paused, the highest first."""
        return sorted((level for level, paused in self._paused.items() if paused), reverse=True)

    def promoted(self, level: int, but: Iterable[int]) -> int:
        """Return the number of ranked trials that were promoted from a level, but for these."""
        return len(self._promoted[level]) - sum(number in self._promoted[level] for number in set(but))

    def to_come(self, level: int) -> int:
        """Return the number of trials that have begun and may still come to a level."""
        return sum(top < level for top in self._open.values())

    def at_their_end(self) -> int:
        """Return the number of ranked trials with a result that ended as their own limits say."""
        return len(self._at_their_end)

    def agreement(self, level: int) -> Agreement:
        """Return how well the ranks at a rung agree with later ones.

        Two complete trials are compared by their results; if one of them is a probe that is not complete, by their
        values at the last rung.
        """
        compared = [each for _, each in sorted(self.compared_at[level].items())]
        records = [each.trial for each in compared]
        known, found = self._agreements.get(level, ([], None))
        if found is None or len(known) != len(records) or any(a is not b for a, b in zip(known, records, strict=True)):
            evaluated = [self._evaluated(level, each.trial) for each in compared]
            evaluated = evaluated or [(*self._ladder.fractions, 1.0)[level - 1]]
            found = agreement([self._compared(each, level) for each in compared])
            found = found._replace(evaluated=(min(evaluated), max(evaluated)))
            self._agreements[level] = records, found
        return found

    def _compared(self, standing: Standing, level: int) -> Compared:
        at_last_rung = standing.costs.get(self._ladder.last) if level < self._ladder.last else None
        return Compared(
            standing.costs[level].values,
            None if at_last_rung is None else at_last_rung.values,
            self.costs_of_result(standing.trial) if _has_result(standing.trial) else None,
        )

    def _evaluated(self, level: int, trial: TrialRecord) -> float:
        """Return the fraction of its training run at which a trial came to a level that it was at."""
        climb = zip(trial.reports, self.climb(trial), strict=True)
        return next(report.fraction for report, (reached, _) in climb if reached == level)

    def agreements(self) -> dict[float, Agreement]:
        """Return the agreement at each rung, by the fraction of the training run."""
        return {fraction: self.agreement(level) for level, fraction in enumerate(self._ladder.fractions, start=1)}

    def cost(self, level: int, trial: TrialRecord) -> Cost:
        """Return the cost of a trial when it came to a level; infinite if it was not there."""
        return next((cost for reached, cost in self.climb(trial) if reached == level), self._none)

    def was_at(self, level: int, trial: TrialRecord) -> bool:
        """Return whether a trial has a report between a rung and the next one."""
        return any(reached == level for reached, _ in self.climb(trial))

    def top(self, trial: TrialRecord) -> int:
        """Return the highest level of a trial."""
        return max((level for level, _ in self.climb(trial)), default=0)

    def is_ranked(self, trial: TrialRecord) -> bool:
        """Return whether a trial is compared at rungs: it may pause there, or is paused, perhaps by another ladder."""
        return trial.state is TrialState.PAUSED or not self._ladder.completes(trial.number - self._first)

    def passes(self, level: int, trial: TrialRecord) -> bool:
        """Return whether a trial runs on from a rung whatever it reports there, to the last one."""
        return level < self._ladder.last and self._ladder.probes(trial.number - self._first)

    def climb(self, trial: TrialRecord) -> list[tuple[int, Cost]]:
        """Return the level and the cost, by scope, at each report; less is better.

        A report that does not say how good the trial is has level 0: the trial is judged at its next one.
        """
        reports, (known, climb) = trial.reports, self._climbs.get(trial.number, ((), []))
        both = min(len(known), len(reports))
        if both and known[both - 1] is not reports[both - 1] and known[both - 1] != reports[both - 1]:
            known, climb, both = (), [], 0  # it has begun again
        if len(reports) > both:
            climb = [*climb, *(self._at(trial, count) for count in range(both + 1, len(reports) + 1))]
            self._climbs[trial.number] = reports, climb
        return climb if len(climb) == len(reports) else climb[: len(reports)]

    def _at(self, trial: TrialRecord, count: int) -> tuple[int, Cost]:
        report, reports = trial.reports[count - 1], trial.reports[:count]
        level = self._ladder.level(report.fraction)
        is_told = all(says_how_good(reports, each, place) for place, each in enumerate(self._objectives))
        selected = select_report(reports, self._scope, self._objectives)
        if selected is None or (is_told and not all(map(math.isfinite, report.values))):
            return (level if is_told else 0), self._none
        loss = loss_of(selected.report.metrics)
        named = zip(selected.values, self._objectives, strict=True)
        values = tuple(cost_of(selected.report, value, each) for value, each in named)
        return (level if is_told else 0), Cost(values, loss if math.isfinite(loss) else math.inf)

    def _standing(self, trial: TrialRecord) -> Standing:
        climb = self.climb(trial)
        costs: dict[int, Cost] = {}
        for level, cost in climb:
            costs.setdefault(level, cost)
        is_ranked = trial.state not in WITHOUT_RESULT and self.is_ranked(trial)
        top = max(costs, default=0)
        passed = {level for level, cost in costs.items() if self.passes(level, trial) and cost.value != math.inf}
        if trial.state is TrialState.PAUSED:
            passed.discard(top)  # where a budget paused it, or another ladder
        ranked = {level: cost for level, cost in costs.items() if is_ranked and level not in passed}
        promoted_from = frozenset(level for level in ranked if _is_past(level, climb, trial.state))
        return Standing(trial, costs, top, is_ranked, ranked, promoted_from)

    def _replace(self, before: Standing | None, now: Standing) -> None:
        if before is not None:
            self._remove(before)
        trial, number = now.trial, now.trial.number
        self._standings[number] = now
        if len(self._objectives) > 1:
            self._rank_again(number, {} if before is None else before.ranked_costs, now.ranked_costs)
        for level, cost in now.costs.items():
            if level in now.ranked_costs:
                insort(self._order[level], (cost, number))
            if self._is_compared(now, level):
                self.compared_at[level][number] = now
        for level in now.promoted_from:
            self._promoted[level].add(number)
        if trial.state is TrialState.PAUSED:
            self._paused[now.top][number] = trial
        if trial.state is not TrialState.REFUSED:
            self.begun += 1
            if not trial.state.is_counted:
                self._open[number] = now.top
        if now.is_ranked and self._is_at_its_end(now):
            self._at_their_end.add(number)

    def _rank_again(self, number: int, before: Mapping[int, Cost], now: Mapping[int, Cost]) -> None:
        for level in before.keys() | now.keys():
            if before.get(level) != now.get(level):
                self._pareto[level].set(number, before.get(level), now.get(level))

    def _remove(self, standing: Standing) -> None:
        number = standing.trial.number
        for level, cost in standing.costs.items():
            if level in standing.ranked_costs:
                del self._order[level][bisect_left(self._order[level], (cost, number))]
            self.compared_at[level].pop(number, None)
        for level in standing.promoted_from:
            self._promoted[level].discard(number)
        self._paused[standing.top].pop(number, None)
        self._open.pop(number, None)
        self._at_their_end.discard(number)
        self.begun -= standing.trial.state is not TrialState.REFUSED

    def _is_compared(self, standing: Standing, level: int) -> bool:
        """Return whether a trial shows how well a rung ranks."""
        trial = standing.trial
        has_probed = self._ladder.last in standing.costs and self.passes(level, trial)
        return _has_result(trial) or (has_probed and trial.state not in WITHOUT_RESULT)

    def _is_at_its_end(self, standing: Standing) -> bool:
        """Return whether a trial has trained to completion, or exhausted its own budget, and was at a rung before."""
        trial = standing.trial
        was_at_rung = any(0 < level < self._ladder.end for level in standing.costs)
        return trial.is_eligible and ended_by_itself(trial) and was_at_rung

    def costs_of_result(self, trial: TrialRecord) -> Costs:
        """Return the result of a trial as costs: less is better."""
        named = zip(trial.values, self._objectives, strict=True)
        return tuple(value if each.direction == MINIMIZE else -value for value, each in named)


def _has_result(trial: TrialRecord) -> bool:
    return trial.state is TrialState.COMPLETE and bool(trial.values)


def _is_past(level: int, climb: Sequence[tuple[int, Cost]], state: TrialState) -> bool:
    """Return whether a trial has trained on from a level, or does so now."""
    reports_since = len(climb) - next((place for place, (each, _) in enumerate(climb) if each >= level), len(climb))
    return reports_since > 1 or (reports_since == 1 and state in _ON_ITS_WAY)
