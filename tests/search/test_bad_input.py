"""What cannot be right is refused before the first trial: with the value received, and what is allowed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.distributions import FloatDistribution
from transformers import EarlyStoppingCallback

from hpsearch import (
    ArgumentError,
    BestRun,
    Categorical,
    Float,
    Int,
    InvalidInputError,
    MissingPackageError,
    ObjectiveError,
    SearchSpace,
    SpaceError,
    StudyError,
    TrainingArguments,
)
from hpsearch.ledger.quiet import quiet_optuna
from hpsearch.search.store.study_folder import make_place
from tests.support.models import accuracy
from tests.support.small_trainer import CountsModels, TwoLayers, points, small_trainer

GOOD_SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True)}


def refused(kind: type[Exception], folder: Path, make_space: Any = None, **changes: Any) -> str:
    """Search, expect an error of this kind, assert that nothing ran and nothing was written; return its message."""
    model_init = changes.pop("model_init", None) or CountsModels()
    of_trainer = {
        name: changes.pop(name)
        for name in ("eval_dataset", "train_dataset", "eval_strategy", "metric_for_best_model")
        if name in changes
    }
    trainer = small_trainer(folder, *changes.pop("callbacks", []), model_init=model_init, **of_trainer)
    with pytest.raises(kind) as caught:  # noqa: PT012 - making the space may be what is refused
        space = make_space() if make_space is not None else GOOD_SPACE
        trainer.hyperparameter_search(space, **{"n_trials": 2, "progress": False, **changes})
    assert type(caught.value) is kind
    assert getattr(model_init, "trials", []) == []
    assert not folder.exists() or list(folder.iterdir()) == []
    return str(caught.value)


class StopsLikeIt(EarlyStoppingCallback):
    """Early stopping in a class of the program."""


@pytest.mark.parametrize("callback", [EarlyStoppingCallback(), StopsLikeIt(early_stopping_patience=3)])
@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, ["compares metric_for_best_model, which is None", "metric_for_best_model='loss'"]),
        ({"metric_for_best_model": "loss", "eval_strategy": "no"}, ["needs evaluations", "'epoch' or 'steps'"]),
    ],
)
def test_early_stopping_that_would_end_each_trial_with_an_error(
    tmp_path: Path, callback: EarlyStoppingCallback, settings: dict[str, Any], shown: list[str]
) -> None:
    message = refused(ArgumentError, tmp_path / "out", callbacks=[callback], **settings)
    assert message.startswith(type(callback).__name__)
    assert all(each in message for each in shown), message


class StopsInItsWay(EarlyStoppingCallback):
    """Early stopping that compares no metric of the arguments."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        pass

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("callback", "space"),
    [
        (EarlyStoppingCallback(), {"metric_for_best_model": Categorical(["loss"])}),
        (EarlyStoppingCallback(), lambda trial: {"metric_for_best_model": trial.suggest_categorical("x", ["loss"])}),
        (StopsInItsWay(), GOOD_SPACE),
    ],
    ids=["searched", "define-by-run", "own"],
)
def test_early_stopping_whose_metric_the_trial_sets_or_that_needs_none(
    tmp_path: Path, callback: EarlyStoppingCallback, space: Any
) -> None:
    best = small_trainer(tmp_path, callback).hyperparameter_search(space, "loss", n_trials=1, progress=False)
    assert isinstance(best, BestRun)


@pytest.mark.parametrize(
    ("make_space", "shown"),
    [
        (lambda: {"lerning_rate": Float(0.0, 1.0)}, ["'lerning_rate'", "Did you mean 'learning_rate'"]),
        (lambda: {"modle.hidden": Int(1, 2)}, ["'modle.hidden'", "model.*", "optim.*", "Did you mean 'model'"]),
        (lambda: {"learning_rate": Float(1.0, 0.5)}, ["low=1.0", "high=0.5"]),
        (lambda: {"learning_rate": Float(0.0, 1.0, log=True)}, ["low=0.0", "low > 0"]),
        (lambda: {"num_train_epochs": Int(0, 3, log=True)}, ["low=0", "low > 0"]),
        (lambda: {"optim": Categorical([])}, ["no choices", "at least one"]),
        (lambda: {"learning_rate": Float(0.0, 1.0, default=2.0)}, ["default=2.0", "[0.0, 1.0]"]),
        (lambda: {"optim": Categorical(["sgd"], default="adam")}, ["default='adam'", "('sgd',)"]),
        (lambda: {}, ["empty"]),
        (lambda: {"learning_rate": 0.1}, ["'learning_rate'", "0.1", "Float, an Int or a Categorical"]),
        (lambda: 3, ["3", "mapping"]),
        (lambda: {"learning_rate": FloatDistribution(0.1, 1.0)}, ["distribution of Optuna", "write Float(low, high"]),
        (lambda: {"seed": {"grid_search": [1, 2]}}, ["grid of Ray Tune", "Categorical([...])", "backend='ray'"]),
        (
            lambda: {"lr_scheduler_type": Categorical({"constant": {}, "cosine": {"warmup_stesp": Int(0, 4)}})},
            ["'warmup_stesp'", "Did you mean 'warmup_steps'"],
        ),
    ],
)
def test_a_space_that_cannot_be_searched(tmp_path: Path, make_space: Any, shown: list[str]) -> None:
    message = refused(SpaceError, tmp_path / "out", make_space)
    for text in shown:
        assert text in message


@pytest.mark.parametrize(
    ("name", "parameter", "shown"),
    [
        ("per_device_train_batch_size", Int(0, 8), ["per_device_train_batch_size=0", "at least 1"]),
        ("per_device_train_batch_size", Float(1.5, 8.0), ["per_device_train_batch_size=1.5", "int"]),
        ("learning_rate", Categorical(["1e-4", "1e-3"]), ["learning_rate='1e-4' (str)", "float"]),
        ("per_device_train_batch_size", Categorical(["4", "8"]), ["per_device_train_batch_size='4' (str)", "int"]),
        ("weight_decay", Categorical([True, False]), ["weight_decay=True (bool)", "float"]),
        ("learning_rate", Categorical([1e-3, "high"]), ["learning_rate='high'", "float"]),
        ("bf16", Categorical([False, "False"]), ["bf16='False'", "bool"]),
        ("gradient_accumulation_steps", Categorical([1, -1]), ["gradient_accumulation_steps=-1", "at least 1"]),
        ("lr_scheduler_type", Categorical(["linear", "cosin"]), ["lr_scheduler_type='cosin'", "cosine"]),
        ("optim", Categorical(["sgd", "adamm"]), ["optim='adamm'", "adamw_torch"]),
        ("warmup_steps", Float(-0.5, 0.5), ["warmup_steps=-0.5"]),
        ("eval_strategy", Categorical(["epoch", "sometimes"]), ["eval_strategy='sometimes'", "steps"]),
        ("max_grad_norm", Categorical([1.0, None]), ["max_grad_norm=None", "float"]),
        ("optim.momentumm", Float(0.0, 0.9), ["momentumm", "AdamW", "betas"]),
        ("optim.momentum", Float(0.0, 0.9), ["momentum", "AdamW does not take it"]),
    ],
)
def test_a_value_that_the_arguments_refuse(tmp_path: Path, name: str, parameter: Any, shown: list[str]) -> None:
    message = refused(SpaceError, tmp_path / "out", lambda: {name: parameter})
    for text in (repr(name).strip("'"), *shown):
        assert text in message


@pytest.mark.parametrize("name", ["output_dir", "run_name"])
def test_a_space_over_what_the_search_itself_sets(tmp_path: Path, name: str) -> None:
    message = refused(SpaceError, tmp_path / "out", lambda: {name: Categorical(["a", "b"])})
    assert name in message


def test_a_value_that_is_refused_only_under_another_choice(tmp_path: Path) -> None:
    space = {
        "optim": Categorical(
            {"sgd": {"optim.momentum": Float(0.0, 0.9)}, "adamw_torch": {"optim.momentum": Float(0.0, 0.9)}}
        )
    }
    message = refused(SpaceError, tmp_path / "out", lambda: space)
    assert "optim.momentum" in message
    assert "AdamW" in message


@pytest.mark.feature(6, 8, 12)
@pytest.mark.parametrize(
    ("kind", "changes", "shown"),
    [
        (StudyError, {"scope": "lats"}, ["scope='lats'", "'all'", "'last'", "Did you mean 'last'"]),
        (StudyError, {"backend": "optona"}, ["backend='optona'", "allowed: 'optuna'", "Did you mean 'optuna'"]),
        (StudyError, {"backend": ["optuna"]}, ["backend=['optuna']", "allowed: 'optuna'"]),
        (ObjectiveError, {"direction": "minimise"}, ["'minimise'", "'maximize'", "Did you mean 'minimize'"]),
        (
            ObjectiveError,
            {"compute_objective": "loss", "direction": "maximize"},
            ["'maximize'", "'eval_loss'", "'minimize'"],
        ),
        (ObjectiveError, {"compute_objective": ["loss", "loss"]}, ["'eval_loss'", "twice"]),
        (ObjectiveError, {"compute_objective": []}, ["an empty list"]),
        (ObjectiveError, {"compute_objective": ["loss", "accuracy"], "direction": ["minimize"]}, ["2", "1"]),
        (ObjectiveError, {"direction": ["minimize", None]}, ["['minimize', None]", "compute_objective must be a list"]),
        (ObjectiveError, {"compute_objective": lambda metrics: 0.0}, ["direction='minimize' or 'maximize'"]),
        (ObjectiveError, {"compute_objective": 3}, ["3", "a metric's name, a function, a list of these or None"]),
        (StudyError, {"n_trials": 0}, ["n_trials", "0", "at least 1"]),
        (StudyError, {"n_trials": -1}, ["n_trials", "-1", "at least 1"]),
        (StudyError, {"n_trials": 2.5}, ["n_trials", "2.5", "whole number"]),
        (StudyError, {"timeout": 0}, ["timeout", "0", "above 0"]),
        (StudyError, {"timeout": -5.0}, ["timeout", "-5.0", "above 0"]),
        (StudyError, {"trial_timeout": -5}, ["trial_timeout", "-5", "above 0"]),
        (StudyError, {"keep_checkpoints": -1}, ["keep_checkpoints", "-1", "at least 0"]),
        (StudyError, {"study_name": "../x"}, ["study_name", "'../x'", "letters, digits"]),
        (StudyError, {"study_name": ""}, ["study_name", "''", "letters, digits"]),
        (StudyError, {"hp_name": "trial"}, ["hp_name", "'trial'", "function"]),
        (StudyError, {"smapler": 3}, ["smapler=3", "'sampler'", "'pruner'", "Did you mean 'sampler'"]),
        (StudyError, {"n_jobs": 0}, ["n_jobs", "but got 0"]),
        (StudyError, {"samplr": None}, ["samplr=None", "'sampler'", "'storage'"]),
        (StudyError, {"backend": "sigopt"}, ["backend='sigopt'", "'optuna'"]),
        (StudyError, {"sampler": "tpee"}, ["'tpee'", "Optuna sampler", "'random'", "Did you mean 'tpe'?"]),
        (StudyError, {"sampler": 5}, ["but got 5", "Optuna sampler"]),
        (StudyError, {"sampler": optuna.samplers.TPESampler}, ["TPESampler", "Optuna sampler"]),
        (StudyError, {"backend": "ray", "sampler": "tpee"}, ["'tpee'", "Did you mean 'tpe'?"]),
        (StudyError, {"pruner": "medain"}, ["'medain'", "'hyperband'", "'none'", "Did you mean 'median'"]),
        (StudyError, {"pruner": ["median"]}, ["['median']", "'hyperband'"]),
        (StudyError, {"storage": 7}, ["storage", "7", "URL"]),
        (StudyError, {"storage": "nonsense://x"}, ["'nonsense://x'", "cannot be opened"]),
        (StudyError, {"storage": "sqlite:////no/such/folder/study.db"}, ["/no/such/folder", "cannot be opened"]),
        (StudyError, {"timout": 3}, ["timout=3", "Did you mean 'timeout'?"]),
        (StudyError, {"storage": "jurnal"}, ["'jurnal'", "Did you mean 'journal'?"]),
        (StudyError, {"progress": "yes"}, ["progress", "'yes'", "SearchListener"]),
        (SpaceError, {"start_with": "default"}, ["'default'", "Did you mean 'defaults'?"]),
        (StudyError, {"seed": "7"}, ["seed", "'7'"]),
        (StudyError, {"seed": -1}, ["seed", "-1"]),
    ],
)
def test_an_argument_of_the_search_that_is_not_allowed(
    tmp_path: Path, kind: type[Exception], changes: dict[str, Any], shown: list[str]
) -> None:
    message = refused(kind, tmp_path / "out", **changes)
    for text in shown:
        assert text in message


@pytest.mark.parametrize("kind", ["name", "object", "inside another"])
def test_a_sampler_whose_package_is_missing(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    sampler: Any = "cmaes" if kind == "name" else optuna.samplers.CmaEsSampler(seed=1)
    if kind == "inside another":
        with quiet_optuna():
            sampler = optuna.samplers.PartialFixedSampler({"seed": 1}, sampler)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cmaes" else find(name, *rest))
    message = refused(MissingPackageError, tmp_path / "out", sampler=sampler)
    assert message.endswith("needs the package cmaes: pip install cmaes")


def test_a_refused_search_is_no_obstacle_to_the_corrected_one(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=1)
    with pytest.raises(StudyError, match="cannot be opened"):
        trainer.hyperparameter_search(GOOD_SPACE, "loss", 1, storage="nonsense://x", progress=False)
    best = trainer.hyperparameter_search({"learning_rate": Float(1e-3, 1e-2)}, "accuracy", 1, progress=False)
    assert best.run_id == "0"


def test_no_evaluation_data(tmp_path: Path) -> None:
    for missing in (None, {}):
        message = refused(StudyError, tmp_path / "out", eval_dataset=missing, eval_strategy="no")
        assert "eval_dataset" in message


def test_no_training_data(tmp_path: Path) -> None:
    assert "train_dataset" in refused(StudyError, tmp_path / "out", train_dataset=None)


@pytest.mark.feature(2)
def test_no_model_init(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path / "out", model=TwoLayers())
    with pytest.raises(StudyError, match="model_init") as caught:
        trainer.hyperparameter_search(GOOD_SPACE, n_trials=1, progress=False)
    assert "it has a model instead" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.feature(2)
def test_optimizers_together_with_model_init(tmp_path: Path) -> None:
    calls = CountsModels()
    optimizer = torch.optim.SGD(TwoLayers().parameters(), lr=0.1)
    with pytest.raises(InvalidInputError, match="`model_init` is incompatible with providing the `optimizers`"):
        small_trainer(tmp_path / "out", model_init=calls, optimizers=(optimizer, None))
    assert calls.trials == []


def test_a_scope_of_the_arguments_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"ray_scope='lats' is not allowed; allowed: .*Did you mean 'last'"):
        TrainingArguments(str(tmp_path), ray_scope="lats")


def test_a_model_parameter_for_a_model_init_that_takes_no_trial(tmp_path: Path) -> None:
    calls: list[int] = []

    def model_init() -> TwoLayers:
        calls.append(1)
        return TwoLayers()

    message = refused(SpaceError, tmp_path / "out", lambda: {"model.hidden": Int(2, 4)}, model_init=model_init)
    assert "'model.hidden'" in message
    assert "takes no trial" in message
    assert calls == []


# What can only be known inside the first trial ends the search there.


def refused_in_the_first_trial(folder: Path, kind: type[Exception], space: Any, **changes: Any) -> tuple[str, int]:
    calls = CountsModels()
    of_search = {name: changes.pop(name) for name in ("compute_objective", "direction") if name in changes}
    trainer = small_trainer(folder, model_init=calls, **changes)
    with pytest.raises(kind) as caught:
        trainer.hyperparameter_search(space, n_trials=3, progress=False, **of_search)
    return str(caught.value), len(calls.trials)


@pytest.mark.parametrize("eval_strategy", ["epoch", "no"])
def test_a_metric_that_evaluation_does_not_produce_is_refused_at_the_first_evaluation(
    tmp_path: Path, eval_strategy: str
) -> None:
    message, models = refused_in_the_first_trial(
        tmp_path, ObjectiveError, GOOD_SPACE, compute_objective="acuracy", eval_strategy=eval_strategy
    )
    for text in ("'eval_acuracy'", "eval_accuracy, eval_loss", "Did you mean 'eval_accuracy'"):
        assert text in message
    assert models == 1
    assert [path.name for path in (tmp_path / "study").glob("run-*")] == ["run-0"]


def test_a_metric_is_looked_for_once_all_evaluation_sets_are_done(tmp_path: Path) -> None:
    sets = {"dev": points(8, seed=1), "test": points(8, seed=2)}
    message, models = refused_in_the_first_trial(
        tmp_path, ObjectiveError, GOOD_SPACE, compute_objective="loss", eval_dataset=sets
    )
    assert "eval_dev_accuracy, eval_dev_loss, eval_test_accuracy, eval_test_loss" in message
    assert models == 1


def test_an_objective_that_gives_no_number_is_refused_at_the_first_evaluation(tmp_path: Path) -> None:
    message, models = refused_in_the_first_trial(
        tmp_path, ObjectiveError, GOOD_SPACE, compute_objective=lambda metrics: None, direction="minimize"
    )
    assert "must be a number" in message
    assert "None" in message
    assert models == 1


def test_a_parameter_that_model_init_never_reads_is_refused_in_the_first_trial(tmp_path: Path) -> None:
    message, models = refused_in_the_first_trial(tmp_path, SpaceError, {"model.hidden": Int(2, 4)})
    assert "'model.hidden'" in message
    assert "trial.params['model.hidden']" in message
    assert models == 1


@pytest.mark.parametrize("kind", ["params", "suggest"])
def test_a_parameter_that_model_init_reads_is_not_refused(tmp_path: Path, kind: str) -> None:
    def model_init(trial: Any) -> TwoLayers:
        return TwoLayers(trial.params["model.hidden"] if kind == "params" else trial.suggest_int("model.hidden", 2, 4))

    trainer = small_trainer(tmp_path, model_init=model_init, num_train_epochs=1)
    best = trainer.hyperparameter_search({"model.hidden": Int(2, 4)}, n_trials=1, progress=False)
    assert 2 <= best.hyperparameters["model.hidden"] <= 4
    assert best.load_model().hidden.out_features == best.hyperparameters["model.hidden"]


@pytest.mark.parametrize(
    ("suggest", "shown"),
    [
        (lambda trial: trial.suggest_float("learning_rate", 1.0, 0.5), ["low=1.0", "high=0.5"]),
        (lambda trial: trial.suggest_float("learning_rate", 0.0, 0.5, log=True), ["low=0.0", "low > 0"]),
        (lambda trial: trial.suggest_int("num_train_epochs", 1, 4, step=0), ["step", "above 0"]),
        (lambda trial: trial.suggest_categorical("optim", []), ["no choices"]),
        (lambda trial: {"lerning_rate": trial.suggest_float("x", 0.1, 0.5)}, ["'lerning_rate'", "'learning_rate'"]),
        (lambda trial: {"modle.hidden": trial.suggest_int("x", 1, 2)}, ["'modle.hidden'", "model.*"]),
        (lambda trial: {"optim.momentumm": trial.suggest_float("x", 0.0, 0.5)}, ["momentumm", "AdamW"]),
        (lambda trial: {"output_dir": trial.suggest_categorical("x", ["a"])}, ["output_dir"]),
        (lambda trial: [trial.suggest_float("learning_rate", 0.1, 0.5)], ["hp_space(trial) returned", "mapping"]),
        (
            lambda trial: [trial.suggest_int("seed", 1, 4), trial.suggest_int("seed", 50, 60)][:0] or None,
            ["already has seed", "Int(50, 60)"],
        ),
    ],
)
def test_a_define_by_run_space_is_refused_in_the_first_trial(tmp_path: Path, suggest: Any, shown: list[str]) -> None:
    def space(trial: Any) -> Any:
        returned = suggest(trial)
        return returned if isinstance(returned, (dict, list)) else None

    message, models = refused_in_the_first_trial(tmp_path, SpaceError, space)
    for text in shown:
        assert text in message
    assert models <= 1


@pytest.mark.parametrize("preflight", [True, False])
@pytest.mark.parametrize("returns", [True, False])
def test_text_for_a_number_from_a_function_ends_the_search_before_a_model_is_built(
    tmp_path: Path, returns: bool, preflight: bool
) -> None:
    def space(trial: Any) -> Any:
        rate = trial.suggest_categorical("learning_rate", ["1e-4", "1e-3"])
        return {"learning_rate": rate} if returns else None

    calls = CountsModels()
    with pytest.raises(SpaceError, match=r"learning_rate='1e-\d' \(str\) cannot be converted to float"):
        small_trainer(tmp_path, model_init=calls).hyperparameter_search(
            space, n_trials=3, progress=False, preflight=preflight
        )
    assert calls.trials == []


@pytest.mark.parametrize("name", ["../x", "study.db"])
def test_a_run_name_that_cannot_be_a_folder_is_refused_in_the_first_trial(tmp_path: Path, name: str) -> None:
    calls = CountsModels()
    with pytest.raises(StudyError) as caught:
        small_trainer(tmp_path / "out", model_init=calls).hyperparameter_search(
            GOOD_SPACE, n_trials=2, hp_name=lambda trial: name, progress=False
        )
    assert repr(name) in str(caught.value)
    assert calls.trials == []
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_a_mistake_in_the_study_can_be_corrected_and_the_study_goes_on(tmp_path: Path) -> None:
    space = {"model.hidden": Int(2, 4)}
    refused_in_the_first_trial(tmp_path, SpaceError, space)
    trainer = small_trainer(tmp_path, model_init=lambda trial: TwoLayers(trial.params["model.hidden"]))
    best = trainer.hyperparameter_search(space, n_trials=3, progress=False)
    assert sum(record.state.is_counted for record in best.run_summary.records) == 3


def test_a_space_object_is_as_good_as_a_mapping(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=1, compute_metrics=accuracy)
    assert trainer.hyperparameter_search(SearchSpace(GOOD_SPACE), n_trials=1, progress=False).run_id == "0"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("file", "Not a directory"),
        ("file/below", "Not a directory"),
        ("loop", "Too many levels"),
        ("x" * 300, "File name too long"),
        ("a\0b", "null byte"),
    ],
)
def test_an_output_dir_that_cannot_be_made_is_refused(tmp_path: Path, name: str, shown: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    calls = CountsModels()
    with pytest.raises(StudyError, match="cannot be made") as caught:
        small_trainer(tmp_path / name, model_init=calls).hyperparameter_search(GOOD_SPACE, n_trials=1, progress=False)
    assert shown in str(caught.value)
    assert repr(str(tmp_path / name / "study")) in str(caught.value)
    assert calls.trials == []
    assert (tmp_path / "file").read_text() == "x"


def test_a_file_in_place_of_the_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study").write_text("x")
    with pytest.raises(StudyError, match="cannot be made: a file of this name exists"):
        small_trainer(tmp_path).hyperparameter_search(GOOD_SPACE, n_trials=1, progress=False)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file"), PermissionError(1, "Operation not permitted")])
def test_a_file_system_that_takes_no_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StudyError, match=f"cannot be made: {error.strerror}"):
        make_place(tmp_path / "out" / "study")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (TwoLayers(), r"got a model, of class TwoLayers: write model_init=lambda: TwoLayers\(\.\.\.\)"),
        (3, r"must be a function that returns a new model, but got 3 \(int\)"),
    ],
)
def test_a_model_in_place_of_a_function_that_makes_one_is_refused(tmp_path: Path, given: Any, match: str) -> None:
    with pytest.raises(InvalidInputError, match=match):
        small_trainer(tmp_path, model_init=given)
