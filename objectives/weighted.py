"""Add several metrics up, each with a weight; what is to be small is subtracted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hpsearch.errors import ObjectiveError
from hpsearch.search.metrics.objective import MINIMIZE, resolve_objectives
from hpsearch.system.spelling import nearest_name


def weighted(
    weights: Mapping[str, float], directions: Mapping[str, str] | None = None
) -> Callable[[Mapping[str, float]], float]:
    """Return an objective that adds metrics up, each with its weight. Pass it with ``direction="maximize"``.

    Metrics that are to be small, such as losses and errors, are subtracted.

    Args:
        weights: the names of metrics (their ``eval_`` prefix may be left out) to weights above 0, which make them
            comparable: how much one unit of the metric is worth.
        directions: ``"minimize"`` or ``"maximize"``, by metric. Default: losses and errors are to be small, all others
            large.

    Returns:
        A function of the metrics of an evaluation, in whose name the sum is written. If one of them is not there, it
        raises a KeyError; a search makes that a `MissingMetricError` with the nearest name.

    Raises:
        ObjectiveError: there are no weights, or one is not a finite number above 0; a metric occurs twice; a direction
            is none, contradicts its metric, or is of a metric without a weight.

    Examples:
        >>> objective = weighted({"accuracy": 1.0, "loss": 0.1})
        >>> objective.__name__
        'weighted(accuracy - 0.1 loss)'
        >>> objective({"eval_accuracy": 0.75, "eval_loss": 2.5})
        0.5
    """
    directions = {} if directions is None else directions
    for what, given in (("weights", weights), ("directions", directions)):
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ObjectiveError(f"weighted: {what} must be a mapping with names of metrics, but got {given!r}.")
    if not weights:
        raise ObjectiveError("weighted: weights is empty; name at least one metric.")
    names = sorted(weights)
    for name in directions:
        if name not in weights:
            raise ObjectiveError(
                f"weighted: directions has {name!r}, but weights has only {names}.{nearest_name(name, names)}"
            )
    terms = resolve_objectives(names, [directions.get(name) for name in names], has_metrics=True)
    factors = {
        str(term.metric): _checked(name, weights[name]) * (-1 if term.direction == MINIMIZE else 1)
        for name, term in zip(names, terms, strict=True)
    }

    def objective(metrics: Mapping[str, float]) -> float:
        return sum(factor * metrics[key] for key, factor in factors.items())

    objective.__name__ = f"weighted({_written(factors)})"
    return objective


def _checked(name: str, weight: Any) -> float:
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not is_number or not 0 < weight < math.inf:
        raise ObjectiveError(
            f"weighted: the weight of {name!r} must be a finite number above 0, but got {weight!r}. Metrics to be "
            "minimised are subtracted anyway; see `directions`."
        )
    return float(weight)


def _written(factors: Mapping[str, float]) -> str:
    """Return a sum as it is written on paper: ``accuracy - 0.1 loss``."""
    terms = []
    for key, factor in factors.items():
        size = "" if abs(factor) == 1 else f"{abs(factor):.15g} "
        terms.append(f"{'-' if factor < 0 else '+'} {size}{key.removeprefix('eval_')}")
    return " ".join(terms).removeprefix("+ ")
