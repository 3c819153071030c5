"""When trials are evaluated, and which rungs they have by that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from hpsearch import Float, Int, SearchListener, TrainingArguments, tune
from hpsearch.search.decisions.evaluation_points import evaluation_points
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from tests.support.searching import Events
from tests.support.small_trainer import TwoLayers, small_trainer, transformers_trainer

BY_EPOCH = {"eval_strategy": "epoch", "per_device_train_batch_size": 8}
BY_STEPS = {"eval_strategy": "steps", "per_device_train_batch_size": 8}


@pytest.mark.parametrize(
    ("arguments", "samples", "expected"),
    [
        ({"eval_strategy": "no"}, 100, (1.0,)),
        ({**BY_EPOCH, "num_train_epochs": 4}, 80, (0.25, 0.5, 0.75, 1.0)),
        ({**BY_EPOCH, "num_train_epochs": 4}, None, (0.25, 0.5, 0.75, 1.0)),
        ({**BY_EPOCH, "num_train_epochs": 1}, 80, (1.0,)),
        ({**BY_EPOCH, "num_train_epochs": 2.5}, 80, (0.4, 0.8, 1.0)),
        ({**BY_EPOCH, "num_train_epochs": 4, "eval_delay": 3}, 80, (0.75, 1.0)),
        ({**BY_EPOCH, "max_steps": 25}, 80, (0.4, 0.8, 1.0)),
        ({**BY_EPOCH, "max_steps": 25}, None, None),
        ({**BY_STEPS, "max_steps": 20, "eval_steps": 5}, None, (0.25, 0.5, 0.75, 1.0)),
        ({**BY_STEPS, "max_steps": 20, "eval_steps": 8}, None, (0.4, 0.8, 1.0)),
        ({**BY_STEPS, "num_train_epochs": 2, "eval_steps": 0.25, "eval_delay": 3}, None, None),
        ({**BY_STEPS, "max_steps": 20, "eval_steps": 5, "eval_delay": 12}, None, (0.75, 1.0)),
        ({**BY_STEPS, "num_train_epochs": 2, "eval_steps": 10}, 80, (0.5, 1.0)),
        ({**BY_STEPS, "num_train_epochs": 2, "eval_steps": 100}, 80, (1.0,)),
        ({**BY_STEPS, "num_train_epochs": 2, "eval_steps": 0.25}, None, (0.25, 0.5, 0.75, 1.0)),
        ({**BY_STEPS, "num_train_epochs": 2, "eval_steps": 100}, None, None),
        ({**BY_STEPS, "num_train_epochs": 2, "eval_steps": 2, "gradient_accumulation_steps": 5}, 80, (0.5, 1.0)),
        ({**BY_EPOCH, "num_train_epochs": 2, "dataloader_drop_last": True}, 4, (0.5, 1.0)),
    ],
)
def test_the_points_are_those_of_the_training(arguments: dict[str, Any], samples: int | None, expected: Any) -> None:
    assert evaluation_points(TrainingArguments(use_cpu=True, **arguments), samples) == expected


class NotesEvaluations(TrainerCallback):
    def __init__(self) -> None:
        self.points: list[float] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.points.append(round(state.global_step / state.max_steps, 6))


@pytest.mark.parametrize(
    "arguments",
    [
        {"eval_strategy": "epoch", "num_train_epochs": 3},
        {"eval_strategy": "epoch", "num_train_epochs": 2.5},
        {"eval_strategy": "epoch", "num_train_epochs": 4, "eval_delay": 2},
        {"eval_strategy": "epoch", "max_steps": 10},
        {"eval_strategy": "steps", "eval_steps": 3},
        {"eval_strategy": "steps", "eval_steps": 0.3},
        {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 5},
        {"eval_strategy": "steps", "eval_steps": 100},
        {"eval_strategy": "steps", "eval_steps": 1, "gradient_accumulation_steps": 3},
    ],
)
def test_the_points_are_those_at_which_a_training_run_is_evaluated(tmp_path: Path, arguments: dict[str, Any]) -> None:
    notes = NotesEvaluations()
    trainer = small_trainer(tmp_path, notes, **arguments)
    trainer.train()
    assert evaluation_points(trainer.args, 16) == tuple(notes.points)


@pytest.mark.parametrize("name", ["num_train_epochs", "per_device_train_batch_size", "eval_steps"])
def test_where_trials_differ_in_what_decides_the_points_are_not_known(name: str) -> None:
    args = TrainingArguments(use_cpu=True, **BY_STEPS, eval_steps=10)
    assert evaluation_points(args, 80, ["learning_rate", name]) is None
    assert evaluation_points(args, 80, ["learning_rate"]) is not None


def test_evaluations_after_each_epoch_are_the_same_with_all_batch_sizes() -> None:
    args = TrainingArguments(use_cpu=True, **BY_EPOCH, num_train_epochs=2)
    assert evaluation_points(args, 80, ["per_device_train_batch_size"]) == (0.5, 1.0)


def test_several_devices_make_fewer_steps_of_the_same_samples() -> None:
    args = TrainingArguments(
        use_cpu=True, eval_strategy="steps", eval_steps=2, num_train_epochs=1, per_device_train_batch_size=8
    )
    assert evaluation_points(args, 80) == (0.2, 0.4, 0.6, 0.8, 1.0)
    assert evaluation_points(args, 80, devices=2) == (0.4, 0.8, 1.0)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (None, "trials pause at the first evaluation after 1/18, 1/6 and 1/2 of their training, and the best third"),
        ([k / 20 for k in range(1, 21)], "trials pause after 10%, 20% and 50% of their training, and the best third"),
        ([1 / 3, 2 / 3, 1.0], "trials pause after 33% and 67% of their training, and the best third is promoted"),
        ([0.5, 1.0], "trials pause after 50% of their training, and the best third is promoted"),
        ([1.0], "trials do not pause, as they are evaluated at their end only"),
    ],
)
def test_the_rungs_that_are_said_are_those_that_the_points_reach(points: Any, expected: str) -> None:
    assert LADDER_OF_0_8_0.describe(points).startswith(expected)


def begun(folder: Any, space: Any, limits: Any = None, **changes: Any) -> str:
    """Return what a search says before its first trial."""
    events = Events()
    small_trainer(folder, **changes).hyperparameter_search(
        space, "loss", 4, storage="journal", preflight=False, progress=events, **(limits or {})
    )
    return "; ".join(events.notes)


def test_a_search_says_the_rungs_that_its_trials_have(tmp_path: Any) -> None:
    rate = {"learning_rate": Float(1e-3, 1e-1)}
    assert "trials pause after 33% and 67% of their" in begun(tmp_path / "a", rate, num_train_epochs=3)
    searched = {**rate, "num_train_epochs": Int(2, 3)}
    assert "trials pause at the first evaluation after 1/6 and 1/2 of" in begun(tmp_path / "b", searched)


def test_a_search_with_one_evaluation_a_trial_says_that_nothing_can_be_pruned_and_what_to_set(tmp_path: Any) -> None:
    said = begun(tmp_path, {"learning_rate": Float(1e-3, 1e-1)}, num_train_epochs=1)
    assert "one evaluation at the end of each trial: nothing can be pruned" in said
    assert "eval_strategy='steps' with eval_steps=0.05" in said
    assert "trials pause" not in said


def test_the_rungs_of_a_trial_that_ends_early_are_those_of_what_it_trains(tmp_path: Path) -> None:
    rate = {"learning_rate": Float(1e-3, 1e-1)}
    for folder, limit, rungs in (("a", 3, "33% and 67%"), ("b", 2.5, "40% and 80%"), ("c", 9, "17% and 50%")):
        said = begun(tmp_path / folder, rate, {"trial_max_epochs": limit}, num_train_epochs=6)
        assert f"trials pause after {rungs} of their" in said
    assert "nothing can be pruned" in begun(tmp_path / "d", rate, {"trial_max_epochs": 1}, num_train_epochs=6)


def by_function(trial: Any) -> dict[str, Any]:
    return {"num_train_epochs": trial.suggest_int("epochs", 1, 3)}


def test_of_a_function_as_space_the_rungs_are_not_known(tmp_path: Path) -> None:
    said = begun(tmp_path, by_function, num_train_epochs=1)
    assert "trials pause at the first evaluation after 1/6" in said
    assert "nothing can be pruned" not in said


@pytest.mark.parametrize(
    ("name", "is_known"), [("num_train_epochs", False), ("epochs", False), ("learning_rate", True)]
)
def test_of_trainers_that_a_function_makes_rungs_are_known_where_parameters_are_arguments(
    tmp_path: Path, name: str, is_known: bool
) -> None:
    def make_trainer(trial: Any) -> Any:
        epochs = trial.params[name] if name != "learning_rate" else trial.params[name] and 3
        return transformers_trainer(tmp_path, TwoLayers(), num_train_epochs=epochs)

    events = Events()
    tune(make_trainer, {name: Int(1, 20)}, n_trials=4, compute_objective="loss", preflight=False, progress=events)
    assert ("trials pause after 33% and 67%" in "; ".join(events.notes)) is is_known


class Stops(SearchListener):
    """Notes the settings of a search, and ends it."""

    def on_search_prepare(self, study: Any) -> None:
        self.study = study
        raise StopIteration


@pytest.mark.parametrize(("options", "gpus"), [({}, 4), ({"n_jobs": 2}, 1)])
def test_a_trial_in_this_process_trains_on_all_of_its_gpus_and_one_in_another_process_on_one(
    tmp_path: Path, options: dict[str, Any], gpus: int
) -> None:
    trainer, stops = small_trainer(tmp_path), Stops()
    trainer.args._n_gpu = 4
    with pytest.raises(StopIteration):
        trainer.hyperparameter_search({"learning_rate": Float(0.1, 1.0)}, "loss", n_trials=2, progress=stops, **options)
    assert stops.study.gpus == gpus
