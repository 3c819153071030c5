"""The default sampler in a study of Optuna alone: what a search tells the sampler is made of Optuna's own trials."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as EngineState

from hpsearch import Report, TrialRecord, TrialState
from hpsearch.ledger.curve_sampler import CurveSampler
from hpsearch.search.metrics.objective import resolve_objectives

_STATES = {
    EngineState.RUNNING: TrialState.RUNNING,
    EngineState.COMPLETE: TrialState.COMPLETE,
    EngineState.PRUNED: TrialState.PRUNED,
    EngineState.FAIL: TrialState.FAILED,
}


class CurvesFromOptuna(CurveSampler):
    """A `CurveSampler` that reads the trials of the study before each choice, each with one report at its end.

    Args:
        first: the number of trials drawn at random; 1 lets the model choose from the second trial on.
        seed: of the random draws; with 1, the model makes the last of eleven choices, whose types Optuna's tests check.

    Attributes:
        chosen_by_model: the number of times that the model has chosen.
    """

    def __init__(self, first: int = 1, seed: int = 1) -> None:
        [objective] = resolve_objectives("loss", "minimize", has_metrics=False)
        super().__init__(seed, objective, first)
        self.chosen_by_model = 0

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Choose values as in a search that has recorded the trials of the study.

        The sampler leaves one choice of ten to `sample_independent`, which `optuna.Trial` would ask then.
        """
        self.trials = [_record(each) for each in study.get_trials(deepcopy=False) if each.state in _STATES]
        chosen = super().sample_relative(study, trial, search_space)
        self.chosen_by_model += bool(chosen)
        return chosen or {
            name: self.sample_independent(study, trial, name, each) for name, each in search_space.items()
        }


def _record(trial: FrozenTrial) -> TrialRecord:
    """Return a trial of Optuna as a search records it."""
    value = trial.value if trial.state is EngineState.COMPLETE else None
    reports = () if value is None else (Report((value,), 1.0, 1, 1.0, {}, horizon=1.0),)
    return TrialRecord(trial.number, f"run-{trial.number}", _STATES[trial.state], trial.params, reports=reports)
