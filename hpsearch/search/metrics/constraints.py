"""Constraints on the best trial: bounds on metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from ...errors import ObjectiveError
from .objective import metric_key, number_from

_BOUND = re.compile(r"\s*([\w./-]+)\s*(<=|>=)\s*([-+.\w]+)\s*")


@dataclass(frozen=True)
class Constraint:
    """A bound that the best trial must satisfy.

    Args:
        metric: the key of a metric of the evaluation (its ``eval_`` prefix may be left out), ``"num_parameters"`` for
            the number of the model's weights, or a function from all metrics to a number.
        at_most, at_least: the bound; pass exactly one of them.

    Raises:
        ObjectiveError: the metric or the bound is invalid.

    Examples:
        >>> Constraint("eval_runtime", at_most=2.0).violation({"eval_runtime": 2.5})
        0.5
        >>> Constraint.parse("accuracy >= 0.9").violation({"eval_accuracy": 0.95}) <= 0
        True
    """

    metric: Union[str, Callable[[dict[str, float]], float]]
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.metric, str) and self.metric:
            object.__setattr__(self, "metric", metric_key(self.metric))
        elif not callable(self.metric):
            raise ObjectiveError(f"A constraint takes a metric's name or a function, but got {self.metric!r}.")
        bounds = [each for each in (self.at_most, self.at_least) if each is not None]
        is_number = len(bounds) == 1 and isinstance(bounds[0], (int, float)) and not isinstance(bounds[0], bool)
        if not is_number or not math.isfinite(bounds[0]):
            raise ObjectiveError(
                f"A constraint has one bound, at_most or at_least, a finite number; got at_most={self.at_most!r}, "
                f"at_least={self.at_least!r}."
            )

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """Return the constraint from a text such as ``"num_parameters <= 1e6"`` or ``"accuracy >= 0.9"``.

        Raises:
            ObjectiveError: the text cannot be read.
        """
        match = _BOUND.fullmatch(text)
        if match is None:
            raise ObjectiveError(
                f"The constraint {text!r} cannot be read; write it with <= or >=, as 'num_parameters <= 1e6'."
            )
        metric, sign, bound = match.groups()
        try:
            number = float(bound)
        except ValueError:
            raise ObjectiveError(f"The constraint {text!r} has the bound {bound!r}, which is not a number.") from None
        return cls(metric, at_most=number) if sign == "<=" else cls(metric, at_least=number)

    @property
    def name(self) -> str:
        """The constraint in words: ``eval_runtime <= 2``."""
        metric = self.metric if isinstance(self.metric, str) else getattr(self.metric, "__name__", "constraint")
        metric = metric.replace("<lambda>", "constraint")
        return f"{metric} <= {self.at_most:.15g}" if self.at_most is not None else f"{metric} >= {self.at_least:.15g}"

    def excess(self, violation: float) -> float:
        """Return a violation as a fraction of the bound, which makes different constraints comparable."""
        bound = self.at_most if self.at_most is not None else self.at_least
        return violation / max(abs(bound or 0.0), 1e-12)

    def violation(self, metrics: Mapping[str, float]) -> float:
        """Return the amount by which the constraint is broken: at most 0 if satisfied, infinite if the metric is NaN.

        Raises:
            MissingMetricError: the evaluation does not have the metric.
        """
        value = number_from(self.metric, metrics, f"The constraint {self.name!r}")
        if math.isnan(value):
            return math.inf
        if self.at_most is not None:
            return value - self.at_most
        assert self.at_least is not None
        return self.at_least - value


def resolve_constraints(constraints: object) -> tuple[Constraint, ...]:
    """Return the constraints that a search's argument asks for: texts, `Constraint`s, or a list of these; or None.

    Raises:
        ObjectiveError: one of them is invalid, or is given twice.
    """
    given = [constraints] if isinstance(constraints, (str, Constraint)) else constraints
    if given is None:
        return ()
    if not isinstance(given, Sequence):
        raise ObjectiveError(f"constraints must be a list of texts such as 'num_parameters <= 1e6', but got {given!r}.")
    resolved: list[Constraint] = []
    for each in given:
        if not isinstance(each, (str, Constraint)):
            raise ObjectiveError(
                f"A constraint is a text such as 'num_parameters <= 1e6' or a Constraint, not {each!r}."
            )
        constraint = Constraint.parse(each) if isinstance(each, str) else each
        if any(constraint.name == other.name for other in resolved):
            raise ObjectiveError(f"The constraint {constraint.name!r} is given twice.")
        resolved.append(constraint)
    return tuple(resolved)
