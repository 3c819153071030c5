"""Rungs: where trials pause, and which of them go on; asynchronous successive halving with pause and promotion.

A trial pauses at 1/18, 1/6 and 1/2 of its training. At each of these rungs the best third of the trials that have come
so far goes on; the others wait, with all that they need to go on later from exactly there, until enough worse ones have
come after them, or none of the trials still to come could let them in.

Nobody waits for a rung to fill: whoever is free promotes the best trial that may go on, else begins a new one. The
learning-rate schedule of every trial is that of its whole training.

Source: Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht, Talwalkar: A System for Massively Parallel Hyperparameter
Tuning (MLSys 2020), algorithm 2. Why these shares: docs/how-search-decides.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .selection import cost_of, select_report
from .study import Study
from .trial import Report, TrialRecord, TrialState, Verdict

FACTOR = 3
SHARES = (1 / 18, 1 / 6, 1 / 2)
# Epochs are sums of fractions.
_ROUNDING = 1e-6


class Rungs:
    """Tells a trial that has reported whether to go on, and a free worker which of the waiting trials may go on.

    It keeps nothing: it knows the trials by their records, so that a search that was killed, or several at one study,
    decide as one would.

    Args:
        study: the settings; it has one objective.
    """

    def __init__(self, study: Study) -> None:
        self._objectives, self._scope, self._n_trials = study.objectives, study.scope, study.n_trials
        self._known: dict[int, tuple[int, list[tuple[int, float]]]] = {}

    def describe(self) -> str:
        """Return in words what the rungs do."""
        shares = [f"1/{round(1 / share)}" for share in SHARES]
        return f"trials pause after {', '.join(shares[:-1])} and {shares[-1]} of their training, and the best third goes on"

    def verdict(self, trial: TrialRecord, others: Iterable[TrialRecord]) -> Verdict:
        """Return what to make of the trial's last report: it goes on, pauses, or is pruned as it can never go on.

        Args:
            trial: as it is after its last report, which is not that of its end.
            others: all other trials of the study, as far as they are known.
        """
        heights = [height for height, _ in self._climb(trial)]
        height = heights[-1] if heights else 0
        if height == 0 or height in heights[:-1]:
            return Verdict()
        ranked = self._ranked(height, [trial, *others])
        rank = ranked.index(trial.number)
        if rank < len(ranked) // FACTOR:
            return Verdict()
        return Verdict(prune=True) if rank >= self._most(heights) else Verdict(pause=True)

    def next(self, trials: Sequence[TrialRecord], is_last_chance: bool = False) -> TrialRecord | None:
        """Return the waiting trial that may go on now, of the highest rung that has one; None if there is none.

        Args:
            trials: all trials of the study, as far as they are known.
            is_last_chance: no trial runs, and none is to come: the best of the highest rung may go on if none has
                trained to its end so far.
        """
        waiting = {each.number: each for each in trials if each.state is TrialState.PAUSED}
        if not waiting:
            return None
        tops = {number: max(height for height, _ in self._climb(each)) for number, each in waiting.items()}
        for height in sorted(set(tops.values()), reverse=True):
            ranked = self._ranked(height, trials)
            for number in ranked[: len(ranked) // FACTOR]:
                if tops.get(number) == height:
                    return waiting[number]
        if is_last_chance and not any(each.state.has_result for each in trials):
            height = max(tops.values())
            best = next(number for number in self._ranked(height, trials) if tops.get(number) == height)
            return waiting[best]
        return None

    def hopeless(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the waiting trials that can never go on, however bad the trials still to come are."""
        found: list[TrialRecord] = []
        for each in trials:
            if each.state is TrialState.PAUSED:
                heights = [height for height, _ in self._climb(each)]
                if self._ranked(heights[-1], trials).index(each.number) >= self._most(heights):
                    found.append(each)
        return found

    def _most(self, heights: Sequence[int]) -> int:
        """Return how many trials can go on, at the most, from the rung that a trial has reached by these heights."""
        return max(1, self._n_trials // FACTOR ** len({height for height in heights if height > 0}))

    def _ranked(self, height: int, trials: Iterable[TrialRecord]) -> list[int]:
        """Return the trials that have reached a rung, best first; of equals the earlier trial first."""
        costs: dict[int, float] = {}
        for trial in trials:
            cost = next((cost for reached, cost in self._climb(trial) if reached >= height), None)
            if cost is not None:
                costs[trial.number] = cost
        return sorted(costs, key=lambda number: (costs[number], number))

    def _climb(self, trial: TrialRecord) -> list[tuple[int, float]]:
        """Return, for each report, the height it has reached, and the objective there by scope: less is better."""
        known = self._known.get(trial.number)
        if known is None or known[0] != len(trial.reports):
            known = (len(trial.reports), [self._at(trial, count) for count in range(1, len(trial.reports) + 1)])
            self._known[trial.number] = known
        return known[1]

    def _at(self, trial: TrialRecord, count: int) -> tuple[int, float]:
        report = trial.reports[count - 1]
        height = 0 if report.step == 0 or report.horizon <= 0 else bisect_right(SHARES, _share(report))
        selected = select_report(trial.reports[:count], self._scope, self._objectives)
        cost = math.inf if selected is None else cost_of(selected.report, selected.values[0], self._objectives[0])
        return height, cost


def _share(report: Report) -> float:
    return report.resource / report.horizon + _ROUNDING
