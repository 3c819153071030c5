"""Every public method and property of transformers' arguments does the same on ours, and what it sets is checked."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
import transformers

from hpsearch import ArgumentError, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from tests.support.models import Line, line_data

SETTERS: dict[str, dict[str, Any]] = {
    "set_dataloader": {"train_batch_size": 4, "eval_batch_size": 2, "drop_last": True, "sampler_seed": 7},
    "set_evaluate": {"strategy": "steps", "steps": 3, "batch_size": 2, "accumulation_steps": 1, "delay": 2},
    "set_logging": {"strategy": "steps", "steps": 2, "first_step": True, "level": "error"},
    "set_lr_scheduler": {"name": "cosine", "num_epochs": 2.0, "warmup_steps": 3},
    "set_optimizer": {"name": "adafactor", "learning_rate": 0.1, "weight_decay": 0.2, "beta1": 0.5},
    "set_push_to_hub": {"model_id": "me/model", "strategy": "end", "token": "hf_secret", "private_repo": True},
    "set_save": {"strategy": "steps", "steps": 3, "total_limit": 2},
    "set_testing": {"batch_size": 3, "loss_only": True},
    "set_training": {"learning_rate": 0.3, "batch_size": 2, "weight_decay": 0.1, "num_epochs": 2, "seed": 5},
}
METHODS = {
    "get_process_log_level": {},
    "get_warmup_steps": {"num_training_steps": 40},
    "main_process_first": {},
    "to_dict": {},
    "to_json_string": {},
    "to_sanitized_dict": {},
}
OURS = {"ray_scope", "tensorboard_logging_dir"}


def members() -> dict[str, Any]:
    """Return the public members of transformers' arguments that are no fields."""
    kind: Any = transformers.Seq2SeqTrainingArguments
    fields = {each.name for each in dataclasses.fields(kind)}
    names = [name for name in dir(kind) if not name.startswith("_") and name not in fields]
    return {name: inspect.getattr_static(kind, name) for name in names}


def pair(folder: Path, **values: Any) -> tuple[Any, Any]:
    kinds = (transformers.Seq2SeqTrainingArguments, Seq2SeqTrainingArguments)
    return tuple(kind(str(folder), use_cpu=True, **values) for kind in kinds)  # type: ignore[return-value]


def shown(args: Any) -> dict[str, Any]:
    return {name: value for name, value in args.to_dict().items() if name not in OURS}


def test_every_public_method_is_tried_here() -> None:
    assert {name for name, each in members().items() if inspect.isfunction(each)} == {*SETTERS, *METHODS}


@pytest.mark.parametrize("name", SETTERS)
@pytest.mark.parametrize("given", ["defaults", "values"])
def test_a_setter_sets_what_it_does_in_transformers_and_a_copy_keeps_it(tmp_path: Path, name: str, given: str) -> None:
    theirs, ours = pair(tmp_path)
    values = SETTERS[name] if given == "values" or name == "set_push_to_hub" else {}
    getattr(theirs, name)(**values)
    assert getattr(ours, name)(**values) is ours
    expected = shown(theirs)
    if name == "set_evaluate" and given == "defaults":
        assert expected.pop("eval_delay") is None  # with which transformers fails at the first step
        expected["eval_delay"] = 0
    assert shown(ours) == expected
    copied = shown(ours.replace(weight_decay=0.25))
    assert copied.pop("weight_decay") == 0.25
    derived = {"do_eval", "report_to", "dataloader_pin_memory"}
    assert {key: copied[key] for key in copied if key not in derived} == {
        key: value for key, value in expected.items() if key not in {*derived, "weight_decay"}
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_method_returns_what_it_does_in_transformers(tmp_path: Path, name: str) -> None:
    theirs, ours = pair(tmp_path, warmup_steps=0.1, log_level="info", hub_token="hf_secret")
    found = [getattr(each, name)(**METHODS[name]) for each in (theirs, ours)]
    if name == "main_process_first":
        with found[1]:
            return
    if name == "to_json_string":
        assert '"hub_token": "<HUB_TOKEN>"' in found[1]
        return
    if isinstance(found[1], dict):
        found = [{key: value for key, value in each.items() if key not in OURS} for each in found]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [name for name, each in members().items() if not inspect.isfunction(each)])
def test_a_property_has_the_value_that_it_has_in_transformers(tmp_path: Path, name: str) -> None:
    theirs, ours = pair(tmp_path, ddp_timeout=60)
    assert getattr(ours, name) == getattr(theirs, name)


def test_a_trainer_and_its_trials_train_with_arguments_that_setters_have_made(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True)
    args.set_training(learning_rate=0.1, batch_size=4, num_epochs=1).set_evaluate("steps", steps=2).set_save("no")
    args.set_logging("steps", steps=1).set_optimizer("sgd", learning_rate=0.1).set_lr_scheduler("constant", 1)
    trainer = Trainer(Line(), args, train_dataset=line_data(12), eval_dataset=line_data(4))
    trial = trainer.with_arguments(seed=3)
    for each in (trainer, trial):
        each.train()
        assert [entry["step"] for entry in each.state.log_history if "eval_loss" in entry] == [2, 3]
        assert [entry["learning_rate"] for entry in each.state.log_history if "loss" in entry] == [0.1] * 3
    assert (trial.args.seed, trial.args.optim, trial.args.report_to) == (3, "sgd", [])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda args: args.set_training(learning_rate=-1.0), r"learning_rate must be at least 0, but got -1\.0"),
        (lambda args: args.set_training(batch_size=0), "per_device_train_batch_size must be at least 1, but got 0"),
        (lambda args: setattr(args, "ray_scope", "lats"), "ray_scope='lats' is not allowed.*Did you mean 'last'"),
        (lambda args: setattr(args, "eval_strategy", "epochs"), "eval_strategy='epochs'.*Did you mean 'epoch'"),
    ],
)
def test_a_value_that_was_set_later_is_checked_when_a_trainer_is_made(tmp_path: Path, change: Any, text: str) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    change(args)
    with pytest.raises(ArgumentError, match=text):
        Trainer(Line(), args)


def test_an_error_that_names_the_argument_itself_does_not_name_it_twice() -> None:
    with pytest.raises(ArgumentError, match=r"^per_device_train_batch_size must be .* 0") as error:
        TrainingArguments("out").replace(per_device_train_batch_size=0)
    assert str(error.value).count("per_device_train_batch_size") == 1
