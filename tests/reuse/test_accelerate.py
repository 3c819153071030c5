"""accelerate around our trainer: the example configurations, and a training started from a notebook (rows 120, 121)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate import notebook_launcher
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

from hpsearch.training.acceleration import make_accelerator
from tests.support.line_trainer import line_trainer, logged
from tests.support.small_training import args_of

FOLDER = Path(__file__).parents[2] / "studies" / "accelerate"
CONFIGURATIONS = {
    "cpu_two_processes": DistributedType.MULTI_GPU,
    "fsdp": DistributedType.FSDP,
    "deepspeed_zero2": DistributedType.DEEPSPEED,
}


def path_of(name: str) -> str:
    return str(FOLDER / f"{name}.yaml")


def launch_arguments(name: str, *more: str) -> Any:
    """What `accelerate launch` makes of a configuration, just before it starts the processes."""
    words = ["--config_file", path_of(name), "--num_cpu_threads_per_process", "1", *more, "script.py"]
    return _validate_launch_command(launch_command_parser().parse_args(words))[0]


def test_every_example_configuration_is_tested_here() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(CONFIGURATIONS)


@pytest.mark.feature(121)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_accelerate_reads_an_example_configuration(name: str) -> None:
    config = load_config_from_file(path_of(name))
    assert isinstance(config, ClusterConfig)
    assert (config.distributed_type, config.num_processes, config.num_machines) == (CONFIGURATIONS[name], 2, 1)


@pytest.mark.feature(121)
@pytest.mark.parametrize("name", ["fsdp", "deepspeed_zero2"])
def test_every_setting_of_a_plugin_is_one_that_accelerate_launch_knows(name: str) -> None:
    settings = next(value for value in yaml.safe_load(Path(path_of(name)).read_text()).values() if type(value) is dict)
    known = vars(launch_command_parser().parse_args(["script.py"]))
    assert [each for each in settings if each not in known] == []


@pytest.mark.feature(120)
def test_the_configuration_for_two_cpu_processes_starts_two_on_the_cpu() -> None:
    args = launch_arguments("cpu_two_processes")
    assert (args.multi_gpu, args.use_cpu, args.num_processes) == (True, True, 2)
    assert prepare_multi_gpu_env(args)["ACCELERATE_MIXED_PRECISION"] == "no"


@pytest.mark.feature(51)
def test_the_configuration_for_fsdp_makes_its_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    args = launch_arguments("fsdp")
    for name, value in prepare_multi_gpu_env(args).items():
        if name.startswith("FSDP_") or name.startswith("ACCELERATE_"):
            monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.auto_wrap_policy is not None


def test_the_configuration_for_deepspeed_asks_for_its_second_stage() -> None:
    args = launch_arguments("deepspeed_zero2")
    assert (args.use_deepspeed, args.zero_stage, args.gradient_clipping) == (True, 2, 1.0)


def test_what_is_given_on_the_command_line_wins_over_the_file() -> None:
    assert launch_arguments("cpu_two_processes", "--num_processes", "4").num_processes == 4


@pytest.mark.feature(121)
def test_a_training_started_with_the_notebook_launcher_is_that_of_a_plain_call(tmp_path: Path) -> None:
    histories: list[Any] = []

    def train(folder: str) -> None:
        trainer = line_trainer(tmp_path / folder)
        trainer.train()
        histories.append(logged(trainer, "loss"))

    before = dict(os.environ)
    notebook_launcher(train, ("launched",), num_processes=1)
    assert dict(os.environ) == before
    train("called")
    assert len(histories) == 2
    assert histories[0] == histories[1]


@pytest.mark.feature(119, "P6")
@pytest.mark.parametrize(
    ("changes", "finds_unused", "bucket"),
    [
        ({}, True, 25),
        ({"activation_checkpointing": True}, False, 25),
        ({"activation_checkpointing": True, "ddp_find_unused_parameters": True}, True, 25),
        ({"ddp_find_unused_parameters": False, "ddp_bucket_cap_mb": 7}, False, 7),
    ],
)
def test_distributed_training_is_told_about_unused_parameters_and_buckets(
    changes: dict[str, Any], finds_unused: bool, bucket: int
) -> None:
    handler = make_accelerator(args_of(**changes)).ddp_handler
    assert (handler.find_unused_parameters, handler.bucket_cap_mb) == (finds_unused, bucket)
