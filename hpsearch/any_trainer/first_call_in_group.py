"""The first call of a function where each trial has several processes: all processes of a group call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import transformers

from ..backends.base import Backend
from ..training.randomness import set_seed
from ..trial.searchable import Searchable
from .first_call import FirstTrial
from .function_trial import as_number


class MadeTrainer:
    """In place of the trainer that a function has made in another process."""


@dataclass(frozen=True)
class _Shown:
    """What a first call has shown in process 0.

    Attributes:
        trial: the attributes of its trial.
        returned: by the function; nothing if it reported.
        report: the value and the step of its first report.
    """

    trial: Mapping[str, object]
    returned: object
    report: tuple[object, object] | None


def in_group(backend: Backend, recipe: Searchable, function: Callable[[Any], object]) -> Callable[[FirstTrial], object]:
    """Return a function that calls `function` in a group with a first trial, and does with that trial what it did."""

    def call(trial: FirstTrial) -> object:
        shown = backend.call_in_group(recipe, partial(_show, function, trial))
        vars(trial).update(shown.trial)
        if shown.report is not None:
            trial.report(*shown.report)
        return shown.returned

    return call


def _show(function: Callable[[Any], object], trial: FirstTrial) -> _Shown:
    """Call a function in one of the processes."""
    set_seed(trial.seed)
    returned: object = None
    try:
        returned = function(trial)
    except BaseException:
        if trial.first_report is None:
            raise
    first, trial.first_report = trial.first_report, None
    is_trainer = isinstance(returned, transformers.Trainer) or hasattr(returned, "hyperparameter_search")
    report = None if first is None else (_sendable(first.value), _sendable(first.step))
    return _Shown(vars(trial), MadeTrainer() if is_trainer else _sendable(returned), report)


def _sendable(value: object) -> object:
    """Return numbers without what they refer to, such as the graph of a tensor, or the GPU that it is on."""
    if isinstance(value, Mapping):
        return {name: _sendable(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(_sendable, value))
    number = as_number(value)
    return value if number is None or isinstance(value, int) else number
