"""What docs/feature-table.md says of hyperparameter search and no other test shows, row by row."""

from __future__ import annotations

import importlib.machinery
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import transformers

from hpsearch import Float, MissingPackageError, Trainer
from hpsearch.backends import get_backend
from tests.support.rows import Look
from tests.support.small_trainer import CountsModels, small_trainer


@pytest.mark.feature(1)
def test_a_search_takes_the_documented_arguments_in_their_order_and_runs_twenty_trials_by_default() -> None:
    parameters = inspect.signature(Trainer.hyperparameter_search).parameters
    documented = ["hp_space", "compute_objective", "n_trials", "direction", "backend", "hp_name"]
    assert list(parameters)[1:7] == documented
    assert parameters["n_trials"].default == 20
    theirs = inspect.signature(transformers.Trainer.hyperparameter_search).parameters
    assert list(theirs)[1:7] == documented


@pytest.mark.feature(6)
def test_without_the_package_of_a_backend_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.machinery.PathFinder.find_spec
    hidden = staticmethod(lambda name, *rest: None if name == "optuna" else found(name, *rest))
    monkeypatch.delitem(sys.modules, "optuna")
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", hidden)
    for name in (None, "optuna"):
        with pytest.raises(MissingPackageError, match="pip install optuna"):
            get_backend(name, {})


@pytest.mark.feature(7, 16)
def test_the_state_of_a_trial_tells_its_name_and_parameters_and_is_saved_with_every_checkpoint(tmp_path: Path) -> None:
    states: list[tuple[Any, ...]] = []

    def note(state: Any, **_: Any) -> None:
        states.append((state.is_hyper_param_search, state.trial_name, state.trial_params))

    trainer = small_trainer(tmp_path, Look("on_step_end", note), save_strategy="epoch")
    best = trainer.hyperparameter_search(
        {"learning_rate": Float(1e-3, 1e-1)},
        n_trials=2,
        hp_name=lambda trial: f"rate-{trial.number}",
        keep_checkpoints=None,
        progress=False,
    )
    first, second = best.run_summary.records
    assert states[0] == (True, "rate-0", first.params)
    assert states[-1] == (True, "rate-1", second.params)
    for record in (first, second):
        assert record.checkpoint.parent == tmp_path / "study" / record.name
        saved = json.loads((record.checkpoint / "trainer_state.json").read_text())
        assert saved["is_hyper_param_search"] is True
        assert (saved["trial_name"], saved["trial_params"]) == (record.name, record.params)
    trainer.train()
    assert states[-1] == (False, None, None)


@pytest.mark.feature(14)
def test_a_trial_of_optuna_is_trained_with_its_values(tmp_path: Path) -> None:
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1)
    trainer = small_trainer(tmp_path, model_init=(init := CountsModels()))
    trainer.train(trial=trial)
    assert trainer.optimizer.param_groups[0]["initial_lr"] == rate
    assert trainer.state.trial_params == {"learning_rate": rate}
    assert init.trials == [trial]
