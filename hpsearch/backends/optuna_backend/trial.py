"""An Optuna trial behind our Trial interface."""

from __future__ import annotations

from typing import Any

import optuna

from ...search.parameters import Categorical, Float, Parameter
from ...search.trial import Trial


class OptunaTrial(Trial):
    """A trial whose values Optuna suggests.

    Attributes:
        engine_trial: the `optuna.Trial`, for what only Optuna has.
    """

    def __init__(self, engine_trial: optuna.Trial) -> None:
        super().__init__(engine_trial.number)
        self.engine_trial = engine_trial

    def report(self, value: float, resource: int) -> None:
        """Report the objective after `resource` units of data."""
        self.engine_trial.report(value, resource)

    def should_prune(self) -> bool:
        """Ask the pruner."""
        return self.engine_trial.should_prune()

    def _choose(self, name: str, parameter: Parameter) -> Any:
        trial = self.engine_trial
        if isinstance(parameter, Categorical):
            return trial.suggest_categorical(name, parameter.choices)
        if isinstance(parameter, Float):
            return trial.suggest_float(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
        return trial.suggest_int(name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)
