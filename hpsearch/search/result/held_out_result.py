"""The result of a search on data that no part of the search has seen, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..metrics.objective import measures_model
from ..store.held_out_file import HeldOutEvaluation

PREFIX = "test"


class HeldOutResult(NamedTuple):
    """The metrics on the test set of a study.

    Attributes:
        best: the last evaluation of a best trial.
        defaults: the evaluation of a model that was trained with the defaults, on the same data; None if there is none.
        times: the number of evaluations of best trials on the same data: the larger it is, the more the choices of the
            user may depend on this data.
    """

    best: HeldOutEvaluation
    defaults: HeldOutEvaluation | None
    times: int

    def describe(self, metric: str) -> str:
        """Describe the result, by one metric if there is one of this name, else by all of them.

        >>> best = HeldOutEvaluation(3, (0.99,), {"test_accuracy": 0.97}, "300 samples", "", 0.0)
        >>> HeldOutResult(best, None, 1).describe("eval_accuracy")
        'On the test set: accuracy 0.97 of trial 3.'
        >>> HeldOutResult(best, best, 2).describe("eval_accuracy")
        'On the test set: accuracy 0.97 of trial 3; accuracy 0.97 of the defaults. It was evaluated 2 times.'
        """
        shown = [f"{_in_words(self.best.metrics, metric)} of trial {self.best.trial}"]
        if self.defaults is not None:
            shown.append(f"{_in_words(self.defaults.metrics, metric)} of the defaults")
        times = f" It was evaluated {self.times} times." if self.times > 1 else ""
        return f"On the test set: {'; '.join(shown)}.{times}"


def held_out_result(evaluations: Sequence[HeldOutEvaluation]) -> HeldOutResult | None:
    """Return the result on the test set that was evaluated last; None if no best trial was evaluated."""
    of_trials = [each for each in evaluations if each.trial is not None]
    if not of_trials:
        return None
    best = of_trials[-1]
    defaults = [each for each in evaluations if each.trial is None and each.data == best.data]
    return HeldOutResult(best, defaults[-1] if defaults else None, sum(each.data == best.data for each in of_trials))


def _in_words(metrics: Mapping[str, float], metric: str) -> str:
    wanted = f"{PREFIX}_{metric.removeprefix('eval_')}"
    names = [wanted] if wanted in metrics else [name for name in metrics if measures_model(name)]
    return ", ".join(f"{name.removeprefix(f'{PREFIX}_')} {metrics[name]:.4g}" for name in names) or "no metric"
