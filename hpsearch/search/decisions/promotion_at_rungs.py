"""Rungs: asynchronous successive halving with pause and promotion.

A trial pauses at the rungs of a ladder (`ladder.py`), such as 1/18, 1/6 and 1/2 of its training run. At
each rung the best trials so far are promoted, such as a third. The others are paused with a checkpoint. They resume
from it once enough worse trials have reached the rung, or are pruned when the remaining trials cannot change that.

Some trials run to the last rung (probes), or to completion, whatever they report, unless they diverge. They show how
well the ranks at a rung agree with later ones (`hpsearch.search.decisions.agreement`). A misleading rung promotes all
trials.

Trials are compared at a rung by what they report after it and before the next one. One that has no report there, as it
is evaluated seldom or is shorter than others, is not among them.

Trials of several objectives are ranked by `hpsearch.search.decisions.pareto_order`.

Promotion is asynchronous: a free worker resumes the best promotable trial, or starts a new one if there is none. The
learning-rate schedule of every trial is that of its whole training run.

Source: Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht, Talwalkar: A System for Massively Parallel Hyperparameter
Tuning (MLSys 2020), algorithm 2. Why which ladder: docs/how-good-searches-are.md.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence

from ..metrics.selection import best_records
from ..study import Study
from ..trial import Verdict
from ..trial_record import Report, TrialRecord, TrialState
from .agreement import Agreement
from .ladder import Ladder
from .pareto_order import is_no_worse, pareto_order
from .standings import WITHOUT_RESULT, Standings
from .training_budget import expected_trials

# Rates trials by their expected improvement, given all trials that are known: more is better.
Rating = Callable[[Sequence[TrialRecord], Sequence[TrialRecord]], Sequence[float]]
# Returns whether a trial may train up to its next pause.
Affords = Callable[[TrialRecord], bool]

# At least this many trials run to completion; until one has, this many are paused at a rung, as the best may fail.
_LEAST = 3


class Rungs:
    """The decisions at rungs: whether a trial that has reported continues, and which paused trial resumes next.

    The decisions depend only on the records of the trials, so a search that was killed, or several searches of one
    study, decide like a single one.

    Args:
        study: the settings.
        ladder: the rungs.
    """

    def __init__(self, study: Study, ladder: Ladder) -> None:
        self._ladder, self._n_trials, self._objectives = ladder, study.n_trials, study.objectives
        self._expected = expected_trials(study.n_trials, study.budget)
        self._standings = Standings(study, ladder)

    def with_total(self, n_trials: int | None) -> Rungs:
        """Return the same rungs, with the same standings, for another total of trials."""
        rungs = copy.copy(self)
        rungs._n_trials = n_trials
        return rungs

    def is_at_rung(self, trial: TrialRecord, earlier: TrialRecord | None = None) -> bool:
        """Return whether a trial has come to a rung with its last report; the arguments are those of `verdict`."""
        *before, level = [0, *(level for level, _ in self._standings.climb(trial))]
        reached_before = 0 if earlier is None else self._standings.top(earlier)
        return max([*before, reached_before]) < level < self._ladder.end

    def verdict(
        self,
        trial: TrialRecord,
        others: Iterable[TrialRecord],
        rating: Rating | None = None,
        earlier: TrialRecord | None = None,
        affords: Affords | None = None,
    ) -> Verdict:
        """Return the verdict on the trial's last report: it continues, pauses, or is pruned as it cannot be promoted.

        Args:
            trial: as it is after its last report, which is not that of its completion.
            others: all other trials of the study, as far as they are known; it may be among them.
            rating: as for `next`.
            earlier: the trial as it was when it was promoted from a rung; it is not judged there again, also if it has
                lost its checkpoint and begun again.
            affords: as for `next`.
        """
        if not self.is_at_rung(trial, earlier):
            return Verdict()
        trials = tuple(others)
        if not any(map(functools.partial(operator.is_, trial), trials)):
            trials = (trial, *trials)
        standings, level = self._standings.of(trials), self._standings.top(trial)
        is_finite = bool(self._finite(level, [trial]))
        if is_finite and not standings.is_ranked(trial):
            return Verdict()
        is_promoted = is_finite and (self._misleads(level) or standings.passes(level, trial))
        if not is_promoted:
            is_promoted = self._promotable(level, [trial, *standings.paused(level)], trials, rating) is trial
        if is_promoted:
            return Verdict() if affords is None or affords(trial) else Verdict(pause=True)
        rank = standings.rank(level, trial.number)  # None: it would run to completion, but has diverged
        rank = standings.count(level) if rank is None else rank
        return Verdict(prune=True) if rank >= self._most(level) else Verdict(pause=True)

    def next(
        self,
        trials: Sequence[TrialRecord],
        rating: Rating | None = None,
        is_last_chance: bool = False,
        affords: Affords | None = None,
    ) -> TrialRecord | None:
        """Return the paused trial to resume now, of the highest rung that has one; None if there is none.

        Args:
            trials: all trials of the study, as far as they are known.
            rating: of as many trials as may be promoted from their rung, those with the best rating are. None: those
                with the best report.
            is_last_chance: no trial runs, and none is to come: the best of the highest rung may resume if no trial that
                holds the constraints is complete so far; one that has diverged only if all have. Then one that was
                better at its rung than the best trial was there, until a ninth of all trials (a quarter, if half of
                them are promoted from each rung) is complete, or three.
            affords: returns whether the budget can pay for a trial; None: for all.
        """
        standings = self._standings.of(trials)
        for level in standings.levels():
            paused = [each for each in standings.paused(level) if affords is None or affords(each)]
            if self._misleads(level) and self._finite(level, paused):
                return self._best_of(level, paused, trials, rating)
            promotable = self._promotable(level, paused, trials, rating)
            if promotable is not None:
                return promotable
        last = self.last(trials) if is_last_chance else None
        return last if last is None or affords is None or affords(last) else None

    @property
    def least_complete(self) -> int:
        """The number of ranked trials at their end up to which a paused one may have a last chance."""
        return max(_LEAST, self._expected // self._ladder.reduction_factor**2)

    def last(self, trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the paused trial to complete if the search ended now; None if there is none. See `next`."""
        standings = self._standings.of(trials)
        levels = standings.levels()
        if not levels:
            return None
        if standings.at_their_end():
            is_enough = standings.at_their_end() >= self.least_complete
            return None if is_enough else self._ahead_of_the_best(levels, trials)
        at = next((each for each in levels if self._finite(each, standings.paused(each))), levels[0])
        paused = standings.paused(at)
        hopeful = self._finite(at, paused)
        if any(each.is_eligible for each in trials):  # one that was never at a rung, such as a shorter one
            hopeful = paused = [each for each in hopeful if _holds(each.reports[-1])]
        return min(hopeful or paused, key=self._place_at(at), default=None)

    def unpromotable(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the paused trials that cannot be promoted: more trials are better than can be from their rung."""
        standings = self._standings.of(trials)
        found: list[TrialRecord] = []
        for level in standings.levels():
            paused, most = standings.paused(level), self._most(level)
            if self._misleads(level):  # all of them are promoted that have not diverged
                finite = self._finite(level, paused)
                paused = [each for each in paused if each not in finite]
            found += [each for each in paused if (standings.rank(level, each.number) or 0) >= most]
        return found

    def paused(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the paused trials, the best first: by rung, highest first, then by their reports at the rung."""
        standings = self._standings.of(trials)

        def place(trial: TrialRecord, level: int) -> int:
            return (standings.rank(level, trial.number) or 0) if level > 0 else trial.number

        at_levels = ((level, standings.paused(level)) for level in standings.levels())
        return [each for level, paused in at_levels for each in sorted(paused, key=lambda each: place(each, level))]

    def best_paused(self, trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the paused trial with the best report, if it is better than all results; None if there is none.

        Of several objectives, if no result is as good in all of them: the trial would be on the Pareto front. One that
        breaks a constraint is no result, and stays paused.
        """
        paused = [each for each in trials if each.state is TrialState.PAUSED and each.reports and _holds(each)]
        results = [self._standings.costs_of_result(each) for each in best_records(trials, self._objectives)]
        costs = [self._standings.climb(each)[-1][1].values for each in paused]
        ahead = [
            (each, cost)
            for each, cost in zip(paused, costs, strict=True)
            if cost[0] < math.inf and not any(is_no_worse(result, cost) for result in results)
        ]
        return ahead[pareto_order([cost for _, cost in ahead])[0]][0] if ahead else None

    def agreements(self, trials: Sequence[TrialRecord]) -> dict[float, Agreement]:
        """Return the agreement at each rung, by the fraction of the training run; empty if the rungs do not heed it."""
        return self._standings.of(trials).agreements() if self._ladder.is_hedged else {}

    def reliable_from(self, trials: Sequence[TrialRecord]) -> float:
        """Return the fraction of the training run before which reports mislead: of the rung after the last such one.

        It is 0 if no rung misleads, and 1 if the last one does.
        """
        misleading = [fraction for fraction, found in self.agreements(trials).items() if found.misleads]
        return next(each for each in (*self._ladder.fractions, 1.0) if each > max(misleading)) if misleading else 0.0

    def count_since_improvement(self, trials: Iterable[TrialRecord]) -> int:
        """Return the number of trials that reached a rung, or failed, since the last new best at any rung.

        Of several objectives, the first one counts. Completion is the last rung. Running trials are not counted: they
        may still improve.
        """
        best: dict[int, float] = {}
        count = 0
        for trial in sorted(trials, key=lambda each: each.number):
            if trial.state in WITHOUT_RESULT:
                count += trial.state is TrialState.FAILED
                continue
            costs: dict[int, float] = {}
            for level, cost in self._standings.climb(trial):
                if level > 0:
                    costs.setdefault(level, cost.value)
            is_better = any(cost < best.get(level, math.inf) for level, cost in costs.items())
            has_stopped = bool(costs) and trial.state is not TrialState.RUNNING
            count = 0 if is_better else count + has_stopped
            best.update({level: min(cost, best.get(level, math.inf)) for level, cost in costs.items()})
        return count

    def _misleads(self, level: int) -> bool:
        """Return whether the ranks at a rung agree too little with later ones."""
        return self._ladder.is_hedged and self._standings.agreement(level).misleads

    def _ahead_of_the_best(self, levels: Sequence[int], trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the best paused trial, of the highest rung, that came there better than the best trial had.

        Of several objectives, no trial of the Pareto front had been as good there in all of them.
        Those that were promoted first had to be better than few others.
        """
        standings, front = self._standings, best_records(trials, self._objectives)
        for level in levels:
            best = [standings.cost(level, each).values for each in front if standings.was_at(level, each)]
            if best:
                costs = ((each, standings.cost(level, each).values) for each in standings.paused(level))
                ahead = [each for each, cost in costs if not any(is_no_worse(other, cost) for other in best)]
                if ahead:
                    return min(ahead, key=self._place_at(level))
        return None

    def _promotable(
        self,
        level: int,
        candidates: Sequence[TrialRecord],
        trials: Sequence[TrialRecord],
        rating: Rating | None,
    ) -> TrialRecord | None:
        """Return which of the candidates to promote from a rung; None: none of them."""
        standings = self._standings
        count = standings.count(level) // self._ladder.reduction_factor
        candidates = self._finite(level, candidates)
        if rating is None:
            ranked = {each.number: standings.rank(level, each.number) for each in candidates}
            best = [each for each in candidates if (rank := ranked[each.number]) is not None and rank < count]
            return min(best, key=self._place_at(level), default=None)
        if not candidates or standings.promoted(level, but=(each.number for each in candidates)) >= count:
            return None
        return self._best_of(level, candidates, trials, rating)

    def _best_of(
        self, level: int, candidates: Sequence[TrialRecord], trials: Sequence[TrialRecord], rating: Rating | None
    ) -> TrialRecord:
        """Return the trial at a rung with the largest expected improvement, or with the best report there."""
        candidates = self._finite(level, candidates)
        if rating is None:
            return min(candidates, key=self._place_at(level))
        rated = zip(rating(candidates, trials), candidates, strict=True)
        return max(rated, key=lambda pair: (pair[0], -pair[1].number))[1]

    def _place_at(self, level: int) -> Callable[[TrialRecord], int]:
        """Return the key by which ranked trials at a rung are sorted, the best first."""
        return lambda each: self._standings.rank(level, each.number) or 0

    def _finite(self, level: int, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return those of the trials that had not diverged when they came to a rung."""
        return [each for each in trials if self._standings.cost(level, each).value != math.inf]

    def _most(self, level: int) -> int:
        """Return the most trials that can be promoted from a rung, with those that may still come to it.

        While no ranked trial is at its end, some more: the best may fail. With a budget alone, all that have not
        diverged: it may be raised.
        """
        standings = self._standings
        if self._n_trials is None:
            most = standings.count_finite(level)
        else:
            to_come = standings.to_come(level) + max(0, self._n_trials - standings.begun)
            most = (standings.count(level) + to_come) // self._ladder.reduction_factor
        return max(most, 1 if standings.at_their_end() else _LEAST)


def _holds(shown: Report | TrialRecord) -> bool:
    return all(each <= 0 for each in shown.violations.values())
