"""A metric that has another name than in 0.8.0: a study keeps the name that it was begun with; both can be given."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..store.code_uses import codes_of
from .added_metrics import ADDED, NUM_PARAMETERS, OLDER_NAME
from .constraints import Constraint
from .objective import Objective

_Named = TypeVar("_Named", Objective, Constraint)
_OLDER_WORD = re.compile(rf"\b{OLDER_NAME}\b")


def present_name(text: str) -> str:
    """Return the name of an objective or a constraint with the present name of the metric.

    >>> present_name("parameters <= 1000000"), present_name("num_parameters <= 1000000")
    ('num_parameters <= 1000000', 'num_parameters <= 1000000')
    """
    return _OLDER_WORD.sub(NUM_PARAMETERS, text)


def notice_of_older_name(used: Sequence[Objective | Constraint | None]) -> list[str]:
    """Return notices about objectives and constraints that use the metric's name of 0.8.0; empty if none does.

    Functions of the metrics name it where the text is in their code.
    """
    if any(each is not None and _names_it(each.metric) for each in used):
        return [
            f"the metric {OLDER_NAME!r} of the search is now called {NUM_PARAMETERS!r} (both names can be used); "
            f"if compute_metrics returns {OLDER_NAME!r} too, that metric is used"
        ]
    return []


def _names_it(metric: str | Callable[[dict[str, float]], float]) -> bool:
    if isinstance(metric, str):
        return metric == OLDER_NAME
    function = inspect.unwrap(getattr(metric, "func", metric))  # of a partial one
    code = getattr(function if hasattr(function, "__code__") else type(function).__call__, "__code__", None)
    return code is not None and any(OLDER_NAME in each.co_consts for each in codes_of(code))


def named_as_recorded(given: Sequence[_Named], recorded: str | Sequence[str] | None) -> tuple[_Named, ...]:
    """Return objectives or constraints with the names that a study on disk records for the same ones.

    Args:
        given: by their present or older names.
        recorded: the names in ``study.json``: one, a list of them, or None.
    """
    names = [recorded] if isinstance(recorded, str) else recorded or []
    by_present_name = {present_name(each): each for each in names if isinstance(each, str)}
    return tuple(_renamed(each, by_present_name) for each in given)


def _renamed(given: _Named, recorded: Mapping[str, str]) -> _Named:
    own = given.identity if isinstance(given, Objective) else given.name
    name = recorded.get(present_name(own), own)
    if name == own:
        return given
    if isinstance(given, Constraint):
        other = next(each for each in ADDED if each != given.metric)
        return replace(given, metric=other) if isinstance(given.metric, str) else given
    name = name.removesuffix("(metrics)")
    metric = name if isinstance(given.metric, str) else given.metric
    return replace(given, metric=metric, name=name, description=given.description.replace(given.name, name))
