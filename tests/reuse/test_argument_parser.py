"""Enums and HfArgumentParser on our arguments: command line, dict, JSON and YAML give the same arguments (row 60)."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml
from transformers import HfArgumentParser, SchedulerType
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy
from transformers.training_args import OptimizerNames

import hpsearch
from hpsearch import ArgumentError, TrainingArguments
from tests.support.line_trainer import line_trainer

ENUMS: dict[str, tuple[type, str]] = {
    "eval_strategy": (IntervalStrategy, "epoch"),
    "logging_strategy": (IntervalStrategy, "no"),
    "save_strategy": (SaveStrategy, "best"),
    "lr_scheduler_type": (SchedulerType, "cosine"),
    "hub_strategy": (HubStrategy, "end"),
    "optim": (OptimizerNames, "adafactor"),
}
COMMAND_LINE = shlex.split(
    "--output_dir out --use_cpu --learning_rate 2e-3 --num_train_epochs 1.5 --warmup_steps 0.1 --eval_strategy steps "
    "--eval_steps 5 --lr_scheduler_type polynomial --lr_scheduler_kwargs '{\"power\":2.0}' --optim adafactor "
    "--report_to none --include_for_metrics inputs loss --label_names labels more --no_remove_unused_columns "
    "--disable_tqdm true --seed 7 --ray_scope last-5-avg --metric_for_best_model accuracy"
)
EXPECTED: dict[str, Any] = {
    "output_dir": "out",
    "use_cpu": True,
    "learning_rate": 2e-3,
    "num_train_epochs": 1.5,
    "warmup_steps": 0.1,
    "eval_strategy": IntervalStrategy.STEPS,
    "eval_steps": 5,
    "lr_scheduler_type": SchedulerType.POLYNOMIAL,
    "lr_scheduler_kwargs": {"power": 2.0},
    "optim": OptimizerNames.ADAFACTOR,
    "report_to": [],
    "include_for_metrics": ["inputs", "loss"],
    "label_names": ["labels", "more"],
    "remove_unused_columns": False,
    "disable_tqdm": True,
    "seed": 7,
    "ray_scope": "last-5-avg",
    "metric_for_best_model": "accuracy",
    "greater_is_better": True,
    "do_eval": True,
}


def parse(*words: str) -> TrainingArguments:
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(list(words))
    assert type(args) is TrainingArguments
    return args


@pytest.mark.feature(27, 60)
@pytest.mark.parametrize("name", ENUMS)
def test_an_enum_is_given_as_text_or_as_itself(name: str) -> None:
    kind, value = ENUMS[name]
    more = {"metric_for_best_model": "loss", "eval_strategy": "epoch"} if value == "best" else {}
    for given in (value, kind(value)):
        args = TrainingArguments("out", use_cpu=True, **{name: given}, **more)
        assert getattr(args, name) is kind(value)
        assert args.to_dict()[name] == value
        assert type(args.to_dict()[name]) is str


@pytest.mark.feature(60)
@pytest.mark.parametrize("name", ENUMS)
def test_a_value_that_an_enum_does_not_have_is_an_error_that_lists_those_it_has(name: str) -> None:
    kind, _ = ENUMS[name]
    with pytest.raises(ValueError, match="sometimes") as error:
        TrainingArguments("out", use_cpu=True, **{name: "sometimes"})
    assert all(repr(each.value) in str(error.value) for each in kind)
    with pytest.raises(ValueError, match="sometimes"):
        TrainingArguments("out", use_cpu=True).replace(**{name: "sometimes"})


@pytest.mark.feature(60)
def test_the_command_line_gives_every_kind_of_value() -> None:
    args = parse(*COMMAND_LINE)
    assert {name: getattr(args, name) for name in EXPECTED} == EXPECTED


def test_every_argument_has_an_option_and_without_options_the_defaults_are_those_of_the_constructor() -> None:
    options = {each for action in HfArgumentParser(TrainingArguments)._actions for each in action.option_strings}
    names = [
        name for name in TrainingArguments("out", use_cpu=True).to_dict() if name in TrainingArguments.__match_args__
    ]
    assert len(names) > 100
    assert {f"--{name}" for name in names} <= options
    parsed = parse("--output_dir", "out", "--use_cpu").to_dict()
    assert parsed == TrainingArguments("out", use_cpu=True).to_dict()
    assert parsed["ray_scope"] == "last"


@pytest.mark.feature(60)
@pytest.mark.parametrize("way", ["dict", "json", "yaml", "args file"])
def test_arguments_written_as_a_dict_come_back_the_same(tmp_path: Path, way: str) -> None:
    args = parse(*COMMAND_LINE)
    parser = HfArgumentParser(TrainingArguments)
    if way == "dict":
        (back,) = parser.parse_dict(args.to_dict())
    elif way == "json":
        (tmp_path / "args.json").write_text(args.to_json_string(), encoding="utf-8")
        (back,) = parser.parse_json_file(tmp_path / "args.json")
    elif way == "yaml":
        (tmp_path / "args.yaml").write_text(yaml.safe_dump(args.to_dict()), encoding="utf-8")
        (back,) = parser.parse_yaml_file(tmp_path / "args.yaml")
    else:
        (tmp_path / "script.args").write_text("\n".join(COMMAND_LINE), encoding="utf-8")
        (back,) = parser.parse_args_into_dataclasses([], args_filename=str(tmp_path / "script.args"))
    assert type(back) is TrainingArguments
    assert back.to_dict() == args.to_dict()


@pytest.mark.parametrize("way", ["json", "yaml"])
def test_a_file_with_an_unknown_name_is_refused_unless_extra_keys_are_allowed(tmp_path: Path, way: str) -> None:
    path = tmp_path / f"args.{way}"
    path.write_text(json.dumps({"output_dir": "out", "use_cpu": True, "learning_rte": 1e-3}), encoding="utf-8")
    parser = HfArgumentParser(TrainingArguments)
    read = parser.parse_json_file if way == "json" else parser.parse_yaml_file
    with pytest.raises(ValueError, match="learning_rte"):
        read(path)
    (args,) = read(path, allow_extra_keys=True)
    assert args.output_dir == "out"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--lr_scheduler_type", "sometimes"], "cosine_with_restarts"),
        (["--learning_rate", "fast"], "--learning_rate"),
        (["--learning_rte", "1e-3"], "--learning_rte"),
    ],
)
def test_the_command_line_refuses_what_is_no_option_or_no_value_of_it(
    words: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, ValueError)) as error:
        parse("--output_dir", "out", "--use_cpu", *words)
    assert shown in capsys.readouterr().err + str(error.value)


@pytest.mark.parametrize("scope", ["last", "all", "avg", "last-5-avg", "last-10-avg"])
def test_the_scope_of_a_search_is_an_option(scope: str) -> None:
    assert parse("--output_dir", "out", "--use_cpu", "--ray_scope", scope).ray_scope == scope


def test_a_scope_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(ArgumentError, match=r"ray_scope='lst'.*'last-10-avg'"):
        parse("--output_dir", "out", "--use_cpu", "--ray_scope", "lst")


@dataclass
class ScriptArguments:
    """What a script adds of its own."""

    width: int = field(default=4, metadata={"help": "Width of the model."})
    debug_run: bool = False


def test_a_script_parses_its_own_arguments_beside_ours_and_keeps_the_rest() -> None:
    words = ["--width", "8", "--output_dir", "out", "--use_cpu", "--debug_run", "--verbose"]
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    script, args, rest = parser.parse_args_into_dataclasses(words, return_remaining_strings=True)
    assert (script.width, script.debug_run, args.output_dir, rest) == (8, True, "out", ["--verbose"])


def test_a_trainer_trains_as_its_command_line_says(tmp_path: Path) -> None:
    words = f"--output_dir {tmp_path} --use_cpu --max_steps 2 --optim sgd --save_strategy no --disable_tqdm true"
    args = parse(*words.split())
    made = line_trainer(tmp_path).with_arguments(**{name: getattr(args, name) for name in ("max_steps", "optim")})
    assert made.train().global_step == 2
    assert type(made.optimizer).__name__ == "SGD"


@pytest.mark.feature("P9")
def test_a_number_of_beams_is_a_whole_number_and_a_warm_up_may_be_a_share() -> None:
    args = hpsearch.Seq2SeqTrainingArguments("out", use_cpu=True, generation_num_beams=4, warmup_steps=0.25)
    assert type(args.replace(generation_num_beams=4.0).generation_num_beams) is int  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="generation_num_beams"):
        args.replace(generation_num_beams=True)
    assert args.warmup_steps == 0.25


@pytest.mark.feature("P10")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_options_of_the_command_line_begin_with_two_dashes() -> None:
    parser = transformers.HfArgumentParser(TrainingArguments)
    common = ["--output_dir", "out", "--use_cpu"]
    (args,) = parser.parse_args_into_dataclasses([*common, "--seed", "5"])
    assert args.seed == 5
    with pytest.raises((SystemExit, ValueError)):
        parser.parse_args_into_dataclasses([*common, "-seed", "5"])
