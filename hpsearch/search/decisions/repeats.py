"""Which trial is trained once more, with another seed or on another fold: further runs are rungs above the end.

Of the trials with as many runs, the best ones, by the mean of these runs, get one more: the best third. With many folds
it is a larger share, so that of the complete trials one in nine is trained on all of them, as with three runs. Folds
come in the same order for all trials, so that trials are compared on the same samples. The rule is asynchronous, as at
all rungs: it looks at the trials that there are, and where more may come, the share is rounded down. When none can come
any more, the part of the complete trials that gets each number of runs is rounded up: at least one trial gets all runs.

Further seeds come early, as they teach the model which parameters were lucky. Further folds do not teach it, so where
only the number of trials limits the search, folds are deferred until no other trial can come, and none is spent on one
that turns out not to be among the best; a limit of time or work might not leave any for them.

Source: Li, Jamieson, Rostamizadeh, Gonina, Hardt, Recht, Talwalkar: A System for Massively Parallel Hyperparameter
Tuning (MLSys 2020), algorithm 2, with the number of seeds as the resource. For `Confirmation`, racing: Maron, Moore:
The Racing Algorithm: Model Selection for Lazy Learners (Artificial Intelligence Review 11, 1997).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..metrics.objective import Objective
from ..metrics.replicas import SHARE_REPEATED, Runs, pooled_variance, runs_of
from ..metrics.selection import sign_of
from ..study import Study
from ..trial_record import FOLD, REPLICA, Replica, TrialRecord
from .pareto_order import pareto_order

# A trial is out of the race if its mean is worse than the best one by more standard errors of the difference.
_STANDARD_ERRORS = 2
# An estimate of the noise from few residuals is raised by this, divided by their number, as Student's t is wider.
_CAUTION = 3
# The share of the complete trials that is trained on all of many folds.
_SHARE_ON_ALL_FOLDS = 1 / 9


class Repeated(Protocol):
    """A study whose trials may be trained several times."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives."""

    @property
    def repeats(self) -> int:
        """The most training runs of a trial, each with another seed."""

    @property
    def fold_count(self) -> int:
        """The number of folds of its cross-validation; 0: there is none."""


@dataclass(frozen=True)
class Confirmation:
    """A request to train certain trials several times, until the best of them is clear.

    Attributes:
        trials: their numbers.
        repeats: the most training runs of each, the first one included.
    """

    trials: tuple[int, ...]
    repeats: int


@dataclass(frozen=True)
class Repeats:
    """How often trials are trained.

    Attributes:
        most: the most training runs of a trial, with a seed or a fold each; 1: none is repeated.
        objectives: of the study.
        confirmations: at the request of the user, when all else is done.
        are_folds: whether the runs of a trial are the folds of a cross-validation.
        come_last: whether they wait until no other trial can come.
    """

    most: int
    objectives: tuple[Objective, ...]
    confirmations: tuple[Confirmation, ...] = ()
    are_folds: bool = False
    come_last: bool = False

    @classmethod
    def of(cls, study: Repeated) -> Repeats:
        """Return how often the trials of a study are trained, without what the user has requested."""
        return cls(study.fold_count or study.repeats, study.objectives, are_folds=study.fold_count > 0)

    @classmethod
    def in_search(cls, study: Study) -> Repeats:
        """Return how a search of the study trains trials several times."""
        may_end_before = (study.budget, study.timeout, study.max_epochs) != (None, None, None)
        is_deferred = study.folds is not None and study.n_trials is not None and not may_end_before
        return replace(cls.of(study), come_last=is_deferred)

    @property
    def share(self) -> float:
        """The share of the trials with as many runs that gets one more.

        >>> [round(Repeats(folds, (), are_folds=True).share, 2) for folds in (2, 3, 5, 10)]
        [0.33, 0.33, 0.58, 0.78]
        """
        return max(SHARE_REPEATED, _SHARE_ON_ALL_FOLDS ** (1 / (self.most - 1))) if self.are_folds else SHARE_REPEATED

    @property
    def is_possible(self) -> bool:
        """Whether any trial may be repeated."""
        return self.most > 1 or bool(self.confirmations)

    def next(self, trials: Sequence[TrialRecord], more_may_come: bool) -> Replica | None:
        """Return the replica that begins next; None if there is none now.

        Args:
            trials: of the study, with their replicas.
            more_may_come: whether another trial may still get its first result.
        """
        if more_may_come and self.come_last:
            return None
        runs = _repeatable(runs_of(trials))
        complete = sum(each.first(1).mean.is_eligible for each in runs)
        running = [each for each in trials if each.state.is_open]
        counts = range(1, self.most)
        # At the end, all trials get their second run before one of them gets a third one: it is chosen among all.
        for count in reversed(counts) if more_may_come else counts:
            may_grow = more_may_come or any(each.replica.offset < count for each in running if each.replica is not None)
            there = [each for each in runs if len(each.records) >= count]
            due = self._due(there, count, None if may_grow else math.ceil(complete * self.share**count - 1e-9))
            if due is not None:
                return due
        if more_may_come:
            return None
        found = (self._of_confirmation(each, runs) for each in self.confirmations)
        return next((each for each in found if each is not None), None)

    def _due(self, runs: Sequence[Runs], count: int, most: int | None) -> Replica | None:
        """Return the replica of the best trial that has this number of runs and is to have one more.

        The `most` best of them are; None: a share of those that there are so far.
        """
        best = self._best_first([each.first(count) for each in runs])
        chosen = best[: math.floor(len(best) * self.share + 1e-9) if most is None else most]
        begun = {each.trial.number: each.begun for each in runs}
        kind = FOLD if self.are_folds else REPLICA
        return next((Replica(number, count, kind) for number in chosen if begun[number] < count), None)

    def _of_confirmation(self, asked: Confirmation, runs: Sequence[Runs]) -> Replica | None:
        """Return the replica of the trial with the fewest runs among those that may be the best."""
        chosen = [each for each in runs if each.trial.number in asked.trials and each.mean.is_eligible]
        best = self._best_first(chosen)
        hopeful = [each for each in chosen if not self._is_beaten(each, chosen, runs)]
        if len(hopeful) <= 1 and len(best) > 1:
            return None
        places = {number: place for place, number in enumerate(best)}
        left = [each for each in hopeful if each.begun + 1 < asked.repeats]
        fewest = min(left, key=lambda each: (each.begun, places[each.trial.number]), default=None)
        return None if fewest is None else Replica(fewest.trial.number, fewest.begun + 1)

    def _is_beaten(self, runs: Runs, others: Sequence[Runs], known: Sequence[Runs]) -> bool:
        """Return whether the mean of another trial is clearly better; with several objectives, none is."""
        noise = noise_between_seeds(known)
        if len(self.objectives) > 1 or noise is None or len(runs.records) < 2:
            return False
        sign = sign_of(self.objectives[0])

        def ahead(other: Runs) -> float:
            error = noise * math.sqrt(1 / len(runs.records) + 1 / len(other.records))
            return sign * (runs.mean.values[0] - other.mean.values[0]) - _STANDARD_ERRORS * error

        return any(ahead(each) > 0 for each in others if len(each.records) > 1)

    def _best_first(self, runs: Sequence[Runs]) -> list[int]:
        """Return the numbers of trials by their means, the best first; without those that break a constraint."""
        means = [each.mean for each in runs if each.mean.is_eligible]
        signs = list(map(sign_of, self.objectives))
        costs = [tuple(sign * value for sign, value in zip(signs, each.values, strict=True)) for each in means]
        return [means[place].number for place in pareto_order(costs)]


def _repeatable(runs: Sequence[Runs]) -> list[Runs]:
    """Return the runs of the trials that can be trained again from the beginning, with other seeds.

    A trial that extends another one, or whose parameters changed while it trained, cannot; and one that tries the
    parameters of another one again is that one.
    """
    known, found = set[str](), list[Runs]()
    for each in runs:
        trial = each.trial
        is_again = trial.origin is not None and trial.configuration in known
        if trial.extends is None and not trial.schedule and not is_again:
            known.add(trial.configuration)
            found.append(each)
    return found


def noise_between_seeds(runs: Sequence[Runs]) -> float | None:
    """Return the standard deviation of a trial's first objective between seeds; None if no trial was repeated.

    It is pooled over all trials, and cautious: larger where it is known from few runs.
    """
    found = pooled_variance(runs)
    return None if found is None else math.sqrt(found[0]) * (1 + _CAUTION / found[1])
