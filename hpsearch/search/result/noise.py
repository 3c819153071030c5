"""The standard error of a trial's value, by the number of evaluation samples and by the ends of learning curves.

It knows one training run per trial. Another seed varies the value by more, so both estimates are lower bounds of that.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..trial_record import Report, TrialRecord, TrialState

# Metrics that are the fraction of the samples for which something holds. Balanced accuracy and F1 are none.
_FRACTIONS_OF_SAMPLES = ("eval_accuracy", "eval_acc", "eval_exact_match")
# A metric may be rounded to four digits; with too many samples, these do not show that it is a fraction of them.
_ROUNDING, _LARGEST_REMAINDER = 6e-5, 0.1
_LENGTH = re.compile(r"(\d+) samples(, \w+)?")

# The least number of reports of a learning curve, and of residuals of all curves.
_FEWEST_REPORTS, _FEWEST_RESIDUALS = 4, 10
# Curves bend if more than this fraction of the residuals have the same sign; their noise is unknown then.
_ONE_SIGN = 0.8
# The median absolute deviation of the standard normal distribution.
_NORMAL_DEVIATION = statistics.NormalDist().inv_cdf(0.75)
# An estimate from few residuals is raised by this, divided by their number, as Student's t is wider: an estimate that
# is too low by chance would tell equal trials apart.
_CAUTION = 3
# Values differ clearly if they differ by more than this number of standard errors of their difference.
STANDARD_ERRORS = 2


class Noise(NamedTuple):
    """How much the value of a trial varies by chance.

    Attributes:
        curves: the standard error that the ends of the learning curves show; 0 if they show none.
        samples: the number of samples of which the value is a fraction; None if it is none, or that is unknown.
    """

    curves: float = 0.0
    samples: int | None = None

    def standard_error(self, value: float) -> float:
        """Return the standard error of a value: the larger one of what the curves and the samples give.

        The error of a fraction is that of a binomial proportion with one success and one failure added, which is not 0
        where the fraction is 0 or 1, and with which two proportions are compared well also in few samples. It is
        divided by the factor by which that addition makes differences smaller.

        Source: Agresti and Caffo, Simple and Effective Confidence Intervals for Proportions and Differences of
        Proportions Result from Adding Two Successes and Two Failures (The American Statistician 54, 2000).

        >>> round(Noise(samples=300).standard_error(0.9933), 4), Noise(0.01, samples=300).standard_error(0.9933)
        (0.0058, 0.01)
        """
        return max(self.curves, self._of_samples(value))

    def source(self, value: float) -> str:
        """Return the source of the standard error, in words.

        >>> Noise(0.01, samples=300).source(0.9933), Noise(0.001, samples=300).source(0.9933)
        ('the learning curves', '300 samples')
        """
        return f"{self.samples} samples" if self._of_samples(value) > self.curves else "the learning curves"

    def is_within(self, value: float, other: float) -> bool:
        """Return whether two values differ by at most two standard errors of their difference.

        The two errors count as independent. Trials that are evaluated on the same samples err together, so their
        difference varies less, and the answer is cautious: True for some pairs that differ.

        >>> noise = Noise(samples=300)
        >>> [noise.is_within(0.9933, other) for other in (0.99, 0.9867, 0.96)]
        [True, True, False]
        """
        error = math.hypot(self.standard_error(value), self.standard_error(other))
        return abs(value - other) <= STANDARD_ERRORS * error

    def _of_samples(self, value: float) -> float:
        if self.samples is None:
            return 0.0
        fraction = (min(max(value, 0.0), 1.0) * self.samples + 1) / (self.samples + 2)
        return math.sqrt(fraction * (1 - fraction) * (self.samples + 2)) / self.samples


def noise_of(records: Iterable[TrialRecord], samples: int | None) -> Noise | None:
    """Return the noise of the first objective of a study; None if nothing shows it.

    Args:
        records: the trials of the study; the complete ones are used.
        samples: the number of evaluation samples; None: unknown.
    """
    complete = [each for each in records if each.state is TrialState.COMPLETE]
    finite = [report for each in complete for report in each.reports if math.isfinite(report.value)]
    is_fraction = samples is not None and is_fraction_of(samples, finite)
    noise = Noise(noise_of_curves([each.reports for each in complete]) or 0.0, samples if is_fraction else None)
    return noise if noise.curves or noise.samples else None


def evaluation_samples(sessions: Iterable[Mapping[str, Mapping[str, object]]]) -> int | None:
    """Return the number of evaluation samples that the sessions of a study recorded.

    Returns:
        None for a stream, for several evaluation sets, and if the sessions differ.

    >>> evaluation_samples([{"data": {"eval_dataset": "300 samples, 0a1b2c3d4e5f"}}])
    300
    """
    described = {str(each.get("data", {}).get("eval_dataset")) for each in sessions}
    lengths = [_LENGTH.fullmatch(each) for each in described]
    return int(lengths[0].group(1)) if len(lengths) == 1 and lengths[0] is not None else None


def is_fraction_of(samples: int, reports: Sequence[Report]) -> bool:
    """Return whether the objective is the fraction of the evaluation samples for which something holds.

    It is if, in all reports, it equals a metric of that kind (`eval_accuracy`, `eval_acc` or `eval_exact_match`), and
    the metric times the number of samples is a whole number, up to rounding. An accuracy of tokens, a percentage and a
    mean over batches are none.
    """
    remainder = min(_LARGEST_REMAINDER, _ROUNDING * samples)
    values = [each.value for each in reports]
    is_known = any(all(each.metrics.get(name) == each.value for each in reports) for name in _FRACTIONS_OF_SAMPLES)
    are_counts = all(0 <= each <= 1 and abs(each * samples - round(each * samples)) <= remainder for each in values)
    return samples > 0 and bool(reports) and is_known and are_counts


def noise_of_curves(curves: Iterable[Sequence[Report]]) -> float | None:
    """Return the standard deviation of a report about its learning curve, at the end of the training run.

    Each report of the last third, and of the last four at least, is compared with the straight line between its
    neighbours. With reports at equal distances, that is half of a second difference, whose variance is 6 times that of
    a report. The spread of these residuals, of all curves together, is their median absolute deviation from their
    median: a few outliers, and a bend that the curves share, do not matter. It is raised a little, by more if there are
    few residuals.

    Returns:
        None with fewer than ten residuals, if the residuals are 0, and if more than 80% of them have the same sign,
        where the curves still bend.

    Source: Gasser, Sroka and Jennen-Steinmetz, Residual Variance and Residual Pattern in Nonlinear Regression
    (Biometrika 73, 1986).
    """
    residuals = [each for curve in curves for each in _residuals(curve)]
    nonzero = [each for each in residuals if each]
    if len(residuals) < _FEWEST_RESIDUALS or not nonzero:
        return None
    positive = sum(each > 0 for each in nonzero) / len(nonzero)
    if max(positive, 1 - positive) > _ONE_SIGN:
        return None
    middle = statistics.median(residuals)
    deviation = statistics.median(abs(each - middle) for each in residuals) / _NORMAL_DEVIATION
    return deviation * (1 + _CAUTION / len(residuals)) or None


def _residuals(curve: Sequence[Report]) -> list[float]:
    """Return how far the last reports of a curve are from the line between their neighbours, as standard deviations."""
    if len(curve) < _FEWEST_REPORTS or not all(math.isfinite(each.value) for each in curve):
        return []
    last = curve[-max(_FEWEST_REPORTS, math.ceil(len(curve) / 3)) :]
    found = []
    for before, at, after in zip(last, last[1:], last[2:], strict=False):
        if before.resource < at.resource < after.resource:
            weight = (after.resource - at.resource) / (after.resource - before.resource)
            line = weight * before.value + (1 - weight) * after.value
            found.append((at.value - line) / math.sqrt(1 + weight**2 + (1 - weight) ** 2))
    return found
