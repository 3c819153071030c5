"""Distribution as the arguments describe it: what is refused, what is taken over, what stays the caller's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from hpsearch import ArgumentError, MissingPackageError, Trainer, TrainingArguments
from tests.support.models import Line, line_data


def test_sharding_over_a_single_process_is_refused(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, fsdp=True)
    with pytest.raises(ArgumentError, match=r"fsdp=True.*single process.*torchrun"):
        Trainer(Line(), args, train_dataset=line_data()).train()


@pytest.mark.filterwarnings("ignore:.*older spelling:DeprecationWarning")
def test_the_older_arguments_of_fsdp_become_its_configuration() -> None:
    args = TrainingArguments(
        "out",
        use_cpu=True,
        fsdp=True,
        fsdp_min_num_params=0,
        fsdp_transformer_layer_cls_to_wrap="BertLayer",
        fsdp_config={"cpu_offload": True},
    )
    assert args.fsdp_plugin_args is not None
    assert args.fsdp_plugin_args["transformer_cls_names_to_wrap"] == "BertLayer"
    assert args.fsdp_plugin_args["cpu_offload"] is True


def test_the_configuration_that_was_given_is_not_written_into() -> None:
    configuration: dict[str, Any] = {"fsdp_transformer_layer_cls_to_wrap": "BertLayer"}
    args = TrainingArguments("out", use_cpu=True, fsdp=True, fsdp_config=configuration)
    assert configuration == {"fsdp_transformer_layer_cls_to_wrap": "BertLayer"}
    assert args.replace(seed=1).fsdp_plugin_args == args.fsdp_plugin_args


@pytest.mark.parametrize("wrong", [{"auto_wrap_policy": "SOME_WRAP"}, "missing.json"])
def test_a_configuration_that_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"auto_wrap_policy|missing\.json"):
        TrainingArguments("out", use_cpu=True, fsdp=True, fsdp_config=wrong)


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_deepspeed_without_its_package_says_what_to_install() -> None:
    with pytest.raises(MissingPackageError, match="pip install deepspeed"):
        TrainingArguments("out", use_cpu=True, deepspeed={"zero_optimization": {"stage": 2}})


def test_deepspeeds_configuration_reaches_accelerate_with_its_values_filled_in() -> None:
    pytest.importorskip("deepspeed")
    configuration = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}
    args = TrainingArguments("out", use_cpu=True, deepspeed=configuration, per_device_train_batch_size=3)
    assert args.deepspeed_plugin.zero_stage == 2
    assert args.hf_deepspeed_config.config["train_micro_batch_size_per_gpu"] == 3


def test_accumulation_may_be_set_for_accelerate_but_not_twice() -> None:
    accelerates = {"gradient_accumulation_kwargs": {"num_steps": 3}}
    args = TrainingArguments("out", use_cpu=True, accelerator_config=accelerates)
    assert args.gradient_accumulation_steps == 3
    assert args.replace(seed=1).gradient_accumulation_steps == 3
    with pytest.raises(ArgumentError, match="num_steps=3"):
        TrainingArguments("out", use_cpu=True, accelerator_config=accelerates, gradient_accumulation_steps=2)
