"""Milliseconds that the model needs for a sample, as its evaluations measure it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hpsearch import ObjectiveError


def milliseconds_per_sample(metrics: Mapping[str, float]) -> float:
    """Return how long an evaluation took, in milliseconds per sample. Pass it with ``direction="minimize"``.

    It is the throughput of a whole evaluation, at the evaluation's batch size: loading of data and `compute_metrics`
    included. It differs between machines and with what else runs there, so compare trials that ran one at a time
    (``n_jobs=1``), and evaluate enough samples.

    Args:
        metrics: of an evaluation; read is `eval_samples_per_second`.

    Raises:
        KeyError: it is not there, as with several evaluation sets: see `milliseconds_per_sample_of`. A search makes
            that a `MissingMetricError`.

    Examples:
        >>> milliseconds_per_sample({"eval_samples_per_second": 250.0})
        4.0
    """
    return _milliseconds(metrics["eval_samples_per_second"])


def milliseconds_per_sample_of(eval_set: str) -> Callable[[Mapping[str, float]], float]:
    """Return `milliseconds_per_sample` of one of several evaluation sets. Pass it with ``direction="minimize"``.

    Args:
        eval_set: its name in the `eval_dataset` of the trainer.

    Raises:
        ObjectiveError: it is not a name.

    Examples:
        >>> milliseconds_per_sample_of("dev")({"eval_dev_samples_per_second": 250.0})
        4.0
    """
    if not isinstance(eval_set, str) or not eval_set:
        raise ObjectiveError(f"milliseconds_per_sample_of needs the name of an evaluation set, but got {eval_set!r}.")

    def objective(metrics: Mapping[str, float]) -> float:
        return _milliseconds(metrics[f"eval_{eval_set}_samples_per_second"])

    objective.__name__ = f"milliseconds_per_sample_of({eval_set})"
    return objective


def _milliseconds(samples_per_second: float) -> float:
    return 1000.0 / samples_per_second if samples_per_second > 0 else math.inf
