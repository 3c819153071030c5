"""Training arguments: validated copies, casting without loss, and values derived anew for every copy."""

from __future__ import annotations

import json
import logging
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from accelerate import ParallelismConfig
from transformers import IntervalStrategy, PrinterCallback, ProgressCallback, SchedulerType
from transformers.training_args import ParallelMode

from hpsearch import Trainer, TrainingArguments
from hpsearch.arguments import adopt
from hpsearch.arguments.casting import argument_names, cast_argument
from hpsearch.errors import ArgumentError, UnknownArgumentError
from hpsearch.training.acceleration import make_accelerator
from tests.support.models import (
    Line,
    line_data,
)
from tests.support.small_training import args_of, make_trainer


def make(**values: Any) -> TrainingArguments:
    return TrainingArguments("out", use_cpu=True, **values)


def test_every_argument_of_transformers_is_one_of_ours_with_the_same_default() -> None:
    theirs = transformers.TrainingArguments("out", use_cpu=True).to_dict()
    ours = make().to_dict()
    assert ours.pop("ray_scope") == "last"
    assert ours.pop("tensorboard_logging_dir") is None
    assert ours == theirs


def test_replace_gives_a_changed_copy_and_leaves_the_first_as_it_was() -> None:
    args = make(learning_rate=1e-3, seed=3)
    before = args.to_dict()
    other = args.replace(learning_rate=1e-4, lr_scheduler_type="cosine")
    assert args.to_dict() == before
    assert type(other) is TrainingArguments
    assert (other.learning_rate, other.seed, other.lr_scheduler_type) == (1e-4, 3, SchedulerType.COSINE)
    same = {name for name, value in other.to_dict().items() if value == before[name]}
    assert set(before) - same == {"learning_rate", "lr_scheduler_type"}


def test_replace_keeps_the_class_and_the_fields_of_a_subclass() -> None:
    from dataclasses import dataclass

    @dataclass
    class Own(TrainingArguments):
        temperature: float = 1.0

    other = Own("out", use_cpu=True, temperature=2.0).replace(seed=1)
    assert type(other) is Own
    assert (other.temperature, other.seed) == (2.0, 1)
    assert other.replace(temperature=3).temperature == 3.0


def test_replacing_nothing_gives_equal_arguments() -> None:
    args = make(eval_strategy="steps", load_best_model_at_end=True, save_strategy="steps", warmup_steps=0.1)
    assert args.replace().to_dict() == args.to_dict()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("warmup_steps", 0.1, 0.1),
        ("warmup_steps", 10, 10.0),
        ("learning_rate", 1, 1.0),
        ("max_steps", 3.0, 3),
        ("max_steps", -1, -1),
        ("max_steps", 2**53 + 1, 2**53 + 1),
        ("learning_rate", 2**53, 2.0**53),
        ("num_train_epochs", 1.5, 1.5),
        ("logging_steps", 0.25, 0.25),
        ("data_seed", None, None),
        ("data_seed", 7, 7),
        ("data_seed", 7.0, 7),
        ("eval_steps", 0.5, 0.5),
        ("bf16", True, True),
        ("optim", "adafactor", "adafactor"),
        ("lr_scheduler_type", SchedulerType.COSINE, SchedulerType.COSINE),
        ("eval_strategy", "steps", "steps"),
        ("eval_strategy", IntervalStrategy.EPOCH, IntervalStrategy.EPOCH),
        ("label_names", ["a", "b"], ["a", "b"]),
        ("lr_scheduler_kwargs", {"num_cycles": 2}, {"num_cycles": 2}),
        ("per_device_train_batch_size", np.int64(16), 16),
        ("learning_rate", np.float64(0.5), 0.5),
        ("learning_rate", np.float32(0.5), 0.5),
        ("seed", np.float64(4.0), 4),
        ("bf16", np.bool_(True), True),
        ("optim", np.str_("sgd"), "sgd"),
    ],
)
def test_a_value_that_loses_nothing_is_taken_as_the_type_of_its_field(name: str, value: Any, expected: Any) -> None:
    cast = cast_argument(name, value, TrainingArguments)
    assert cast == expected
    kind = str if isinstance(expected, str) else type(expected)
    assert isinstance(cast, kind)
    if kind in (int, float, bool):
        assert type(cast) is kind


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bf16", "False"),
        ("bf16", "true"),
        ("bf16", 1),
        ("bf16", 0.0),
        ("max_steps", 3.9),
        ("max_steps", "3"),
        ("max_steps", True),
        ("max_steps", float("inf")),
        ("max_steps", float("nan")),
        ("max_steps", None),
        ("seed", np.float64(3.5)),
        ("learning_rate", "1e-3"),
        ("learning_rate", True),
        ("learning_rate", np.bool_(True)),
        ("learning_rate", None),
        ("learning_rate", 2**53 + 1),
        ("learning_rate", 10**400),
        ("learning_rate", [1e-3]),
        ("lr_scheduler_type", 3),
        ("label_names", 3),
    ],
)
def test_a_value_that_would_be_bent_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        cast_argument(name, value, TrainingArguments)
    with pytest.raises(ArgumentError, match=name):
        make().replace(**{name: value})


def test_a_fractional_warm_up_survives_replacing_other_values() -> None:
    args = make().replace(warmup_steps=0.1).replace(learning_rate=1.0)
    assert args.warmup_steps == 0.1
    assert args.get_warmup_steps(200) == 20
    assert make(warmup_steps=7).replace(seed=1).get_warmup_steps(200) == 7


@pytest.mark.parametrize(("name", "nearest"), [("lerning_rate", "learning_rate"), ("warmup_step", "warmup_steps")])
def test_an_unknown_name_is_refused_with_the_nearest_known_one(name: str, nearest: str) -> None:
    with pytest.raises(UnknownArgumentError, match=f"{name}.*{nearest}"):
        make().replace(**{name: 1})


@pytest.mark.parametrize("name", ["to_dict", "device", "_given", "n_gpu", "train_batch_size"])
def test_a_name_that_is_not_an_argument_of_the_constructor_is_unknown(name: str) -> None:
    assert name not in argument_names(TrainingArguments)
    with pytest.raises(UnknownArgumentError):
        cast_argument(name, 1, TrainingArguments)


@pytest.mark.feature(38, 47)
@pytest.mark.parametrize(
    "changes",
    [
        {"lr_scheduler_type": "lineer"},
        {"optim": "adamw_hf"},
        {"eval_strategy": "sometimes"},
        {"fp16": True, "bf16": True},
        {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "epoch"},
        {"eval_strategy": "steps", "eval_steps": 4, "save_steps": 6, "load_best_model_at_end": True},
        {"logging_steps": 0},
        {"torch_empty_cache_steps": 0},
    ],
)
def test_a_combination_that_transformers_refuses_is_refused_naming_the_changes(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - transformers words these
        make(**changes)
    with pytest.raises(ArgumentError, match=next(iter(changes))):
        make().replace(**changes)


@pytest.mark.feature(48)
def test_whether_greater_is_better_is_derived_again_for_another_metric() -> None:
    args = make(metric_for_best_model="accuracy", eval_strategy="epoch")
    assert args.greater_is_better is True
    assert args.replace(metric_for_best_model="eval_loss").greater_is_better is False
    assert args.replace(metric_for_best_model="eval_data1_loss").greater_is_better is False
    assert args.replace(metric_for_best_model="loss").replace(metric_for_best_model="f1").greater_is_better is True


def test_a_direction_that_was_given_is_not_derived_again() -> None:
    args = make(metric_for_best_model="error", greater_is_better=False)
    assert args.replace(metric_for_best_model="accuracy").greater_is_better is False
    assert make(metric_for_best_model="f1").replace(greater_is_better=False).greater_is_better is False


@pytest.mark.feature(20)
def test_the_interval_of_evaluation_follows_that_of_logging_until_it_is_given() -> None:
    args = make(eval_strategy="steps", logging_steps=10)
    assert args.eval_steps == 10
    assert args.replace(logging_steps=4).eval_steps == 4
    assert args.replace(eval_steps=3).replace(logging_steps=4).eval_steps == 3
    assert make(eval_strategy="steps", logging_steps=10, eval_steps=10).replace(logging_steps=4).eval_steps == 10


def test_other_derived_values_are_derived_again() -> None:
    args = make(load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch")
    assert args.metric_for_best_model == "loss"
    plain = args.replace(load_best_model_at_end=False, eval_strategy="no")
    assert plain.metric_for_best_model is None
    assert plain.greater_is_better is None
    assert plain.do_eval is False
    assert make().replace(per_device_train_batch_size=3).train_batch_size == 3
    assert make().replace(bf16=True).mixed_precision == "bf16"
    assert make(bf16=True).replace(bf16=False).mixed_precision == "no"


def test_attributes_assigned_after_construction_survive_replace() -> None:
    args = make(eval_strategy="steps")
    args.seed = 9
    args.output_dir = "elsewhere"
    args.eval_steps = 3
    other = args.replace(learning_rate=1.0).replace(logging_steps=8)
    assert (other.seed, other.output_dir, other.eval_steps) == (9, "elsewhere", 3)


def test_an_assigned_value_that_is_not_valid_is_refused_when_the_copy_is_made() -> None:
    args = make()
    args.per_device_train_batch_size = 0
    with pytest.raises(ArgumentError, match="per_device_train_batch_size"):
        args.replace(seed=1)


def test_a_container_changed_in_place_survives_replace_and_is_not_shared_with_the_copy() -> None:
    args = make(lr_scheduler_kwargs={"num_cycles": 1})
    args.lr_scheduler_kwargs["num_cycles"] = 2
    other = args.replace(seed=1)
    assert other.lr_scheduler_kwargs == {"num_cycles": 2}
    other.lr_scheduler_kwargs["num_cycles"] = 5
    assert args.lr_scheduler_kwargs == {"num_cycles": 2}


@pytest.mark.feature(11)
@pytest.mark.parametrize("scope", ["last", "all", "avg", "last-5-avg", "last-10-avg"])
def test_every_ray_scope_is_accepted(scope: str) -> None:
    assert make(ray_scope=scope).ray_scope == scope
    assert make().replace(ray_scope=scope).ray_scope == scope


@pytest.mark.parametrize("scope", ["lst", "best", "", None, 3])
def test_another_ray_scope_is_refused_with_the_allowed_ones(scope: Any) -> None:
    with pytest.raises(ArgumentError, match="last-10-avg"):
        make(ray_scope=scope)


def test_a_misspelt_ray_scope_is_answered_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'last'"):
        make(ray_scope="lst")


@pytest.mark.feature(22)
@pytest.mark.parametrize(
    "name", ["per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"]
)
@pytest.mark.parametrize("value", [0, -4])
def test_sizes_below_one_are_refused_with_the_value_received(name: str, value: int) -> None:
    with pytest.raises(ArgumentError, match=f"{name} must be at least 1, but got {value}"):
        make(**{name: value})
    with pytest.raises(ArgumentError, match=f"{name} must be at least 1, but got {value}"):
        make().replace(**{name: value})


def test_adopting_keeps_ours_and_copies_transformers_own() -> None:
    ours = make(seed=4)
    assert adopt(ours) is ours
    plain = transformers.TrainingArguments("out", use_cpu=True, seed=4, report_to="none", optim="adafactor")
    adopted = adopt(plain)
    assert type(adopted) is TrainingArguments
    assert adopted.replace(seed=5).seed == 5
    assert plain.seed == 4
    own = {"ray_scope": "last", "tensorboard_logging_dir": None}
    assert adopted.to_dict() == {**plain.to_dict(), **own}


def test_what_cannot_be_honoured_is_refused_by_name_and_value() -> None:
    with pytest.raises(ArgumentError, match=r"(?s)parallelism_config=ParallelismConfig\(.* is not supported"):
        make(parallelism_config=ParallelismConfig())


def test_making_arguments_leaves_a_run_that_is_under_way_undisturbed() -> None:
    accelerator = make_accelerator(make())
    make(learning_rate=1.0).replace(seed=3)
    assert accelerator.num_processes == 1
    assert accelerator.distributed_type == "NO"


def test_adopted_arguments_derive_their_values_again_too() -> None:
    plain = transformers.TrainingArguments("out", use_cpu=True, metric_for_best_model="accuracy", eval_strategy="steps")
    adopted = adopt(plain)
    assert adopted.replace(metric_for_best_model="loss").greater_is_better is False
    assert adopted.replace(logging_steps=7).eval_steps == 7


def test_arguments_survive_pickling_with_their_derived_values(tmp_path: Path) -> None:
    import pickle

    args = make(metric_for_best_model="accuracy", eval_strategy="steps", logging_steps=10)
    copied = pickle.loads(pickle.dumps(args))
    assert copied.to_dict() == args.to_dict()
    assert copied.replace(logging_steps=4).eval_steps == 4


def test_the_parser_of_transformers_reads_ours_from_a_command_line() -> None:
    parser = transformers.HfArgumentParser(TrainingArguments)
    (args,) = parser.parse_args_into_dataclasses(["--output_dir", "out", "--use_cpu", "--ray_scope", "all"])
    assert type(args) is TrainingArguments
    assert args.ray_scope == "all"


@pytest.mark.feature(17)
def test_the_output_folder_is_optional_and_a_tilde_in_it_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert TrainingArguments(use_cpu=True).output_dir == "trainer_output"
    trainer = make_trainer(Path("~/runs"), save_strategy="epoch")
    trainer.train()
    trainer.save_model()
    assert {path.name for path in (tmp_path / "runs").iterdir()} >= {"checkpoint-3", "model.safetensors"}


@pytest.mark.feature(19)
def test_the_arguments_that_are_for_scripts_change_nothing_in_the_trainer(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, do_train=False, do_predict=False, resume_from_checkpoint="nowhere")
    assert trainer.train().global_step == 3
    assert trainer.evaluate()["eval_loss"] > 0
    assert len(trainer.predict(line_data(4)).label_ids) == 4


@pytest.mark.feature(19, "P9")
@pytest.mark.parametrize(("strategy", "evaluates"), [("no", False), ("epoch", True), ("steps", True)])
def test_a_strategy_of_evaluation_switches_do_eval_on_but_not_do_predict(strategy: str, evaluates: bool) -> None:
    args = args_of(eval_strategy=strategy)
    assert (args.do_eval, args.do_predict) == (evaluates, False)


@pytest.mark.feature(22)
@pytest.mark.parametrize(("n_gpu", "expected"), [(0, (3, 5)), (1, (3, 5)), (4, (12, 20))])
def test_a_batch_is_as_large_as_those_of_all_gpus_of_one_process(n_gpu: int, expected: tuple[int, int]) -> None:
    assert (args_of().train_batch_size, args_of().eval_batch_size) == (8, 8)
    args = args_of(per_device_train_batch_size=3, per_device_eval_batch_size=5)
    args._n_gpu = n_gpu
    assert (args.train_batch_size, args.eval_batch_size) == expected


@pytest.mark.feature(30)
def test_tensorboard_writes_below_the_output_folder_under_time_and_host(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    make_trainer(tmp_path, report_to="tensorboard", max_steps=1).train()
    (file,) = tmp_path.rglob("events.out.*")
    assert file.parent.parent == tmp_path / "runs"
    assert file.parent.name.endswith(f"_{socket.gethostname()}")


@pytest.mark.feature(31, 33, 53, 55)
def test_strategies_and_trackers_have_the_documented_defaults() -> None:
    args = args_of()
    assert (args.logging_strategy.value, args.logging_steps, args.logging_first_step) == ("steps", 500, False)
    assert (args.save_strategy.value, args.save_steps, args.save_total_limit) == ("steps", 500, None)
    assert args.report_to == []
    assert args.optim == "adamw_torch_fused"
    assert args.lr_scheduler_type.value == "linear"


@pytest.mark.feature(40)
def test_on_a_cpu_there_is_one_process_and_no_gpu_and_the_timeout_is_that_of_the_arguments() -> None:
    args = args_of(ddp_timeout=60)
    assert (args.device.type, args.n_gpu, args.world_size) == ("cpu", 0, 1)
    assert (args.process_index, args.local_process_index, args.local_rank) == (0, 0, -1)
    assert args.parallel_mode is ParallelMode.NOT_PARALLEL
    assert args.ddp_timeout_delta == timedelta(seconds=60)
    assert args_of().ddp_timeout == 1800


@pytest.mark.feature(119, "P14")
def test_several_gpus_in_one_process_without_a_launcher_are_data_parallel() -> None:
    args = args_of()
    args._n_gpu = 2
    assert args.parallel_mode is ParallelMode.NOT_DISTRIBUTED


@pytest.mark.feature(44, "P9")
@pytest.mark.parametrize(
    ("level", "expected"),
    [(logging.INFO, False), (logging.WARNING, False), (logging.ERROR, True), (logging.CRITICAL, True)],
)
def test_progress_bars_are_off_where_the_log_level_is_above_warning(level: int, expected: bool) -> None:
    transformers.utils.logging.set_verbosity(level)
    try:
        trainer = Trainer(Line(), args_of())
    finally:
        transformers.utils.logging.set_verbosity(logging.WARNING)
    assert trainer.args.disable_tqdm is expected
    kinds = {type(each) for each in trainer.callback_handler.callbacks}
    assert (PrinterCallback in kinds, ProgressCallback in kinds) == (expected, not expected)


@pytest.mark.feature(44)
def test_a_run_has_a_name_where_one_is_given() -> None:
    assert args_of().run_name is None
    assert args_of(run_name="mine").run_name == "mine"


@pytest.mark.feature(62)
def test_arguments_are_shown_with_plain_values_and_without_tokens() -> None:
    args = args_of(eval_strategy="epoch", lr_scheduler_type="cosine", hub_token="hf_secret", push_to_hub=False)
    shown = args.to_dict()
    assert (shown["eval_strategy"], shown["lr_scheduler_type"]) == ("epoch", "cosine")
    assert type(shown["eval_strategy"]) is type(shown["lr_scheduler_type"]) is str
    assert "hf_secret" not in str(shown)
    assert json.loads(args.to_json_string()) == json.loads(json.dumps(shown))
    assert args.hub_token == "hf_secret"
    sanitized = args.to_sanitized_dict()
    assert {type(value) for value in sanitized.values()} <= {bool, int, float, str, torch.Tensor}
    assert (sanitized["train_batch_size"], sanitized["eval_batch_size"]) == (8, 8)
    assert sanitized["eval_steps"] == "None"
    assert "hf_secret" not in str(sanitized)
