"""How a `model_init` is called: with nothing, or with the trial."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .errors import InvalidInputError


def takes_trial(model_init: Callable[..., Any]) -> bool:
    """True if `model_init` has one argument without a default, one called trial, or a single one that is None."""
    names = _positional(model_init)
    if "trial" in names or len(_positional(model_init, required=True)) == 1:
        return True
    return len(names) == 1 and inspect.signature(model_init).parameters[names[0]].default is None


def check_model_init(model_init: Callable[..., Any]) -> None:
    """Check that `model_init` takes no argument, or one: the trial.

    Raises:
        InvalidInputError: it takes more.
    """
    names = _positional(model_init, required=True)
    if len(names) > 1:
        raise InvalidInputError(
            f"model_init should have 0 or 1 argument, the trial, but it has {len(names)}: {', '.join(names)}."
        )


def _positional(function: Callable[..., Any], required: bool = False) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # some of Python's own have none
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name
        for name, each in parameters.items()
        if each.kind in kinds and not (required and each.default is not inspect.Parameter.empty)
    ]
