"""Rungs: asynchronous successive halving with pause and promotion.

A trial pauses at the rungs of a ladder (`hpsearch.search.ladder`), such as 1/18, 1/6 and 1/2 of its training run. At
each rung the best trials so far are promoted, such as a third. The others are paused with a checkpoint. They resume
from it once enough worse trials have reached the rung, or are pruned when the remaining trials cannot change that.

Some trials run to completion whatever they report, unless they diverge. They show how well the ranks at a rung agree
with the final ranks (`hpsearch.search.agreement`). A misleading rung promotes all trials.

Trials are compared at a rung by what they report after it and before the next one. One that has no report there, as it
is evaluated seldom or is shorter than others, is not among them.

Nobody waits for a rung to fill: whoever is free promotes the best trial that may go on, else begins a new one. The
learning-rate schedule of every trial is that of its whole training.

Source: Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht, Talwalkar: A System for Massively Parallel Hyperparameter
Tuning (MLSys 2020), algorithm 2. Why which ladder: docs/how-search-decides.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from .agreement import Agreement, agreement
from .budgets import OF_THE_TRIAL
from .ladder import Ladder
from .objective import MINIMIZE
from .selection import cost_of, says_how_good, select_report
from .study import Study
from .training_budget import TrainingBudget, expected_trials
from .trial import Report, TrialRecord, TrialState, Verdict

# Rates trials by what is expected of them, of all the trials that are known: more is better.
Promise = Callable[[Sequence[TrialRecord], Sequence[TrialRecord]], Sequence[float]]

_WITHOUT_RESULT = (TrialState.FAILED, TrialState.REFUSED)
# At least this many trials run to completion; until one has, this many are paused at a rung, as the best may fail.
_LEAST = 3


class Rungs:
    """Tells a trial that has reported whether to go on, and a free worker which of the waiting trials may go on.

    It keeps nothing: it knows the trials by their records, so that a search that was killed, or several at one study,
    decide as one would.

    Args:
        study: the settings; it has one objective.
        ladder: the rungs.
        budget: limits promotions; None: there is no budget in full training runs.
    """

    def __init__(self, study: Study, ladder: Ladder, budget: TrainingBudget | None = None) -> None:
        self._ladder, self._budget = ladder, budget
        self._objectives, self._scope, self._n_trials = study.objectives, study.scope, study.n_trials
        self._expected = expected_trials(study.n_trials, study.budget)
        self._agreements: dict[int, tuple[tuple[int, ...], Agreement]] = {}
        self._known: dict[int, tuple[Sequence[Report], list[tuple[int, float]]]] = {}

    def is_at_rung(self, trial: TrialRecord, earlier: TrialRecord | None = None) -> bool:
        """Tell whether a trial has come to a rung with its last report; the arguments are those of `verdict`."""
        *before, height = [0, *(height for height, _ in self._climb(trial))]
        return max([*before, 0 if earlier is None else self._top(earlier)]) < height < self._ladder.end

    def verdict(
        self,
        trial: TrialRecord,
        others: Iterable[TrialRecord],
        promise: Promise | None = None,
        earlier: TrialRecord | None = None,
    ) -> Verdict:
        """Return what to make of the trial's last report: it goes on, pauses, or is pruned as it will not go on.

        Args:
            trial: as it is after its last report, which is not that of its end.
            others: all other trials of the study, as far as they are known.
            promise: as for `next`.
            earlier: the trial as it was when it went on from a rung; it is not judged there again, also if it has lost
                its checkpoint and begun again.
        """
        if not self.is_at_rung(trial, earlier):
            return Verdict()
        trials, height = [trial, *others], self._top(trial)
        is_judged, is_finite = any(each is trial for each in self._judged(trials)), bool(self._finite(height, [trial]))
        if is_finite and not is_judged:
            return Verdict()
        ranks = self._ranks(height, trials)
        is_promoted = is_finite and self._misleads(height, trials)
        if not is_promoted:
            candidates = [trial, *self._waiting(height, trials)]
            is_promoted = self._allowed(height, ranks, candidates, trials, promise) is trial
        if is_promoted:
            return Verdict() if self._affordable(trials, [trial], at_rung=trial.number) else Verdict(pause=True)
        is_hopeless = ranks.get(trial.number, len(ranks)) >= self._most(height, len(ranks), trials)
        return Verdict(prune=True) if is_hopeless else Verdict(pause=True)

    def next(
        self,
        trials: Sequence[TrialRecord],
        promise: Promise | None = None,
        is_last_chance: bool = False,
        ignores_budget: bool = False,
    ) -> TrialRecord | None:
        """Return the waiting trial that may go on now, of the highest rung that has one; None if there is none.

        Args:
            trials: all trials of the study, as far as they are known.
            promise: rates those that wait at a rung by what is expected of them, more is better; of as many trials as
                may go on from there, those with the best rating go on. None: those with the best report.
            is_last_chance: no trial runs, and none is to come: the best of the highest rung may go on if none that
                holds the constraints has trained to its end so far; one that has diverged only if all have. Then one
                that was better at its rung than the best trial was there, until a ninth of all trials (a quarter, if
                half of them go on from each rung) has trained to its end, or three.
            ignores_budget: return a trial that the budget cannot pay for, too.
        """
        paused = [each for each in trials if each.state is TrialState.PAUSED]
        payable = paused if ignores_budget else self._affordable(trials, paused)
        for height in sorted({self._top(each) for each in payable}, reverse=True):
            waiting = self._waiting(height, payable)
            if self._misleads(height, trials) and self._finite(height, waiting):
                return self._best_of(height, waiting, trials, promise)
            allowed = self._allowed(height, self._ranks(height, trials), waiting, trials, promise)
            if allowed is not None:
                return allowed
        last = self.last(trials) if is_last_chance else None
        return None if last is None or all(each is not last for each in payable) else last

    def last(self, trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the paused trial to complete if the search ended now; None if there is none. See `next`."""
        heights = sorted({self._top(each) for each in trials if each.state is TrialState.PAUSED}, reverse=True)
        if not heights:
            return None
        if self._has_result(trials):
            is_enough = self._count_at_their_end(trials) >= max(
                _LEAST, self._expected // self._ladder.reduction_factor**2
            )
            return None if is_enough else self._ahead_of_the_best(heights, trials)
        at = next((each for each in heights if self._finite(each, self._waiting(each, trials))), heights[0])
        ranks, waiting = self._ranks(at, trials), self._waiting(at, trials)
        hopeful = self._finite(at, waiting)
        if any(each.is_eligible for each in trials):  # one that was never at a rung, such as a shorter one
            hopeful = waiting = [each for each in hopeful if _holds(each.reports[-1])]
        return min(hopeful or waiting, key=lambda each: ranks[each.number], default=None)

    def _affordable(
        self, trials: Sequence[TrialRecord], candidates: Sequence[TrialRecord], at_rung: int | None = None
    ) -> Sequence[TrialRecord]:
        """Return those of the candidates that the budget can pay for up to their next pause."""
        if self._budget is None or not candidates:
            return candidates
        account = self._budget.account(trials, self.last(trials), at_rung)
        return [each for each in candidates if account.affords(each)]

    def hopeless(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the waiting trials that will not go on: more trials are better than could go on from their rung."""
        found: list[TrialRecord] = []
        for height in {self._top(each) for each in trials if each.state is TrialState.PAUSED}:
            if self._misleads(height, trials):
                continue
            ranks = self._ranks(height, trials)
            most = self._most(height, len(ranks), trials)
            found += [each for each in self._waiting(height, trials) if ranks[each.number] >= most]
        return found

    def paused(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the paused trials, the best first: by rung, highest first, then by their reports at the rung."""
        paused = [each for each in trials if each.state is TrialState.PAUSED]
        heights = {each.number: self._top(each) for each in paused}
        ranks = {height: self._ranks(height, trials) for height in set(heights.values()) if height > 0}

        def place(trial: TrialRecord) -> tuple[int, int]:
            height = heights[trial.number]
            return -height, ranks[height][trial.number] if height > 0 else trial.number

        return sorted(paused, key=place)

    def best_waiting(self, trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the waiting trial with the best report, if it is better than all results; None if there is none.

        One that breaks a constraint is no result, and goes on waiting.
        """
        costs = {each.number: self._climb(each)[-1][1] for each in trials if each.reports}
        paused = [each for each in trials if each.state is TrialState.PAUSED and costs[each.number] < math.inf]
        waiting = [each for each in paused if all(by <= 0 for by in each.violations.values())]
        best = min(waiting, key=lambda each: costs[each.number], default=None)
        sign = 1.0 if self._objectives[0].direction == MINIMIZE else -1.0
        results = [sign * each.values[0] for each in trials if each.is_eligible]
        return best if best is not None and costs[best.number] < min(results, default=math.inf) else None

    def misleading(self, trials: Sequence[TrialRecord]) -> dict[float, Agreement]:
        """Return the misleading rungs, as fractions of the training run, with the agreement at each."""
        shares = enumerate(self._ladder.fractions, start=1)
        return {share: self._agreement(height, trials) for height, share in shares if self._misleads(height, trials)}

    def _misleads(self, height: int, trials: Iterable[TrialRecord]) -> bool:
        """Tell whether the ranks at a rung agree too little with the final ranks."""
        return self._ladder.is_hedged and self._agreement(height, trials).misleads

    def _agreement(self, height: int, trials: Iterable[TrialRecord]) -> Agreement:
        ended = [each for each in trials if each.state is TrialState.COMPLETE and self._was_at(height, each)]
        key = (height, *(each.number for each in ended))
        if self._agreements.get(height, ((), None))[0] != key:
            sign = 1.0 if self._objectives[0].direction == MINIMIZE else -1.0
            costs = [(self._cost(height, each), sign * each.values[0]) for each in ended if each.values]
            self._agreements[height] = (key, agreement(costs))
        return self._agreements[height][1]

    def count_since_improvement(self, trials: Iterable[TrialRecord]) -> int:
        """Return the number of trials that reached a rung, or failed, since the last new best at any rung.

        Completion is the last rung. Running trials are not counted: they may still improve.
        """
        best: dict[int, float] = {}
        count = 0
        for trial in sorted(trials, key=lambda each: each.number):
            costs = {height: self._cost(height, trial) for height, _ in self._climb(trial) if height > 0}
            if trial.state in _WITHOUT_RESULT:
                count += trial.state is TrialState.FAILED
                continue
            is_better = any(cost < best.get(height, math.inf) for height, cost in costs.items())
            has_stopped = bool(costs) and trial.state is not TrialState.RUNNING
            count = 0 if is_better else count + has_stopped
            best = {**best, **{height: min(cost, best.get(height, math.inf)) for height, cost in costs.items()}}
        return count

    def _ahead_of_the_best(self, heights: Sequence[int], trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the best waiting trial, of the highest rung, that came there better than the best trial had.

        For those that went on first had to be better than few others.
        """
        sign = 1.0 if self._objectives[0].direction == MINIMIZE else -1.0
        best = min((each for each in trials if each.is_eligible), key=lambda each: sign * each.values[0])
        for height in (each for each in heights if self._was_at(each, best)):
            ahead = [
                each for each in self._waiting(height, trials) if self._cost(height, each) < self._cost(height, best)
            ]
            if ahead:
                return min(ahead, key=lambda each: (self._cost(height, each), each.number))
        return None

    def _allowed(
        self,
        height: int,
        ranks: Mapping[int, int],
        candidates: Sequence[TrialRecord],
        trials: Sequence[TrialRecord],
        promise: Promise | None,
    ) -> TrialRecord | None:
        """Return which of the candidates may go on from a rung; None: none of them."""
        count = len(ranks) // self._ladder.reduction_factor
        candidates = self._finite(height, candidates)
        if promise is None:
            best = [each for each in candidates if ranks[each.number] < count]
            return min(best, key=lambda each: ranks[each.number], default=None)
        numbers = {each.number for each in candidates}
        gone = sum(
            each.number in ranks and each.number not in numbers and self._has_gone_on(height, each) for each in trials
        )
        if not candidates or gone >= count:
            return None
        return self._best_of(height, candidates, trials, promise)

    def _best_of(
        self, height: int, candidates: Sequence[TrialRecord], trials: Sequence[TrialRecord], promise: Promise | None
    ) -> TrialRecord:
        """Return the trial at a rung with the largest expected improvement, or with the best report there."""
        candidates = self._finite(height, candidates)
        if promise is None:
            return min(candidates, key=lambda each: (self._cost(height, each), each.number))
        rated = zip(promise(candidates, trials), candidates, strict=True)
        return max(rated, key=lambda pair: (pair[0], -pair[1].number))[1]

    def _finite(self, height: int, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return those of the trials that had not diverged when they came to a rung."""
        return [each for each in trials if self._cost(height, each) != math.inf]

    def _has_gone_on(self, height: int, trial: TrialRecord) -> bool:
        """Tell whether a trial has gone on from a rung, or does so now."""
        climb = self._climb(trial)
        since = len(climb) - next((place for place, (each, _) in enumerate(climb) if each >= height), len(climb))
        is_on_its_way = since == 1 and trial.state in (TrialState.RUNNING, TrialState.INTERRUPTED)
        return trial.state not in _WITHOUT_RESULT and (since > 1 or is_on_its_way)

    def _has_result(self, trials: Iterable[TrialRecord]) -> bool:
        """Tell whether a trial that was at a rung has trained to its end, or for all that a trial may take."""
        return self._count_at_their_end(trials) > 0

    def _count_at_their_end(self, trials: Iterable[TrialRecord]) -> int:
        """Return how many trials have trained to their end, of those that were judged at a rung before."""
        return sum(
            each.is_eligible
            and (each.state is TrialState.COMPLETE or (each.reason or "").startswith(OF_THE_TRIAL))
            and any(0 < height < self._ladder.end for height, _ in self._climb(each))
            for each in self._judged(trials)
        )

    def _waiting(self, height: int, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
        return [each for each in trials if each.state is TrialState.PAUSED and self._top(each) == height]

    def _top(self, trial: TrialRecord) -> int:
        return max((height for height, _ in self._climb(trial)), default=0)

    def _most(self, height: int, reached: int, trials: Sequence[TrialRecord]) -> int:
        """Return how many trials can go on from a rung at the most, with those that may still come to it.

        While none has trained to its end, some more: the best may fail. With a budget alone, all: it may be raised.
        """
        if self._n_trials is None:
            return sys.maxsize
        begun = [each for each in trials if each.state is not TrialState.REFUSED]
        to_come = sum(not each.state.is_counted and self._top(each) < height for each in begun)
        most = (reached + to_come + max(0, self._n_trials - len(begun))) // self._ladder.reduction_factor
        return max(most, 1 if self._has_result(trials) else _LEAST)

    def _ranks(self, height: int, trials: Iterable[TrialRecord]) -> dict[int, int]:
        """Return the ranks of the trials that were judged at a rung; of equals the earlier trial is the better one."""
        costs = {
            each.number: self._cost(height, each)
            for each in self._judged(trials)
            if each.state not in _WITHOUT_RESULT and self._was_at(height, each)
        }
        return {number: rank for rank, number in enumerate(sorted(costs, key=lambda each: (costs[each], each)))}

    def _judged(self, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
        """Return the trials that are judged at rungs; a paused one was, perhaps by another ladder.

        The index of a trial counts from the first one, as warm-start trials of another study have smaller numbers.
        """
        known = list(trials)
        first = min((each.number for each in known), default=0)
        paused = TrialState.PAUSED
        return [each for each in known if each.state is paused or not self._ladder.completes(each.number - first)]

    def _was_at(self, height: int, trial: TrialRecord) -> bool:
        """Tell whether a trial has been at a rung: it has a report between this one and the next."""
        return any(reached == height for reached, _ in self._climb(trial))

    def _cost(self, height: int, trial: TrialRecord) -> float:
        """Return the objective of a trial when it came to a rung: less is better; infinite if it was not there."""
        return next((cost for reached, cost in self._climb(trial) if reached == height), math.inf)

    def _climb(self, trial: TrialRecord) -> list[tuple[int, float]]:
        """Return, for each report, the height it has reached, and the objective there by scope: less is better.

        One that does not say how good the trial is has reached none: the trial is judged at its next one.
        """
        reports, (known, climb) = trial.reports, self._known.get(trial.number, ((), []))
        both = min(len(known), len(reports))
        if both and known[both - 1] != reports[both - 1]:  # it has begun again
            known, climb, both = (), [], 0
        if len(reports) > both:
            climb = [*climb, *(self._at(trial, count) for count in range(both + 1, len(reports) + 1))]
            self._known[trial.number] = reports, climb
        return climb if len(climb) == len(reports) else climb[: len(reports)]

    def _at(self, trial: TrialRecord, count: int) -> tuple[int, float]:
        report = trial.reports[count - 1]
        height = self._ladder.level(report.fraction)
        selected = select_report(trial.reports[:count], self._scope, self._objectives)
        is_told = says_how_good(trial.reports[:count], self._objectives[0])
        if selected is None or (is_told and not math.isfinite(report.value)):
            return (height if is_told else 0), math.inf
        return (height if is_told else 0), cost_of(selected.report, selected.values[0], self._objectives[0])


def _holds(report: Report) -> bool:
    return all(each <= 0 for each in report.violations.values())
