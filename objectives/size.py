"""Millions of weights that the model has, frozen ones included."""

from __future__ import annotations

from collections.abc import Mapping


def millions_of_parameters(metrics: Mapping[str, float]) -> float:
    """Return how many weights the model has, in millions. Pass it with ``direction="minimize"``.

    A search adds `num_parameters` to the metrics of every evaluation, so ``compute_objective="num_parameters"`` is the
    same in another unit, and ``constraints=["num_parameters <= 1e6"]`` is a bound instead. Outside of a search,
    `evaluate()` does not count weights. With LoRA the frozen weights of the base count too.

    Args:
        metrics: of an evaluation in a search; read is `num_parameters`.

    Raises:
        KeyError: it is not there. A search makes that a `MissingMetricError`.

    Examples:
        >>> millions_of_parameters({"num_parameters": 109_482_240})
        109.48224
    """
    return metrics["num_parameters"] / 1e6
