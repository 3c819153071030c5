"""A metric less a price for what the model costs: seconds, weights, or doublings of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hpsearch import ObjectiveError
from hpsearch.search.metrics.objective import MINIMIZE, metric_key, resolve_objectives

Objective = Callable[[Mapping[str, float]], float]


def priced(metric: str, price: float, per: str = "runtime", direction: str | None = None) -> Objective:
    """Return an objective: a metric made worse by a price for each unit of a cost. Pass it with the metric's direction.

    Args:
        metric: its name; the ``eval_`` prefix may be left out.
        price: how much of the metric one unit of the cost is worth; above 0.
        per: the metric that is the cost. ``"runtime"``, the default: seconds that the evaluation took, which differ
            between machines and with what else runs there; ``"num_parameters"``: weights of the model, known in a
            search.
        direction: of the metric. Default: losses and errors are minimised, so the cost is added to them; other metrics
            are maximised, so it is subtracted.

    Returns:
        A function of the metrics of an evaluation, in whose name the price is written. If a metric is not there, it
        raises a KeyError; a search makes that a `MissingMetricError` with the nearest name.

    Raises:
        ObjectiveError: the price is not a finite number above 0, the direction is none, or contradicts the metric; or
            the metric is its own cost.

    Examples:
        >>> objective = priced("accuracy", price=0.01)
        >>> objective.__name__
        'priced(accuracy - 0.01 runtime)'
        >>> objective({"eval_accuracy": 0.75, "eval_runtime": 25.0})
        0.5
        >>> priced("loss", price=1e-6, per="num_parameters")({"eval_loss": 0.5, "num_parameters": 250_000})
        0.75
    """
    return _objective("priced", metric, price, per, direction, float, "{}")


def priced_per_doubling(
    metric: str, price: float, of: str = "num_parameters", direction: str | None = None
) -> Objective:
    """Return an objective: a metric made worse by a price for each doubling of a cost. Pass it with its direction.

    So a search over sizes needs no unit: with a price of 0.01, twice the weights must bring one point of accuracy.

    Args:
        metric: its name; the ``eval_`` prefix may be left out.
        price: how much of the metric a doubling of the cost is worth; above 0.
        of: the metric that is the cost, above 0. ``"num_parameters"``, the default: weights of the model, known in
            a search; ``"runtime"``: seconds that the evaluation took.
        direction: of the metric; as in `priced`.

    Returns:
        A function as that of `priced`. A cost that is not above 0 makes the value NaN, so that report does not count.

    Raises:
        ObjectiveError: as in `priced`.

    Examples:
        >>> objective = priced_per_doubling("accuracy", price=0.01)
        >>> objective.__name__
        'priced_per_doubling(accuracy - 0.01 log2 num_parameters)'
        >>> small = objective({"eval_accuracy": 0.90, "num_parameters": 1_000})
        >>> round(objective({"eval_accuracy": 0.91, "num_parameters": 2_000}) - small, 9)
        0.0
    """
    return _objective("priced_per_doubling", metric, price, of, direction, _doublings, "log2 {}")


def _objective(
    kind: str,
    metric: str,
    price: float,
    cost: str,
    direction: str | None,
    amount: Callable[[float], float],
    shown: str,
) -> Objective:
    is_number = isinstance(price, (int, float)) and not isinstance(price, bool)
    if not is_number or not 0 < price < math.inf:
        raise ObjectiveError(f"{kind}: the price must be a finite number above 0, but got {price!r}.")
    for name in (metric, cost):
        if not isinstance(name, str) or not name:
            raise ObjectiveError(f"{kind}: a metric must be named by text, but got {name!r}.")
    (resolved,) = resolve_objectives(metric, direction, has_metrics=True)
    key, cost_key = metric_key(metric), metric_key(cost)
    if key == cost_key:
        raise ObjectiveError(f"{kind}: {metric!r} is its own cost; name another metric.")
    factor = price if resolved.direction == MINIMIZE else -price

    def objective(metrics: Mapping[str, float]) -> float:
        return metrics[key] + factor * amount(metrics[cost_key])

    sign = "+" if factor > 0 else "-"
    written = shown.format(cost_key.removeprefix("eval_"))
    objective.__name__ = f"{kind}({key.removeprefix('eval_')} {sign} {price:.15g} {written})"
    return objective


def _doublings(cost: float) -> float:
    return math.log2(cost) if cost > 0 else math.nan
