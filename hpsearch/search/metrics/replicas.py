"""Trials that were trained several times, with other seeds or on other folds: what belongs to one, and its mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trial_record import FOLD, TrialRecord, TrialState

# The share of the trials with as many runs, the best ones, that is trained once more.
SHARE_REPEATED = 1 / 3
# The least variance of the true means, as a share of that of the values.
_LEAST_PRIOR = 0.1

Array = NDArray[Any]


@dataclass(frozen=True)
class Runs:
    """The training runs of one trial.

    Attributes:
        records: of the runs that have a result: the trial itself, then its replicas, in their order. A replica that a
            limit has stopped before its end has none that can be compared, nor has one that has failed.
        begun: the largest offset of a replica that has begun; 0 if there is none.
    """

    records: tuple[TrialRecord, ...]
    begun: int = 0

    @property
    def trial(self) -> TrialRecord:
        """The trial itself."""
        return self.records[0]

    @property
    def values(self) -> list[float]:
        """The first objective of each run."""
        return [each.values[0] for each in self.records]

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the first objective between seeds; None of one run."""
        return statistics.stdev(self.values) if len(self.records) > 1 else None

    def first(self, count: int) -> Runs:
        """Return the first runs."""
        return replace(self, records=self.records[:count])

    @property
    def mean(self) -> TrialRecord:
        """The trial with the means of its runs as values, and the weights of the run that is nearest to the mean.

        Weights that were not kept do not count. A constraint holds if it does on average.
        """
        if len(self.records) == 1:
            return self.trial
        values = tuple(map(_mean, zip(*(each.values for each in self.records), strict=True)))
        names = self.trial.violations
        violations = {name: _mean([each.violations.get(name, 0.0) for each in self.records]) for name in names}
        kept = [each for each in self.records if each.checkpoint is not None]
        nearest = min(kept, key=lambda each: abs(each.values[0] - values[0]), default=self.trial)
        return replace(self.trial, values=values, violations=violations, checkpoint=nearest.checkpoint)


def runs_of(records: Iterable[TrialRecord]) -> list[Runs]:
    """Return the runs of all trials that have a result, by number."""
    trials, replicas = list[TrialRecord](), dict[int, dict[int, TrialRecord]]()
    for each in records:
        if each.replica is not None:
            replicas.setdefault(each.replica.trial, {})[each.replica.offset] = each
        elif each.state.has_result and each.values:
            trials.append(each)
    return [_runs(each, replicas.get(each.number, {})) for each in sorted(trials, key=lambda each: each.number)]


def runs_of_trial(records: Iterable[TrialRecord], number: int) -> Runs:
    """Return the runs of a trial, which has a result."""
    return next(each for each in runs_of(records) if each.trial.number == number)


def run_with_checkpoint(records: Iterable[TrialRecord], number: int, checkpoint: Path | None) -> TrialRecord:
    """Return the run of a trial that a checkpoint belongs to; the trial itself if it is that of none."""
    runs = runs_of_trial(records, number)
    return next((each for each in runs.records if each.checkpoint == checkpoint), runs.trial)


def comparable_values(runs: Sequence[Runs]) -> tuple[list[Array], int]:
    """Return the first objective of each run of each trial, and from how many residuals their noise is known.

    Of a cross-validation, without what all trials have in common on a fold: a value is the sum of a mean, an effect of
    the fold and noise, by least squares. As long as effects and noise cannot be told apart, there are first folds only.
    """
    values = [np.array(each.values) for each in runs]
    several = [each for each in values if len(each) > 1]  # a trial with one fold tells nothing of the effects
    if not several or not are_folds(record for each in runs for record in each.records):
        return values, sum(len(each) - 1 for each in several)
    cells = [(trial, fold) for trial, each in enumerate(several) for fold in range(len(each))]
    trials, folds = (np.array(column) for column in zip(*cells, strict=True))
    design = np.zeros((len(cells), len(several) + folds.max()))
    design[np.arange(len(cells)), trials] = 1
    is_later = folds > 0
    design[np.flatnonzero(is_later), len(several) + folds[is_later] - 1] = 1
    solved, _, rank, _ = np.linalg.lstsq(design, np.concatenate(several), rcond=None)
    freedom = len(cells) - int(rank)
    if not freedom:
        return [each[:1] for each in values], 0
    effects = np.concatenate([[0.0], solved[len(several) :]])
    return [each - effects[: len(each)] for each in values], freedom


def shrunken_costs(runs: Sequence[Runs], sign: float) -> list[float]:
    """Return what each trial is expected to cost truly: the mean of its runs, shrunk towards the other trials.

    The fewer runs, the more: the best of many that were trained once is lucky. The prior is normal; its center is the
    median, its width that of the better half, as the worse trials may be worse by any amount.

    Source: Efron, Morris: Data Analysis Using Stein's Estimator and Its Generalizations (Journal of the American
    Statistical Association 70, 1975).
    """
    values, freedom = comparable_values(runs)
    costs = np.array([sign * each.mean() for each in values])
    if not freedom:
        return list(map(float, costs))
    variance = sum(float(np.sum((each - each.mean()) ** 2)) for each in values) / freedom
    noise = variance / np.array([len(each) for each in values])
    center = float(np.median(costs))
    spread = float(np.mean((costs[costs <= center] - center) ** 2))
    prior = max(spread - float(noise.mean()), _LEAST_PRIOR * spread) + 1e-300
    return list(map(float, center + prior / (prior + noise) * (costs - center)))


def pooled_variance(runs: Iterable[Runs]) -> tuple[float, int] | None:
    """Return the variance of the first objective between seeds, and from how many residuals; None if there are none.

    It is pooled over all trials that have several runs.
    """
    several = [each for each in runs if len(each.records) > 1]
    residuals = sum(len(each.records) - 1 for each in several)
    if not residuals:
        return None
    return math.fsum(
        statistics.variance(each.values) * (len(each.records) - 1) for each in several
    ) / residuals, residuals


def without_replicas(records: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    """Return the trials that repeat no other one; the same object if all are such."""
    return [each for each in records if each.replica is None] if has_replicas(records) else records


def has_replicas(records: Iterable[TrialRecord]) -> bool:
    """Return whether a trial was trained with several seeds, or on several folds."""
    return any(each.replica is not None for each in records)


def are_folds(records: Iterable[TrialRecord]) -> bool:
    """Return whether a trial was trained on several folds of a cross-validation."""
    return any(each.replica is not None and each.replica.kind == FOLD for each in records)


def _runs(trial: TrialRecord, replicas: dict[int, TrialRecord]) -> Runs:
    comparable = [each for _, each in sorted(replicas.items()) if _is_comparable(each, trial)]
    return Runs((trial, *comparable), max(replicas, default=0))


def _is_comparable(replica: TrialRecord, trial: TrialRecord) -> bool:
    """Return whether a replica was trained as far as its trial: to its end, or to a limit of each trial."""
    if not replica.values or replica.state is not trial.state:
        return False
    return replica.state is TrialState.COMPLETE or (replica.fraction or 0.0) >= (trial.fraction or 0.0)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
