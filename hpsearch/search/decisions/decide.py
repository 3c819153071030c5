"""The decisions of a search: pure functions of its trials and its rules.

`decide` says what the next free slot does, which paused trials can no longer be promoted, and when and why a search
ends. `judge` says what a trial does that has come to a rung. Neither reads a file or a clock, draws a random number, or
remembers anything, so a search that was killed, and several at one study, decide as one would.

Whoever asks carries out the decision and asks again, until it is `Start`, `Resume`, `Wait` or `End`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

from ..metrics.replicas import without_replicas
from ..trial import Verdict
from ..trial_record import Replica, TrialRecord, TrialState
from .paused_limit import PausedLimit
from .promotion_at_rungs import Rating, Rungs
from .repeats import Repeats
from .training_budget import Account, TrainingBudget


@dataclass(frozen=True)
class Rules:
    """The rules of a search's decisions; while it runs, only the user changes them.

    Attributes:
        n_trials: the most trials, those that the user has requested included; None: no limit.
        rungs: where trials pause; None: they do not.
        budget: in full training runs; None: no limit.
        paused_limit: on the number of paused trials, and on the size of their checkpoints.
        repeats: how often trials are trained.
    """

    n_trials: int | None
    rungs: Rungs | None = None
    budget: TrainingBudget | None = None
    paused_limit: PausedLimit = field(default_factory=PausedLimit)
    repeats: Repeats = field(default_factory=lambda: Repeats(1, ()))


@dataclass(frozen=True)
class Closing:
    """Why no further trial may start or resume in this session.

    Attributes:
        reason: in words: a budget of time or epochs, too many failures, a callback.
        selects_best: whether the best paused trial may be stopped with the result it has: a budget is exhausted, and no
            session trains a trial any more.
        lost: the numbers of paused trials whose checkpoints were deleted.
    """

    reason: str
    selects_best: bool = False
    lost: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Snapshot:
    """A study at one moment, those of its trials included that other sessions train.

    Attributes:
        rules: of the search.
        trials: by number, each with the state that it has now: RUNNING if a live process trains it, PAUSED, or
            INTERRUPTED if it has started and no process trains it.
        deleted: the number of other trials that count towards the total: they ended, and their folders were deleted.
        next_number: of the next new trial.
        by_hand: the numbers of the trials that the user has promoted.
        closing: why no further trial may start or resume in this session; None: nothing ends it.
        nothing_new: why there is no new trial to start; None: there may be one.
        settling: the number of trials that have just ended, which their processes are about to record in the storage.
        rating: rates paused trials by their expected improvement; None: their reports do.
        sizes: by number, the bytes of the checkpoints of paused trials.
        free_bytes: on the disk of the study.
        stopped: the numbers of the trials that the user wants to stop.
        has_requested: whether the user has requested a new trial that has not begun.
        is_paused: whether the user has paused the search.
    """

    rules: Rules
    trials: tuple[TrialRecord, ...]
    deleted: int = 0
    next_number: int = 0
    by_hand: frozenset[int] = frozenset()
    closing: Closing | None = None
    nothing_new: str | None = None
    settling: int = 0
    rating: Rating | None = None
    sizes: Mapping[int, int] = field(default_factory=dict)
    free_bytes: float = math.inf
    stopped: frozenset[int] = frozenset()
    has_requested: bool = False
    is_paused: bool = False

    def of(self, state: TrialState) -> list[TrialRecord]:
        """Return the trials in a state, without replicas."""
        return self._by_state.get(state, [])

    @cached_property
    def compared(self) -> Sequence[TrialRecord]:
        """The trials without replicas: those that rungs compare."""
        return without_replicas(self.trials)

    @property
    def replicas(self) -> list[TrialRecord]:
        """The trials that repeat others with other seeds."""
        return [] if self.compared is self.trials else [each for each in self.trials if each.replica is not None]

    @property
    def counted(self) -> int:
        """The number of trials that have ended and count towards the total."""
        return self.deleted + sum(len(trials) for state, trials in self._by_state.items() if state.is_counted)

    def affords(self, trial: TrialRecord) -> bool:
        """Return whether the budget can pay for a trial up to its next pause, or there is none."""
        return self._account is None or self._account.affords(trial)

    @cached_property
    def _by_state(self) -> Mapping[TrialState, list[TrialRecord]]:
        found: defaultdict[TrialState, list[TrialRecord]] = defaultdict(list)
        for each in self.compared:
            found[each.state].append(each)
        return found

    @cached_property
    def _account(self) -> Account | None:
        rungs, budget = self.rules.rungs, self.rules.budget
        if budget is None:
            return None
        return budget.account(self.trials, None if rungs is None else rungs.last(self.compared), self.by_hand)


@dataclass(frozen=True)
class Start:
    """Start a new trial. If there are no parameters left for one, ask again with `nothing_new`."""


@dataclass(frozen=True)
class Resume:
    """Resume a trial.

    Attributes:
        number: of the trial.
        by_hand: whether it is resumed because the user has promoted it.
    """

    number: int
    by_hand: bool = False


@dataclass(frozen=True)
class Prune:
    """Prune paused trials.

    Attributes:
        numbers: of the trials.
        limit: the limit on paused trials that they are beyond, in words; None: they cannot be promoted any more.
    """

    numbers: tuple[int, ...]
    limit: str | None = None


@dataclass(frozen=True)
class Stop:
    """Stop a trial that no process trains, with the result that it has.

    The budget of the study ends the search, and this is the best paused trial; or the user has stopped it.

    Attributes:
        number: of the trial.
        reason: in words.
    """

    number: int
    reason: str


@dataclass(frozen=True)
class Repeat:
    """Start a replica of a trial.

    Attributes:
        replica: which one.
    """

    replica: Replica


@dataclass(frozen=True)
class Wait:
    """Do nothing: trials are running, and their reports may let others resume."""


@dataclass(frozen=True)
class End:
    """End the session: nothing more starts or resumes in it.

    Attributes:
        reason: in words; None: all trials have ended.
        is_early: whether the search ends before its total and its budget are reached.
    """

    reason: str | None = None
    is_early: bool = False


STOPPED_BY_HAND = "stopped by hand"

Decision = Start | Resume | Prune | Stop | Repeat | Wait | End


def decide(now: Snapshot) -> Decision:
    """Return the next action of a free slot.

    In this order: trials that the user has stopped end; half-done trials resume; trials that the user has requested
    start; paused trials are promoted, or pruned; a trial among the best is repeated with another seed; a new trial
    starts. While none of that is possible and trials are running, or while the user has paused the search, the slot
    waits. Afterwards come the last chances of paused trials, and what is still paused is pruned, unless a larger budget
    could resume it.
    """
    stopped = next((each for each in now.trials if each.number in now.stopped and _can_stop(each)), None)
    if stopped is not None:
        return Stop(stopped.number, STOPPED_BY_HAND)
    if now.closing is not None:
        return _close(now, now.closing)
    if now.is_paused:
        return Wait()
    half_done, running = _half_done(now), now.of(TrialState.RUNNING)
    paused = now.of(TrialState.PAUSED) if now.rules.rungs is not None else []
    total = now.rules.n_trials
    may_start = total is None or now.counted + len(running) + len(paused) < total
    half_done_replica = next((each for each in now.replicas if each.state is TrialState.INTERRUPTED), None)
    if half_done_replica is not None and now.affords(half_done_replica):
        return Resume(half_done_replica.number)
    if may_start:
        payable = next((each for each in half_done if now.affords(each)), None)
        if payable is not None:
            return Resume(payable.number)
    new = TrialRecord(now.next_number, "", TrialState.RUNNING, {})
    if may_start and now.has_requested and now.affords(new):
        return Start()
    promotion = _promote(now, paused)
    if promotion is not None:
        return promotion
    may_be_new = may_start and now.nothing_new is None
    is_new_payable = not may_be_new or now.affords(new)
    is_payable = is_new_payable and half_done_replica is None
    more_may_come = (may_be_new and is_new_payable) or bool(half_done or running or paused or now.settling)
    replica = _next_replica(now, more_may_come)
    if replica is not None:
        repeated = replace(new, origin=replica.origin)
        if now.affords(repeated):
            return Repeat(replica)
        is_payable = False
    elif may_be_new and is_new_payable:
        return Start()
    if running or now.settling or any(each.state is TrialState.RUNNING for each in now.replicas):
        return Wait()
    return _end(now, paused, is_payable, now.nothing_new if may_start else None)


def judge(now: Snapshot, number: int, earlier: TrialRecord | None = None) -> Verdict:
    """Return the action of a trial after its last report, which is not that of its completion.

    It continues, pauses at a rung, or is pruned there as it cannot be promoted. Trials promoted by hand continue.

    Args:
        now: the trials; this one with the report.
        number: of the trial.
        earlier: the trial as it was when it was last promoted; see `Rungs.verdict`.
    """
    rungs = now.rules.rungs
    if rungs is None or number in now.by_hand:
        return Verdict()
    trial = now.trials[bisect_left(now.trials, number, key=attrgetter("number"))]
    return rungs.verdict(trial, now.compared, now.rating, earlier, now.affords)


def _next_replica(now: Snapshot, more_may_come: bool) -> Replica | None:
    repeats = now.rules.repeats
    return repeats.next(now.trials, more_may_come) if repeats.is_possible else None


def _can_stop(trial: TrialRecord) -> bool:
    """Return whether a trial has a result that it can be stopped with, and no process trains it."""
    return trial.state in (TrialState.PAUSED, TrialState.INTERRUPTED) and any(each.step > 0 for each in trial.reports)


def _half_done(now: Snapshot) -> list[TrialRecord]:
    """Return the trials that have started and that no process trains; without rungs also the paused ones."""
    interrupted = now.of(TrialState.INTERRUPTED)
    return interrupted if now.rules.rungs is not None else [*interrupted, *now.of(TrialState.PAUSED)]


def _promote(now: Snapshot, paused: Sequence[TrialRecord], is_last_chance: bool = False) -> Resume | Prune | None:
    """Return which paused trial to resume, or which ones to prune; None: all of them stay paused."""
    rungs = now.rules.rungs
    if rungs is None or not paused:
        return None
    by_hand = next((each for each in paused if each.number in now.by_hand), None)
    if by_hand is not None:
        return Resume(by_hand.number, by_hand=True)
    unpromotable = rungs.unpromotable(now.compared)
    if unpromotable:
        return Prune(_numbers(unpromotable))
    surplus, limit = now.rules.paused_limit.surplus(rungs.paused(now.compared), now.sizes, now.free_bytes)
    if surplus:
        return Prune(_numbers(surplus), limit)
    promoted = rungs.next(now.compared, now.rating, is_last_chance, now.affords)
    return None if promoted is None else Resume(promoted.number)


def _end(
    now: Snapshot, paused: Sequence[TrialRecord], is_payable: bool, nothing_new: str | None
) -> Resume | Prune | End:
    """Return the decision when no trial is running and none can start: last chances, then the end."""
    promotion = _promote(now, paused, is_last_chance=True)
    if promotion is not None:
        return promotion
    rungs, budget = now.rules.rungs, now.rules.budget
    if budget is not None:
        # Would a trial be promoted if the budget could pay for it?
        is_lacking = rungs is not None and rungs.next(now.compared, now.rating, is_last_chance=True) is not None
        if is_lacking or not is_payable:
            return End(budget.exhausted(now.trials))
    return Prune(_numbers(paused)) if paused else End(nothing_new, is_early=nothing_new is not None)


def _close(now: Snapshot, closing: Closing) -> Stop | End:
    rungs = now.rules.rungs
    if rungs is not None and closing.selects_best:
        best = rungs.best_paused([each for each in now.compared if each.number not in closing.lost])
        if best is not None:
            return Stop(best.number, closing.reason)
    is_only_limit = closing.selects_best and (now.rules.n_trials, now.rules.budget) == (None, None)
    return End(closing.reason, is_early=not is_only_limit)


def _numbers(trials: Sequence[TrialRecord]) -> tuple[int, ...]:
    return tuple(each.number for each in trials)
