"""A search in many sessions makes the choices of one in a single session, with any seeded sampler of Optuna."""

from __future__ import annotations

import importlib.util
import json
import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch

from hpsearch import BestRun, Categorical, Float, Int, SearchInterrupted
from hpsearch.ledger.sampling import RepeatableSampling
from tests.support.searching import AtStep, Events, interrupt, states
from tests.support.small_trainer import TwoLayers, points, small_trainer

MIXED = {
    "learning_rate": Float(1e-4, 1e-1, log=True),
    "weight_decay": Float(0.0, 0.3),
    "max_grad_norm": Float(0.5, 2.0, step=0.25),
    "seed": Int(1, 50),
    "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.9)}}),
}
NUMBERS = {"learning_rate": Float(1e-4, 1e-1, log=True), "weight_decay": Float(0.0, 0.3)}
FINITE = {"per_device_train_batch_size": Categorical([1, 2, 4]), "warmup_steps": Int(0, 3)}
GRID = {"per_device_train_batch_size": [1, 2, 4], "warmup_steps": [0, 1, 2, 3]}
SAMPLERS: dict[str, tuple[Callable[[], optuna.samplers.BaseSampler | None], dict[str, Any]]] = {
    "default": (lambda: None, MIXED),
    "tpe": (lambda: optuna.samplers.TPESampler(seed=3, n_startup_trials=4), MIXED),
    "tpe_multivariate": (lambda: optuna.samplers.TPESampler(seed=3, n_startup_trials=4, multivariate=True), NUMBERS),
    "tpe_group": (
        lambda: optuna.samplers.TPESampler(seed=3, n_startup_trials=4, multivariate=True, group=True),
        MIXED,
    ),
    "random": (lambda: optuna.samplers.RandomSampler(seed=3), MIXED),
    "grid": (lambda: optuna.samplers.GridSampler(GRID, seed=3), FINITE),
    "brute_force": (lambda: optuna.samplers.BruteForceSampler(seed=3), FINITE),
    "nsga_ii": (lambda: optuna.samplers.NSGAIISampler(population_size=4, seed=3), MIXED),
    "qmc": (lambda: optuna.samplers.QMCSampler(seed=3), NUMBERS),
    "qmc_scrambled": (lambda: optuna.samplers.QMCSampler(seed=3, scramble=True, qmc_type="halton"), NUMBERS),
    "cma_es": (lambda: optuna.samplers.CmaEsSampler(seed=3, n_startup_trials=2), NUMBERS),
    "partly_fixed": (
        lambda: optuna.samplers.PartialFixedSampler({"weight_decay": 0.1}, optuna.samplers.RandomSampler(seed=3)),
        NUMBERS,
    ),
}


def search(folder: Path, name: str, n_trials: int, callbacks: Sequence[Any] = (), **options: Any) -> BestRun:
    """One update a trial, with the sampler `name`, made anew."""
    make, space = SAMPLERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental, or with independent parameters
        sampler = make()
        settings = {"progress": False, "pruner": "none", "storage": "journal", **options}
        data = {"train_dataset": points(2, seed=0), "eval_dataset": points(8, seed=1)}
        trainer = small_trainer(folder, *callbacks, num_train_epochs=1, **data)
        best: BestRun = trainer.hyperparameter_search(space, "loss", n_trials=n_trials, sampler=sampler, **settings)
    return best


def choices(best: BestRun) -> list[dict[str, Any]]:
    return [record.params for record in best.run_summary.records]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_sessions_choose_what_a_single_session_chooses(tmp_path: Path, name: str) -> None:
    if name == "cma_es" and importlib.util.find_spec("cmaes") is None:
        pytest.skip("the package cmaes is not installed")
    storage = None if name == "default" else "journal"
    whole = choices(search(tmp_path / "whole", name, 8, storage=storage))
    for n_trials in (1, 5, 6, 8):
        random.seed(n_trials)
        np.random.seed(n_trials)
        torch.manual_seed(n_trials)
        best = search(tmp_path / "parts", name, n_trials, storage=storage)
    assert choices(best) == whole
    assert len({json.dumps(params) for params in whole}) >= (4 if name == "nsga_ii" else 8)


@pytest.mark.parametrize("name", ["default", "tpe_multivariate", "random", "grid", "brute_force", "nsga_ii", "qmc"])
def test_interruptions_change_no_choice(tmp_path: Path, name: str) -> None:
    whole = choices(search(tmp_path / "whole", name, 6))
    for run in (2, 0, 3):
        with pytest.raises(SearchInterrupted):
            search(tmp_path / "parts", name, 6, [AtStep(interrupt, run=run, step=1)])
    best = search(tmp_path / "parts", name, 6)
    assert states(best) == ["complete"] * 6
    assert choices(best) == whole


@pytest.mark.parametrize("name", ["default", "random"])
def test_a_trial_interrupted_between_two_of_its_choices_makes_the_same(tmp_path: Path, name: str) -> None:
    def space(trial: Any) -> None:
        for place in range(4):
            if trial.number == 1 and place == stop["at"]:
                raise KeyboardInterrupt
            trial.suggest_float(f"data.{place}", 0.0, 1.0)
        trial.params.read.update(f"data.{place}" for place in range(4))

    def model_init(trial: Any) -> Any:
        return TwoLayers(2 + sum(trial.params[f"data.{place}"] > 0.5 for place in range(4)))

    stop = {"at": -1}
    found = {}
    for kind in ("whole", "parts"):
        for at in (2, 0, 3) if kind == "parts" else ():
            stop["at"] = at
            with pytest.raises(SearchInterrupted):
                _search_space(tmp_path / kind, space, model_init, SAMPLERS[name][0]())
        stop["at"] = -1
        found[kind] = choices(_search_space(tmp_path / kind, space, model_init, SAMPLERS[name][0]()))
    assert found["parts"] == found["whole"]
    assert len(set(found["whole"][1].values())) == 4


def _search_space(folder: Path, space: Any, model_init: Any, sampler: Any) -> BestRun:
    best: BestRun = small_trainer(folder, num_train_epochs=1, model_init=model_init).hyperparameter_search(
        space, "loss", n_trials=3, sampler=sampler, progress=False, pruner="none", storage="journal"
    )
    return best


@pytest.mark.parametrize("name", ["grid", "brute_force"])
def test_a_sampler_that_has_tried_everything_ends_the_search_and_the_same_command_ends_at_once(
    tmp_path: Path, name: str
) -> None:
    search(tmp_path, name, 5)
    best = search(tmp_path, name, 40)
    tried = choices(best)
    assert len(tried) == 12
    assert len({json.dumps(params) for params in tried}) == 12
    for _ in range(2):
        events = Events()
        again = search(tmp_path, name, 40, progress=events)
        assert not events.begun
        assert choices(again) == tried
        assert again.run_id == best.run_id


def test_another_sampler_goes_on_where_one_has_tried_everything(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small: dict[str, Any] = {"per_device_train_batch_size": Categorical([1, 2, 4, 8])}
        trainer = small_trainer(tmp_path, num_train_epochs=1)
        options: dict[str, Any] = {"progress": False, "pruner": "none", "storage": "journal"}
        grid = optuna.samplers.GridSampler({"per_device_train_batch_size": [1, 2]})
        best = trainer.hyperparameter_search(small, "loss", n_trials=9, sampler=grid, **options)
        assert len(best.run_summary.records) == 2
        best = trainer.hyperparameter_search(small, "loss", n_trials=4, **options)
        assert len(best.run_summary.records) == 4


def test_other_seeds_choose_something_else_and_no_seed_too(tmp_path: Path) -> None:
    def first(sampler: optuna.samplers.BaseSampler, name: str) -> float:
        best = small_trainer(tmp_path / name, num_train_epochs=1).hyperparameter_search(
            NUMBERS, "loss", n_trials=1, sampler=sampler, progress=False, storage="journal"
        )
        return float(best.run_summary.records[0].params["learning_rate"])

    seeded = [first(optuna.samplers.RandomSampler(seed=seed), f"seed {seed}") for seed in (3, 4)]
    unseeded = [first(optuna.samplers.RandomSampler(), f"none {place}") for place in (0, 1)]
    assert len({*seeded, *unseeded}) == 4
    assert first(optuna.samplers.RandomSampler(seed=3), "seed 3 again") == seeded[0]


def test_the_seed_of_the_search_is_that_of_the_default_sampler(tmp_path: Path) -> None:
    found = [choices(search(tmp_path / str(seed), "default", 1, seed=seed)) for seed in (1, 2)]
    assert found[0] != found[1]
    assert choices(search(tmp_path / "again", "default", 1, seed=1)) == found[0]


def test_parameters_that_are_asked_for_in_another_order_get_the_same_values(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        names = list(NUMBERS)
        return {name: trial.suggest(name, NUMBERS[name]) for name in (reversed(names) if turned else names)}

    found = []
    for turned in (False, True):
        best = small_trainer(tmp_path / str(turned), num_train_epochs=1).hyperparameter_search(
            space, "loss", n_trials=3, progress=False, storage="journal"
        )
        found.append([dict(sorted(params.items())) for params in choices(best)])
    assert found[0] == found[1]


def test_every_random_stream_inside_a_sampler_is_seeded() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inner = optuna.samplers.TPESampler(seed=1)
        sampler = optuna.samplers.PartialFixedSampler({}, inner)
    sampling = RepeatableSampling(sampler)

    def drawn() -> list[float]:
        return [inner._rng.rng.rand(), inner._random_sampler._rng.rng.rand()]

    sampling.seed_for(3, "x")
    first = drawn()
    sampling.seed_for(3, "y")
    assert drawn() != first
    sampling.seed_for(4, "x")
    assert drawn() != first
    sampling.seed_for(3, "x")
    assert drawn() == first
    assert first[0] != first[1]


def test_every_attempt_at_a_configuration_draws_others_and_the_same_when_it_is_repeated() -> None:
    sampler = optuna.samplers.RandomSampler(seed=0)
    sampling = RepeatableSampling(sampler)

    def drawn(attempt: int) -> float:
        sampling.seed_for(3, "x", attempt)
        return float(sampler._rng.rng.rand())

    first = [drawn(attempt) for attempt in range(10)]
    assert len(set(first)) == 10
    assert [drawn(attempt) for attempt in range(10)] == first
