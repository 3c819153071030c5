"""A budget in full training runs: the cost of trials, and which trial may begin or resume.

One unit is one trial trained to completion on its own schedule. A trial costs the fraction of its training run that it
has trained, whatever its state. The budget ends no trial: it is checked before a trial begins, resumes, or is promoted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ..trial_record import TrialRecord, TrialState
from ..wording import counted
from .ladder import ROUNDING, Ladder

# With rungs at 1/6 and 1/2, a trial costs 1/6 + 1/2 * 1/3 + 1/4 * 1/2 = 0.46 on average if half of the trials are
# promoted from each rung; one trial of eight, which runs to completion, makes it a half.
_COST_OF_A_TRIAL = 0.5
# The trials of a search without any limit. A search limited by time or epochs alone is expected to have as many.
USUAL_TRIALS = 20
# If the evaluations of trials are not known beforehand, they are estimated from this number of recent trials.
_RECENT = 50


def expected_trials(n_trials: int | None, budget: float | None, pauses: bool = True) -> int:
    """Return the number of trials that a search is expected to start, by which its ladder is chosen.

    Args:
        n_trials: the most trials; None: no limit.
        budget: in full training runs; None: no limit. If both are None, time or epochs limit the search, and how many
            trials fit is not known: `USUAL_TRIALS`.
        pauses: whether trials pause at rungs; else each costs a full training run.

    >>> [expected_trials(None, budget) for budget in (1, 5, 20)], expected_trials(None, 20, pauses=False)
    ([2, 10, 40], 20)
    >>> expected_trials(50, 5), expected_trials(8, 20), expected_trials(40, None), expected_trials(None, None)
    (10, 8, 40, 20)
    """
    if budget is None:
        return USUAL_TRIALS if n_trials is None else n_trials
    expected = max(1, round(budget / (_COST_OF_A_TRIAL if pauses else 1.0)))
    return expected if n_trials is None else min(n_trials, expected)


def full_runs(trial: TrialRecord) -> float:
    """Return the cost of a trial in full training runs: the fraction of its training run that it has trained.

    A record of hpsearch 0.8.0 does not have it; the last report is used instead.

    >>> from hpsearch import Report
    >>> full_runs(TrialRecord(0, "run-0", TrialState.FAILED, {}, fraction=0.25))
    0.25
    >>> full_runs(TrialRecord(0, "run-0", TrialState.PAUSED, {}, reports=(Report((0.5,), 2, 20, 2, {}, horizon=4),)))
    0.5
    """
    if trial.fraction is not None:
        return trial.fraction
    return min(1.0, trial.reports[-1].fraction) if trial.reports else 0.0


def full_runs_of(trials: Sequence[TrialRecord]) -> float:
    """Return the cost of trials in full training runs."""
    return sum(map(full_runs, trials))


def is_exhausted(budget: float | None, trials: Sequence[TrialRecord]) -> bool:
    """Return whether a budget completes no further trial, neither a new one nor one that may resume; None: no limit.

    >>> paused = TrialRecord(0, "run-0", TrialState.PAUSED, {}, fraction=0.5)
    >>> [is_exhausted(budget, [paused]) for budget in (1.0, 0.9, None)], is_exhausted(1.0, [])
    ([False, True, False], False)
    """
    furthest = max((full_runs(each) for each in trials if each.state.is_open), default=0.0)
    return budget is not None and full_runs_of(trials) + 1.0 - furthest > budget + ROUNDING


class Limited(Protocol):
    """A study: its total of trials, and its budget in full training runs."""

    @property
    def n_trials(self) -> int | None:
        """The most trials; None: no limit."""

    @property
    def budget(self) -> float | None:
        """The most full training runs; None: no limit."""


def progress_in_words(study: Limited, trials: Sequence[TrialRecord]) -> str:
    """Return how much of a study has been done: ``5 of 20 trials``, ``3.2 of 8 full training runs``, or both.

    With neither limit, ``5 trials``.
    """
    done, parts = sum(each.is_counted for each in trials), []
    if study.n_trials is not None:
        parts.append(f"{done} of {study.n_trials} trials")
    elif study.budget is None:
        parts.append(counted(done, "trial"))
    if study.budget is not None:
        parts.append(f"{full_runs_of(trials):.3g} of {study.budget:g} full training runs")
    return " and ".join(parts)


@dataclass(frozen=True)
class TrainingBudget:
    """A budget of a study, in full training runs, over all sessions.

    Attributes:
        total: the number of full training runs.
        ladder: where trials pause; None: trials do not pause.
        points: after which fractions of its training run each trial is evaluated; None: that is not known.
    """

    total: float
    ladder: Ladder | None = None
    points: tuple[float, ...] | None = None

    def account(
        self,
        trials: Sequence[TrialRecord],
        best: TrialRecord | None = None,
        by_hand: Collection[int] = frozenset(),
    ) -> Account:
        """Return the remaining budget.

        Args:
            trials: all trials of the study; RUNNING are those that a process is at, INTERRUPTED other half-done ones.
            best: the paused trial that would be completed if the search ended now; None: none would be.
            by_hand: the numbers of the trials that the user has promoted, which are trained to completion in any case.
        """
        return Account(self, trials, best, by_hand)

    def exhausted(self, trials: Sequence[TrialRecord]) -> str:
        """Describe, as the reason for the end of a search, how much of the budget its trials have cost."""
        runs = "run is" if self.total == 1 else "runs is"
        return f"the budget of {self.total:g} full training {runs} exhausted ({full_runs_of(trials):.3g})"


class Account:
    """The budget that is left at one moment; see `TrainingBudget.account`."""

    def __init__(
        self,
        budget: TrainingBudget,
        trials: Sequence[TrialRecord],
        best: TrialRecord | None,
        by_hand: Collection[int],
    ) -> None:
        self._ladder, self._points, self._trials, self._best = budget.ladder, budget.points, trials, best
        self._first = min((each.number for each in trials), default=None)
        self._left = budget.total - full_runs_of(trials)
        self._by_hand = {each.number for each in trials if each.state.is_open and each.number in by_hand}
        self._reserved = [
            (each, self._to_next_pause(each))
            for each in trials
            if each.state in (TrialState.RUNNING, TrialState.INTERRUPTED) or each.number in self._by_hand
        ]

    def affords(self, trial: TrialRecord) -> bool:
        """Return whether a trial, a new one too, may train up to its next pause; what is reserved stays.

        Reserved are the costs of running and half-done trials up to their next pauses, and the cost of completing one
        trial more: the best paused one, or one that may become the best at its next pause. Half-done trials come first:
        from them, nothing is reserved for other half-done ones. A trial promoted by hand is trained in any case.
        """
        if trial.number in self._by_hand:
            return True
        others = [(each, cost) for each, cost in self._reserved if each.number != trial.number]
        if trial.state is TrialState.INTERRUPTED:
            others = [(each, cost) for each, cost in others if each.state is not TrialState.INTERRUPTED]
        costs = [self._to_next_pause(trial), *(cost for _, cost in others)]
        to_complete = max(from_pause for _, from_pause in costs)
        if self._best is not None and self._best.number != trial.number:
            to_complete = max(to_complete, 1.0 - full_runs(self._best))
        return sum(to_pause for to_pause, _ in costs) + to_complete <= self._left + ROUNDING

    def _to_next_pause(self, trial: TrialRecord) -> tuple[float, float]:
        """Return the cost of a trial up to its next pause, and from there to its completion."""
        pause = self._next_pause(trial)
        return max(0.0, pause - full_runs(trial)), 1.0 - pause

    def _next_pause(self, trial: TrialRecord) -> float:
        """Return the fraction of its training run after which a trial pauses next; 1 if it does not pause any more."""
        ladder = self._ladder
        first = trial.number if self._first is None else min(self._first, trial.number)
        is_trained_to_its_end = trial.number in self._by_hand or trial.replica is not None
        if ladder is None or is_trained_to_its_end or ladder.completes(trial.number - first):
            return 1.0
        reported = trial.reports[-1].fraction if trial.reports else 0.0
        level = max(ladder.level(reported) + 1, ladder.last if ladder.probes(trial.number - first) else 1)
        if level >= ladder.end:
            return 1.0
        if self._points is None:
            return self._seen[level]
        later = (each for each in self._points if each > reported + ROUNDING and ladder.level(each) >= level)
        return next(later, 1.0)

    @cached_property
    def _seen(self) -> list[float]:
        """The latest fraction, by level, at which a trial was first evaluated there; 1 where none was."""
        assert self._ladder is not None
        seen: list[list[float]] = [[] for _ in range(self._ladder.end + 1)]
        for trial in [each for each in self._trials if each.reports][-_RECENT:]:
            fractions = [each.fraction for each in trial.reports]
            levels = [self._ladder.level(each) for each in fractions]
            for level in range(1, max(levels) + 1):
                seen[level].append(min(f for f, at in zip(fractions, levels, strict=True) if at >= level))
        return [max(each, default=1.0) for each in seen]
