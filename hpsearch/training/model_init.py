"""Calls of `model_init`: without arguments, or with the trial."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

from ..errors import InvalidInputError, described_value


def takes_trial(model_init: Callable[..., object]) -> bool:
    """True if `model_init` has one argument without a default, one called trial, or a single one that is None."""
    names = _positional(model_init)
    if "trial" in names or len(_positional(model_init, required=True)) == 1:
        return True
    return len(names) == 1 and inspect.signature(model_init).parameters[names[0]].default is None


def check_model_init(model_init: Callable[..., object]) -> None:
    """Check that `model_init` is a function that takes no argument, or one: the trial.

    Raises:
        InvalidInputError: it is a model, or nothing that can be called, or takes more.
    """
    if _is_model(model_init):
        kind = type(model_init).__name__
        raise InvalidInputError(
            f"model_init must be a function that returns a new model each time, but got a model, of class {kind}: "
            f"write model_init=lambda: {kind}(...); or pass it as model=..., to train it without a search."
        )
    if not callable(model_init):
        raise InvalidInputError(
            f"model_init must be a function that returns a new model, but got {described_value(model_init)}."
        )
    names = _positional(model_init, required=True)
    if len(names) > 1:
        raise InvalidInputError(
            f"model_init should have 0 or 1 argument, the trial, but it has {len(names)}: {', '.join(names)}."
        )


def _is_model(value: object) -> bool:
    """Return whether a value is a model; there is none before torch is imported, which takes seconds."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _positional(function: Callable[..., object], required: bool = False) -> list[str]:
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
