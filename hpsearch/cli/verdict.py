"""Which of two results is better, and whether their noise explains the difference."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..search.metrics.objective import Objective
from ..search.result.noise import STANDARD_ERRORS, Noise
from ..search.wording import format_value


def verdict(names: Sequence[str], values: Sequence[float], objective: Objective, noises: Sequence[Noise | None]) -> str:
    """Return which of two results is better and by how much, and whether that is within the noise, if it is known.

    Args:
        names: of the two.
        values: of the objective.
        objective: that both have.
        noises: of each value; None: unknown.

    >>> accuracy = Objective(lambda metrics: 0.0, "maximize", "maximize accuracy", "eval_accuracy")
    >>> verdict(["a", "b"], [0.95, 0.9], accuracy, [Noise(0.01)] * 2)
    'a is better by 0.05, beyond the noise (standard error of the difference 0.014)'
    >>> verdict(["a", "b"], [0.95, 0.96], accuracy, [Noise(0.01)] * 2)
    'b is better by 0.01, within the noise (standard error of the difference 0.014)'
    >>> verdict(["a", "b"], [0.95, 0.96], accuracy, [None, None]), verdict(["a", "b"], [0.9, 0.9], accuracy, [None] * 2)
    ('b is better by 0.01', 'both have 0.9')
    """
    first, second = values
    if first == second:
        return f"both have {format_value(first)}"
    better = names[0] if objective.is_better(first, second) else names[1]
    told = f"{better} is better by {format_value(abs(first - second))}"
    errors = [noise.standard_error(each) for noise, each in zip(noises, values, strict=True) if noise is not None]
    if len(errors) < len(values):
        return told
    error = math.hypot(*errors)
    place = "within" if abs(first - second) <= STANDARD_ERRORS * error else "beyond"
    return f"{told}, {place} the noise (standard error of the difference {error:.2g})"
