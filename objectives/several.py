"""Lists of objectives, with their directions: a metric against latency, size or both."""

from __future__ import annotations

from typing import Any

from hpsearch import ObjectiveError
from hpsearch.search.metrics.objective import resolve_objectives

from .latency import milliseconds_per_sample


def metric_and_latency(metric: str, direction: str | None = None) -> dict[str, Any]:
    """Return the arguments of a search for models that are good or fast; its best runs are a Pareto front.

    Trials pause at rungs by both objectives: ``pruning_metric=metric`` would prune those first that are fast and less
    good.

    Args:
        metric: its name; the ``eval_`` prefix may be left out.
        direction: of the metric. Default: losses and errors are minimised, other metrics maximised.

    Returns:
        `compute_objective` and `direction`, to be passed to a search with ``**``.

    Raises:
        ObjectiveError: the metric is not named by text, or the direction is none, or contradicts it.

    Examples:
        >>> several = metric_and_latency("accuracy")
        >>> [getattr(each, "__name__", each) for each in several["compute_objective"]], several["direction"]
        (['accuracy', 'milliseconds_per_sample'], ['maximize', 'minimize'])
    """
    return _several(metric, direction, milliseconds_per_sample)


def metric_and_size(metric: str, direction: str | None = None) -> dict[str, Any]:
    """Return the arguments of a search for models that are good or small; its best runs are a Pareto front.

    Args:
        metric, direction: as in `metric_and_latency`.

    Returns:
        `compute_objective` and `direction`, to be passed to a search with ``**``.

    Raises:
        ObjectiveError: as in `metric_and_latency`.

    Examples:
        >>> several = metric_and_size("loss")
        >>> several["compute_objective"], several["direction"]
        (['loss', 'num_parameters'], ['minimize', 'minimize'])
    """
    return _several(metric, direction, "num_parameters")


def metric_latency_and_size(metric: str, direction: str | None = None) -> dict[str, Any]:
    """Return the arguments of a search for models that are good, fast or small; its best runs are a Pareto front.

    Args:
        metric, direction: as in `metric_and_latency`.

    Returns:
        `compute_objective` and `direction`, to be passed to a search with ``**``.

    Raises:
        ObjectiveError: as in `metric_and_latency`.

    Examples:
        >>> metric_latency_and_size("f1")["direction"]
        ['maximize', 'minimize', 'minimize']
    """
    return _several(metric, direction, milliseconds_per_sample, "num_parameters")


def _several(metric: str, direction: str | None, *costs: Any) -> dict[str, Any]:
    if not isinstance(metric, str) or not metric:
        raise ObjectiveError(f"The metric must be named by text, but got {metric!r}.")
    objectives = [metric, *costs]
    resolved = resolve_objectives(objectives, [direction, *("minimize" for _ in costs)], has_metrics=True)
    return {"compute_objective": objectives, "direction": [each.direction for each in resolved]}
