"""How far a search is and how long it will still take, by the training that remains; no clock, no input or output.

The unit is a full training run: a trial that is trained for a sixth of its schedule has cost a sixth. The remaining
cost is that of running trials, of paused ones that will be promoted, and of trials that have not begun. The fractions
at which trials end are those seen so far; at rungs, the ladder is the prior.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..search.decisions.ladder import ROUNDING, Ladder
from ..search.decisions.promotion_at_rungs import Rungs
from ..search.decisions.repeats import Repeats
from ..search.decisions.training_budget import full_runs
from ..search.metrics.replicas import without_replicas
from ..search.study import Study
from ..search.trial_record import TrialRecord, TrialState

# The ladder counts as much as this number of trials at each rung.
_PRIOR_TRIALS = 8
# Later trials are more like those to come: they had other peers, and other proposals. At least this many are counted.
_LEAST_RECENT = 8
# A budget ends a search with rungs when it cannot complete another trial; on average this much is left then.
_SPARED = 0.5
# A trial whose progress is unknown is expected to be at most this far.
_MOST_UNKNOWN = 0.9


class Remaining(NamedTuple):
    """The expected cost of the rest of a search, in full training runs.

    Attributes:
        running: of each running trial up to its next pause, by number.
        others: of promotions, and of trials that have not begun.
        starts: the number of times that one of these starts or resumes.
        complete: the number of trials that will have completed.
    """

    running: Mapping[int, float]
    others: float = 0.0
    starts: float = 0.0
    complete: float = 0.0

    @property
    def cost(self) -> float:
        """Of all trials."""
        return sum(self.running.values()) + self.others


class Estimate(NamedTuple):
    """What a view shows.

    Attributes:
        fraction: of the search that is done, from 0 to 1.
        seconds_left: None while they cannot be estimated.
        is_at_most: whether a pruner may end trials earlier, which cannot be foreseen: the seconds are those without it.
    """

    fraction: float
    seconds_left: float | None
    is_at_most: bool = False


class Outlook(NamedTuple):
    """What the rungs say of promotions that do not follow from the number of trials.

    Attributes:
        misleading: the rungs, by their fraction, from which all trials are promoted, as their ranks mislead.
        least_complete: paused trials may have a last chance until this number of trials is complete, of those that may
            pause.
        has_last: whether there is such a trial now.
    """

    misleading: Collection[float] = ()
    least_complete: int = 0
    has_last: bool = False


NO_OUTLOOK = Outlook()


def remaining_cost(
    n_trials: int,
    repeats: Repeats,
    ladder: Ladder | None,
    records: Collection[TrialRecord],
    running: Mapping[int, float],
    outlook: Outlook = NO_OUTLOOK,
    is_at_most: bool = False,
) -> Remaining:
    """Return the expected cost of what a search will still train, if only the number of trials limits it.

    Args:
        n_trials: the total number of trials; if fewer than have begun, no further one begins.
        repeats: how often trials are trained.
        ladder: the rungs at which trials pause; None: they do not.
        records: of the trials, those before a resumption of running ones included.
        running: the fraction that each running trial has trained of its run, by number.
        outlook: what the rungs say of promotions.
        is_at_most: return the cost if every trial that there are no rungs for is trained to completion.
    """
    trials = [each for each in records if each.replica is None and each.state is not TrialState.REFUSED]
    known = [_Known.of(each, running) for each in trials]
    others = {each.number for each in records}
    known += [_Known(number, at, True) for number, at in running.items() if number not in others]
    to_begin = max(0, n_trials - len(known))
    has_rungs = ladder is not None and not _are_evaluated_at_their_end_only(records)
    if has_rungs and ladder:
        found = _at_rungs(ladder, known, to_begin, outlook)
    else:
        found = _to_completion(known, to_begin) if is_at_most else _without_rungs(known, to_begin)
    trained = sum(running.get(each.number, _cost_of(each)) for each in records if each.replica is not None)
    again = _replicas(repeats, found.complete, trained)
    return found._replace(others=found.others + again, starts=found.starts + again)


def _are_evaluated_at_their_end_only(records: Collection[TrialRecord]) -> bool:
    """Return whether trials never come to a rung, as there is nothing to judge them by."""
    first = [each.reports[0].fraction for each in records if each.reports and each.reports[0].fraction]
    return bool(first) and min(first) >= 1 - ROUNDING


def _cost_of(record: TrialRecord) -> float:
    """Return the cost of a trial; a complete one is a full training run, also if nobody has said how long it is."""
    return full_runs(record) or float(record.state is TrialState.COMPLETE)


class _Known(NamedTuple):
    """A trial that has begun: how far it is, and whether it is running, or half-done, or paused."""

    number: int
    at: float
    is_running: bool
    is_paused: bool = False

    @classmethod
    def of(cls, record: TrialRecord, running: Mapping[int, float]) -> _Known:
        if record.number in running:
            return cls(record.number, running[record.number], True)
        is_running = record.state in (TrialState.RUNNING, TrialState.INTERRUPTED)
        return cls(record.number, _cost_of(record), is_running, record.state is TrialState.PAUSED)

    def is_beyond(self, rung: float) -> bool:
        """Return whether it was promoted from a rung, or will pass it."""
        return self.at > rung + ROUNDING or (self.is_running and self.at >= rung - ROUNDING)


def _recent(known: Sequence[_Known]) -> list[_Known]:
    """Return the later half of the trials."""
    in_order = sorted(known)
    return in_order[-max(_LEAST_RECENT, len(in_order) // 2) :]


def _to_completion(known: Sequence[_Known], to_begin: int) -> Remaining:
    """Return the rest if no trial ends before its last step."""
    running = {each.number: 1.0 - each.at for each in known if each.is_running or each.is_paused}
    complete = sum(each.at >= 1 - ROUNDING for each in known) + len(running) + to_begin
    return Remaining(running, float(to_begin), float(to_begin), complete)


def _without_rungs(known: Sequence[_Known], to_begin: int) -> Remaining:
    """Return the rest where trials end at any time, as a pruner or a failure ends them.

    The distribution of the fraction at their end is the Kaplan-Meier estimator, in which running trials are censored,
    and a trial that completes is the prior.
    """
    recent = _recent(known)
    ends = sorted(each.at for each in recent if not (each.is_running or each.is_paused) and each.at < 1 - ROUNDING)
    at_all = sorted(each.at for each in recent)
    steps, alive = [0.0], [1.0]
    for place, end in enumerate(ends):
        at_risk = len(at_all) - bisect_left(at_all, end) - (place - bisect_left(ends, end)) + 1 / (1 + len(ends))
        steps.append(end)
        alive.append(alive[-1] * (1 - 1 / at_risk))
    steps.append(1.0)
    areas = [0.0]  # below the curve, to the right of each step
    for place in range(len(alive) - 1, -1, -1):
        areas.append(areas[-1] + alive[place] * (steps[place + 1] - steps[place]))
    areas.reverse()

    def rest(at: float) -> float:
        place = max(0, bisect_left(steps, at + ROUNDING) - 1)
        return (areas[place] - alive[place] * (at - steps[place])) / alive[place] if place < len(alive) else 0.0

    running = {each.number: rest(each.at) for each in known if each.is_running or each.is_paused}
    complete = sum(each.at >= 1 - ROUNDING for each in known) + alive[-1] * (len(running) + to_begin)
    return Remaining(running, to_begin * areas[0], to_begin, complete)


def _at_rungs(ladder: Ladder, known: Sequence[_Known], to_begin: int, outlook: Outlook) -> Remaining:
    """Return the rest where trials pause at rungs, and a part of them is promoted from each."""
    first = min((each.number for each in known), default=0)
    after = max((each.number for each in known), default=-1) + 1
    ranked, unranked = list[_Known](), list[_Known]()
    for each in known:
        (unranked if ladder.completes(each.number - first) else ranked).append(each)
    running = {each.number: 1.0 - each.at for each in unranked if each.is_running}
    to_complete = sum(ladder.completes(number - first) for number in range(after, after + to_begin))
    points = [0.0, *(_pause_at(ladder, level, ranked) for level in range(1, ladder.end)), 1.0]
    to_rank = to_begin - to_complete
    at_end = sum(each.at >= 1 - ROUNDING for each in ranked)
    at_each = [len(ranked) + to_rank, *(0.0 for _ in ladder.fractions)]
    for level, begin in enumerate(points[1:-1], start=1):
        at_each[level] = _passing(ranked, begin, at_each[level - 1], to_rank, ladder, outlook, level)
    odds = 0.25 if to_begin else float(outlook.has_last)
    chances = odds * max(0.0, outlook.least_complete - max(at_end, at_each[-1]))
    others, starts = float(to_complete), float(to_begin)
    for level, (begin, end) in enumerate(pairwise(points)):
        passed = len(ranked) if level == 0 else sum(each.is_beyond(begin) for each in ranked)
        left = at_each[level] - passed
        if level > 0:
            may_pass = sum(each.is_running or each.is_paused for each in ranked if not each.is_beyond(begin))
            left = min(left + chances, may_pass + to_rank)
            starts += left
        others += left * (end - begin)
        in_segment = [each for each in ranked if each.is_running and each.at < end - ROUNDING]
        running |= {each.number: end - each.at for each in in_segment if level == 0 or each.is_beyond(begin)}
    complete = sum(each.at >= 1 - ROUNDING for each in unranked)
    return Remaining(running, others, starts, at_each[-1] + to_complete + complete)


def _passing(
    ranked: Sequence[_Known], rung: float, to_reach: float, to_rank: int, ladder: Ladder, outlook: Outlook, level: int
) -> float:
    """Return the number of trials that will have been promoted from a rung, of those that will have reached it."""
    passed = sum(each.is_beyond(rung) for each in ranked)
    reached = sum(each.at >= rung - ROUNDING for each in ranked)
    odds = (passed + _PRIOR_TRIALS / ladder.reduction_factor) / (reached + _PRIOR_TRIALS)
    if ladder.fractions[level - 1] in outlook.misleading:
        odds = 1.0
    may_pass = sum(each.is_running or each.is_paused for each in ranked if not each.is_beyond(rung))
    return min(max(passed, odds * to_reach), passed + may_pass + to_rank)


def _pause_at(ladder: Ladder, level: int, trials: Sequence[_Known]) -> float:
    """Return the fraction at which trials pause at a rung: the first evaluation after it, as far as is known."""
    seen = [each.at for each in trials if not each.is_running and ladder.level(each.at) == level]
    return max(seen, default=ladder.fractions[level - 1])


def _replicas(repeats: Repeats, complete: float, trained: float) -> float:
    """Return the expected cost of training the best trials again, with other seeds or on other folds."""
    if repeats.most <= 1 or complete < 1:
        return 0.0
    return max(0.0, sum(max(1.0, complete * repeats.share**run) for run in range(1, repeats.most)) - trained)


@dataclass
class _Running:
    """A running trial.

    Attributes:
        before: the fraction that was trained when it came to its worker.
        at: the fraction that is trained now.
        since: the moment at which it came to its worker.
        first_step: the moment of the first progress there, and the fraction then; None before it.
        latest: the moment of the latest progress.
    """

    before: float
    at: float
    since: float
    first_step: tuple[float, float] | None = None
    latest: float = 0.0


@dataclass
class _Trained:
    """What a trial has trained in this session, after the first step at each of its workers: runs, and seconds."""

    runs: float = 0.0
    seconds: float = 0.0


@dataclass
class SearchProgress:
    """Follows the events of a search, each with its moment in seconds, and estimates what remains.

    Attributes:
        study: the settings as they are now.
        ladder: the rungs at which trials pause; None: they do not.
        begin: the moment at which the search began.
        may_prune: whether a pruner other than rungs may end trials.
    """

    study: Study
    ladder: Ladder | None
    begin: float
    may_prune: bool = False
    _records: Mapping[int, TrialRecord] = field(default_factory=dict)
    _running: dict[int, _Running] = field(default_factory=dict)
    _trained: dict[int, _Trained] = field(default_factory=dict)
    _first_step: float | None = None
    _starts: int = 0
    _workers: int = 1
    _rungs: Rungs | None = None
    _rungs_of: Study | None = None

    def take_records(self, records: Mapping[int, TrialRecord]) -> None:
        """Know these trials, by number; those of other sessions too."""
        self._records = records

    def start(self, number: int, trained: float, now: float) -> None:
        """Know that a trial starts or resumes, of which a fraction is trained already."""
        self._running[number] = _Running(trained, trained, now)
        self._starts += 1
        self._workers = max(self._workers, len(self._running))

    def step(self, number: int, fraction: float, now: float) -> None:
        """Know how far a running trial is."""
        trial = self._running.get(number)
        if trial is None or (trial.first_step is None and fraction <= trial.before):
            return
        if trial.first_step is None or fraction < trial.at:  # its worker has died, and another one resumes it
            trial.first_step = (now, fraction)
        trial.at, trial.latest = fraction, now
        if self._first_step is None:
            self._first_step = now

    def end(self, record: TrialRecord, now: float) -> None:
        """Know that a trial does not run any more."""
        trial = self._running.pop(record.number, None)
        if trial is None:
            return
        began, fraction = trial.first_step or (trial.since, trial.before)
        trained = self._trained.setdefault(record.number, _Trained())
        trained.runs += max(0.0, _cost_of(record) - fraction)
        trained.seconds += now - began
        if self._first_step is None:
            self._first_step = trial.since

    def estimate(self, now: float) -> Estimate:
        """Return how far the search is, and the seconds until its end: those of the limit that comes first.

        Events may come from another thread meanwhile: what changes is copied first.
        """
        trials, records = dict(self._running), list(self._records.values())
        pace = self._pace(trials, now)
        running = {number: self._at(trial, now, pace) for number, trial in trials.items()}
        done = sum(running.values()) + sum(_cost_of(each) for each in records if each.number not in running)
        limits = self._limits(records, running, done)
        fractions = [done / (done + each.cost) if done + each.cost > 0 else 1.0 for each in limits]
        is_pruned = self.may_prune and not _are_evaluated_at_their_end_only(records)
        if is_pruned:
            limits = self._limits(records, running, done, is_at_most=True)
        seconds = [] if pace is None else [self._seconds(each, pace) for each in limits]
        without_pruning = seconds[0] if seconds and is_pruned and self.study.n_trials is not None else None
        if self.study.timeout is not None:
            seconds.append(max(0.0, self.study.timeout - (now - self.begin)))
            fractions.append(min(1.0, (now - self.begin) / self.study.timeout))
        left = min(seconds, default=None)
        return Estimate(max(fractions, default=0.0), left, left is not None and left == without_pruning)

    def _limits(
        self, records: Sequence[TrialRecord], running: Mapping[int, float], done: float, is_at_most: bool = False
    ) -> list[Remaining]:
        """Return the cost that each limit of the study leaves, that of the number of trials first."""
        study, found = self.study, []
        if study.n_trials is not None:
            outlook = self._outlook(records)
            known = Repeats.of(study), self.ladder, records, running, outlook
            found.append(remaining_cost(study.n_trials, *known, is_at_most))
        totals = []
        if study.budget is not None:
            totals.append(study.budget - (0.0 if self.ladder is None else _SPARED))
        ended = [each for each in records if each.epochs and _cost_of(each)]
        if study.max_epochs is not None and ended:
            totals.append(study.max_epochs * sum(map(_cost_of, ended)) / sum(each.epochs for each in ended))
        for total in totals:
            under_way = remaining_cost(0, Repeats.of(study), self.ladder, records, running).running
            others = max(0.0, total - done - sum(under_way.values()))
            found.append(Remaining(under_way, others, others * self._starts / done if done else 0.0))
        return found

    def _outlook(self, records: Sequence[TrialRecord]) -> Outlook:
        if self.ladder is None:
            return NO_OUTLOOK
        if self._rungs is None or self._rungs_of is not self.study:
            self._rungs, self._rungs_of = Rungs(self.study, self.ladder), self.study
        compared = without_replicas(sorted(records, key=lambda each: each.number))
        agreements = self._rungs.agreements(compared)
        misleading = [at for at, found in agreements.items() if found.misleads]
        return Outlook(misleading, self._rungs.least_complete, self._rungs.last(compared) is not None)

    def _at(self, trial: _Running, now: float, pace: _Pace | None) -> float:
        """Return how far a trial is; one that does not say it, as far as trials are on average."""
        if trial.first_step is not None or pace is None or pace.seconds <= 0:
            return trial.at
        return max(trial.at, min(_MOST_UNKNOWN, (now - trial.since) / pace.seconds))

    def _pace(self, running: Mapping[int, _Running], now: float) -> _Pace | None:
        """Return the pace of this session; None before anything is trained."""
        trained = {number: (each.runs, each.seconds) for number, each in list(self._trained.items())}
        for number, trial in running.items():
            if trial.first_step is not None:
                runs, seconds = trained.get(number, (0.0, 0.0))
                moment, fraction = trial.first_step
                trained[number] = runs + trial.at - fraction, seconds + trial.latest - moment
        if self._first_step is None or not sum(runs for runs, _ in trained.values()):
            return None
        busy = sum(seconds for _, seconds in trained.values())
        idle = max(0.0, self._workers * (now - self._first_step) - busy)
        recent = sorted(trained)[-max(_LEAST_RECENT, len(trained) // 2) :]
        runs, seconds = (sum(trained[number][place] for number in recent) for place in (0, 1))
        if not runs:
            runs, seconds = sum(each for each, _ in trained.values()), busy
        return _Pace(seconds / runs, {n: s / r for n, (r, s) in trained.items() if r > 0}, idle / self._starts)

    def _seconds(self, remaining: Remaining, pace: _Pace) -> float:
        """Return the seconds for a remaining cost at the pace of this session.

        At the end, some workers have nothing to do while the last trials are trained: without rungs, half of a run on
        average; at rungs a whole one, as the last trials are promoted one after another.
        """
        own = [pace.by_trial.get(number, pace.seconds) * cost for number, cost in remaining.running.items()]
        others = remaining.others * pace.seconds + remaining.starts * pace.start
        total = (sum(own) + others) / self._workers
        if others > 0:
            total += pace.seconds * (0.5 if self.ladder is None else 1.0) * (self._workers - 1) / self._workers
        return max([total, *own])


class _Pace(NamedTuple):
    """The pace of a search: seconds of a full training run, of all trials and of each; seconds to start a trial."""

    seconds: float
    by_trial: Mapping[int, float]
    start: float
