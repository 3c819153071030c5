"""Pruners of Optuna that prune where a test wants it."""

from __future__ import annotations

import optuna


class PrunesAt(optuna.pruners.BasePruner):
    """Prunes every trial that has made so many reports."""

    def __init__(self, reports: int) -> None:
        self._reports = reports

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return len(trial.intermediate_values) >= self._reports
