"""What transformers' trainer refuses, ours refuses: no later, naming the argument, the value and what is allowed.

A checkpoint that cannot be resumed is an error that names the file; training never starts anew in silence.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pytest
import safetensors.torch
import torch
import transformers
from accelerate.state import AcceleratorState
from transformers import PrinterCallback, TrainerCallback
from transformers.trainer_pt_utils import AcceleratorConfig

from hpsearch import Trainer, TrainingArguments
from hpsearch.errors import ArgumentError, CheckpointError, InvalidInputError, MissingMetricError
from tests.support.models import Line, accuracy, bert_classifier, classification_data, line_data

BEST = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
BY_STEPS = {"eval_strategy": "steps", "save_strategy": "steps"}
# Values that transformers' TrainingArguments refuse, with what the message must name.
REFUSED_VALUES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"eval_strategy": "sometimes"}, ("eval_strategy", "sometimes", "epoch", "steps")),
    ({"logging_strategy": "sometimes"}, ("logging_strategy", "sometimes", "epoch", "steps")),
    ({"save_strategy": "sometimes"}, ("save_strategy", "sometimes", "best")),
    ({"hub_strategy": "sometimes"}, ("hub_strategy", "sometimes", "every_save")),
    ({"lr_scheduler_type": "lineer"}, ("lr_scheduler_type", "lineer", "linear", "cosine")),
    ({"optim": "adam_torch"}, ("optim", "adam_torch", "adamw_torch")),
    ({"debug": "overflow"}, ("debug", "overflow")),
    ({"eval_strategy": "steps", "logging_steps": 0, "logging_strategy": "no"}, ("eval_steps", "logging_steps")),
    ({"torch_empty_cache_steps": 0}, ("torch_empty_cache_steps", "0")),
    ({"torch_empty_cache_steps": 1.5}, ("torch_empty_cache_steps", "1.5")),
    ({"logging_steps": 0}, ("logging_steps",)),
    ({"logging_steps": 1.5}, ("logging_steps", "1.5", "integer")),
    ({"eval_strategy": "steps", "eval_steps": 2.5}, ("eval_steps", "2.5", "integer")),
    ({"save_strategy": "steps", "save_steps": 2.5}, ("save_steps", "2.5", "integer")),
    (BEST, ("load_best_model_at_end", "eval_strategy")),
    ({**BEST, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "epoch"}, ("load_best_model_at_end",)),
    ({**BEST, "eval_strategy": "epoch", "save_strategy": "no"}, ("load_best_model_at_end", "strategy")),
    ({**BEST, **BY_STEPS, "eval_steps": 4, "save_steps": 6}, ("load_best_model_at_end", "6", "4", "multiple")),
    ({**BEST, **BY_STEPS, "eval_steps": 0.2, "save_steps": 6}, ("eval_steps", "0.2", "save_steps", "6")),
    ({**BEST, **BY_STEPS, "eval_steps": 0.2, "save_steps": 0.3}, ("0.3", "0.2", "multiple")),
    ({"fp16": True, "bf16": True}, ("fp16", "bf16")),
    ({"fp16_full_eval": True, "bf16_full_eval": True}, ("fp16", "bf16", "full")),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, ("lr_scheduler_type", "reduce_lr_on_plateau", "eval")),
    ({"lr_scheduler_type": "greedy"}, ("lr_scheduler_type", "greedy", "eval")),
    ({"warmup_steps": -1}, ("warmup_steps", "-1", "0")),
    ({"dataloader_prefetch_factor": 2}, ("dataloader_prefetch_factor", "dataloader_num_workers")),
    ({"lr_scheduler_kwargs": "{broken"}, ("lr_scheduler_kwargs", "{broken")),
    ({"accelerator_config": {"splitbatches": True}}, ("splitbatches",)),
    ({"accelerator_config": AcceleratorConfig}, ("accelerator_config",)),
    ({"accelerator_config": "missing.json"}, ("missing.json",)),
    ({"fsdp": "all_shards"}, ("fsdp", "all_shards")),
    ({"learningrate": 0.1}, ("learningrate",)),
]
without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can do this")


def name_of(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={each}" for key, each in value.items())
    return ""


def refusal(make: Callable[[], Any]) -> Exception | None:
    try:
        make()
    except Exception as error:
        return error
    return None


def assert_names(error: BaseException, *words: str) -> None:
    """Assert that the message has every word, on its own and not as a part of a longer name."""
    for word in words:
        assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", str(error)), f"{word!r} is not in {str(error)!r}"


@pytest.mark.feature("P10")
@pytest.mark.parametrize(("changes", "words"), REFUSED_VALUES, ids=name_of)
def test_a_value_the_peer_refuses_is_refused_by_name(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    assert refusal(lambda: transformers.TrainingArguments("out", use_cpu=True, **changes)) is not None
    error = refusal(lambda: TrainingArguments("out", use_cpu=True, **changes))
    assert isinstance(error, (ValueError, TypeError, NotImplementedError, OSError)), error
    assert_names(error, *words)


@pytest.mark.parametrize(
    ("changes", "words"), [each for each in REFUSED_VALUES if "learningrate" not in each[0]], ids=name_of
)
def test_a_value_the_peer_refuses_cannot_be_put_in_by_replace(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError) as caught:
        TrainingArguments("out", use_cpu=True).replace(**changes)
    assert_names(caught.value, *changes)


@pytest.mark.feature(38)
@without_a_gpu
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bf16": True, "use_cpu": False}, ("bf16", "use_cpu")),
        ({"bf16_full_eval": True, "use_cpu": False}, ("bf16", "use_cpu")),
        ({"tf32": True}, ("tf32", "Ampere")),
    ],
    ids=name_of,
)
def test_a_precision_this_machine_does_not_have_is_refused(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    for kind in (transformers.TrainingArguments, TrainingArguments):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are checked below
            kind("out", **{"use_cpu": True, **changes})
        assert_names(caught.value, *words)


@without_a_gpu
@pytest.mark.parametrize("use_cpu", [True, False])
def test_what_the_refusal_of_fp16_on_a_cpu_advises_is_accepted(use_cpu: bool) -> None:
    with pytest.raises(ArgumentError, match="fp16=True needs a GPU") as caught:
        TrainingArguments("out", fp16=True, use_cpu=use_cpu)
    advised = dict.fromkeys(re.findall(r"(\w+)=True", str(caught.value).partition("on a CPU set")[2]), True)
    assert TrainingArguments("out", **advised).mixed_precision == "bf16"


def test_a_configured_accelerate_state_that_is_not_there_is_refused() -> None:
    for kind in (transformers.TrainingArguments, TrainingArguments):
        AcceleratorState._reset_state(reset_partial_state=True)
        with pytest.raises(ValueError, match="use_configured_state"):
            kind("out", use_cpu=True, accelerator_config={"use_configured_state": True})


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(line_data(16))


@dataclass(frozen=True)
class Script:
    """A script with a mistake in it, and what the message of its refusal must name."""

    words: tuple[str, ...]
    changes: dict[str, Any] = field(default_factory=dict)
    parts: Callable[[], dict[str, Any]] = dict
    expected: type[Exception] = InvalidInputError


def classifier(**parts: Any) -> dict[str, Any]:
    data = {"train_dataset": classification_data(16), "eval_dataset": classification_data(8, seed=1)}
    return {"model": bert_classifier(hidden=16), **data, **parts}


def some_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


EACH_EPOCH = {"eval_strategy": "epoch"}
# Scripts that transformers' Trainer refuses, in the constructor or while training.
REFUSED_SCRIPTS: dict[str, Script] = {
    "neither_model_nor_model_init": Script(("model", "model_init"), parts=lambda: {"model": None}),
    "both_model_and_model_init": Script(("model", "model_init", "both"), parts=lambda: {"model_init": Line}),
    "model_init_of_two_arguments": Script(
        ("model_init", "2"), parts=lambda: {"model": None, "model_init": lambda first, second: Line()}
    ),
    "model_init_that_returns_none": Script(
        ("model_init", "None"), parts=lambda: {"model": None, "model_init": lambda: None}
    ),
    "optimizer_and_model_init": Script(
        ("optimizers", "model_init"),
        parts=lambda: {"model": None, "model_init": Line, "optimizers": (some_optimizer(), None)},
    ),
    "schedule_and_model_init": Script(
        ("optimizers", "model_init"),
        parts=lambda: {
            "model": None,
            "model_init": Line,
            "optimizers": (None, torch.optim.lr_scheduler.ConstantLR(some_optimizer())),
        },
    ),
    "optimizer_and_optimizer_class": Script(
        ("optimizers", "optimizer_cls_and_kwargs"),
        parts=lambda: {
            "optimizers": (some_optimizer(), None),
            "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1}),
        },
    ),
    "evaluation_without_data": Script(
        ("eval_strategy", "epoch", "eval_dataset"), EACH_EPOCH, lambda: {"eval_dataset": None}
    ),
    "evaluation_on_start_without_data": Script(
        ("eval_dataset",), {"eval_on_start": True}, lambda: {"eval_dataset": None}
    ),
    "best_without_a_metric": Script(
        ("save_strategy", "best", "metric_for_best_model"), {**EACH_EPOCH, "save_strategy": "best"}
    ),
    "best_by_a_metric_that_is_not_there": Script(
        ("metric_for_best_model", "f1", "eval_f1", "eval_loss"),
        {**EACH_EPOCH, "save_strategy": "best", "metric_for_best_model": "f1"},
        expected=MissingMetricError,
    ),
    "plateau_of_a_metric_that_is_not_there": Script(
        ("metric_for_best_model", "f1", "eval_f1", "eval_loss"),
        {**EACH_EPOCH, "lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "f1"},
        expected=MissingMetricError,
    ),
    "metrics_by_batch_without_compute_result": Script(
        ("batch_eval_metrics", "compute_metrics", "compute_result"),
        {"batch_eval_metrics": True},
        lambda: classifier(compute_metrics=accuracy),
    ),
    "metrics_that_are_none": Script(
        ("compute_metrics", "None", "dict"), EACH_EPOCH, lambda: classifier(compute_metrics=lambda prediction: None)
    ),
    "metrics_that_are_a_number": Script(
        ("compute_metrics", "0.5", "float", "dict"),
        EACH_EPOCH,
        lambda: classifier(compute_metrics=lambda prediction: 0.5),
    ),
    "stream_without_max_steps": Script(("max_steps", "length"), parts=lambda: {"train_dataset": Stream()}),
    "no_training_data": Script(("train_dataset",), parts=lambda: {"train_dataset": None}),
    "empty_training_data": Script(("train_dataset",), parts=lambda: {"train_dataset": []}, expected=ValueError),
    "every_batch_dropped": Script(
        ("dataloader_drop_last",), {"dataloader_drop_last": True, "per_device_train_batch_size": 100}
    ),
    "no_column_of_a_table_used": Script(
        ("y", "x", "labels", "remove_unused_columns"),
        parts=lambda: {"train_dataset": datasets.Dataset.from_dict({"y": [1.0] * 8})},
    ),
    "no_key_of_the_samples_used": Script(
        ("x", "labels"), parts=lambda: {"train_dataset": [{"y": 1.0}] * 8}, expected=ValueError
    ),
    "lengths_that_cannot_be_told": Script(
        ("input_ids",), {"train_sampling_strategy": "group_by_length"}, expected=ValueError
    ),
    "collator_that_cannot_be_called": Script(("data_collator", "stack"), parts=lambda: {"data_collator": "stack"}),
    "callback_that_is_none": Script(("callback", "3"), parts=lambda: {"callbacks": [3]}),
    "model_without_a_loss": Script(
        ("loss", "predictions", "features", "labels"), parts=lambda: {"model": Line("no_loss")}
    ),
    "noise_for_a_model_without_embeddings": Script(
        ("neftune_noise_alpha", "Line", "get_input_embeddings"), {"neftune_noise_alpha": 5.0}
    ),
    "accumulation_set_twice": Script(
        ("gradient_accumulation_steps", "num_steps"),
        {
            "gradient_accumulation_steps": 2,
            "accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 4}},
        },
        expected=ValueError,
    ),
    "activation_checkpointing_of_a_plain_module": Script(
        ("activation_checkpointing", "Line"), {"activation_checkpointing": True}
    ),
    "schedule_argument_that_does_not_exist": Script(
        ("nope",), {"lr_scheduler_kwargs": {"nope": 1}}, expected=Exception
    ),
    "schedule_argument_that_is_missing": Script(
        ("num_decay_steps",), {"lr_scheduler_type": "warmup_stable_decay"}, expected=Exception
    ),
    "optimizer_argument_that_cannot_be_read": Script(
        ("optim_args", "momentum"), {"optim": "sgd", "optim_args": "momentum"}, expected=ValueError
    ),
    "optimizer_argument_that_does_not_exist": Script(
        ("lrr",), parts=lambda: {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lrr": 1})}, expected=Exception
    ),
    "optimizer_whose_package_is_missing": Script(("lomo_optim",), {"optim": "lomo"}, expected=ImportError),
    "learning_rate_below_zero": Script(("learning_rate", "-1.0"), {"learning_rate": -1.0}, expected=ValueError),
    "number_of_workers_below_zero": Script(
        ("dataloader_num_workers",), {"dataloader_num_workers": -1}, expected=ValueError
    ),
    "persistent_workers_without_workers": Script(
        ("dataloader_persistent_workers", "dataloader_num_workers"),
        {"dataloader_persistent_workers": True},
        expected=ValueError,
    ),
    "seed_below_zero": Script(("seed", "0"), {"seed": -1}, expected=ValueError),
    "log_level_that_does_not_exist": Script(("log_level", "loud"), {"log_level": "loud"}),
    "evaluation_data_that_is_text": Script(
        ("eval_dataset", "validation"), EACH_EPOCH, lambda: {"eval_dataset": "validation"}
    ),
    "optimizers_that_are_no_pair": Script(("optimizers",), parts=lambda: {"optimizers": some_optimizer()}),
    "model_that_is_a_name": Script(("model", "bert"), parts=lambda: {"model": "bert"}),
    "model_that_is_a_class": Script(("model", "Line"), parts=lambda: {"model": Line}),
    "early_stopping_without_a_metric": Script(
        ("metric_for_best_model",),
        EACH_EPOCH,
        lambda: {"callbacks": [transformers.EarlyStoppingCallback()]},
        expected=Exception,
    ),
}
STAGES = ("arguments", "constructor", "training")
# The constructor makes no model and draws no random number, so this shows when the run is built.
LATER_THAN_THE_PEER = {"model_init_that_returns_none"}


def run(kind: Any, folder: Path, script: Script) -> tuple[str, Exception | None]:
    """Run a script; return the stage it came to, and the error that ended it there."""
    arguments = transformers.TrainingArguments if kind is transformers.Trainer else TrainingArguments
    common: dict[str, Any] = {
        "num_train_epochs": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    data = {"model": Line(), "train_dataset": line_data(16), "eval_dataset": line_data(8, seed=1)}
    stage = 0
    try:
        args = arguments(str(folder), **copy.deepcopy({**common, **script.changes}))
        stage = 1
        trainer = kind(args=args, **{**data, **script.parts()})
        stage = 2
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    except Exception as error:
        return STAGES[stage], error
    return "end", None


@pytest.mark.parametrize("name", REFUSED_SCRIPTS)
def test_a_script_the_peer_refuses_is_refused_no_later_and_by_name(tmp_path: Path, name: str) -> None:
    script = REFUSED_SCRIPTS[name]
    if name == "optimizer_whose_package_is_missing" and transformers.utils.is_lomo_available():
        pytest.skip("the package is there")
    peer_stage, peer_error = run(transformers.Trainer, tmp_path, script)
    assert peer_error is not None
    our_stage, our_error = run(Trainer, tmp_path, script)
    assert isinstance(our_error, script.expected), our_error
    assert_names(our_error, *script.words)
    if name not in LATER_THAN_THE_PEER:
        assert STAGES.index(our_stage) <= STAGES.index(peer_stage)


# Scripts that transformers runs to the end, doing something else than what was asked for.
TAKEN_BY_THE_PEER: dict[str, Script] = {
    "sampling_that_does_not_exist": Script(
        ("train_sampling_strategy", "shuffled", "random", "sequential"), {"train_sampling_strategy": "shuffled"}
    ),
    "batch_of_nothing": Script(
        ("per_device_eval_batch_size", "0", "1"), {"per_device_eval_batch_size": 0}, expected=ArgumentError
    ),
}


@pytest.mark.parametrize("name", TAKEN_BY_THE_PEER)
def test_a_script_the_peer_takes_in_silence_is_refused_by_name(tmp_path: Path, name: str) -> None:
    script = TAKEN_BY_THE_PEER[name]
    assert run(transformers.Trainer, tmp_path, script) == ("end", None)
    _, error = run(Trainer, tmp_path, script)
    assert isinstance(error, script.expected), error
    assert_names(error, *script.words)


def test_a_tracker_that_does_not_exist_is_refused_with_the_arguments_where_the_peer_refuses_in_the_constructor(
    tmp_path: Path,
) -> None:
    script = Script(("report_to", "tensorbord", "tensorboard", "mlflow"), {"report_to": "tensorbord"})
    stage, error = run(transformers.Trainer, tmp_path, script)
    assert (stage, type(error)) == ("constructor", ValueError)
    stage, error = run(Trainer, tmp_path, script)
    assert (stage, type(error)) == ("arguments", ArgumentError)
    assert error is not None
    assert_names(error, *script.words)


def test_a_stream_grouped_by_length_is_trained_on_in_its_order_as_the_peer_does(tmp_path: Path) -> None:
    script = Script(
        (), {"train_sampling_strategy": "group_by_length", "max_steps": 3}, lambda: {"train_dataset": Stream()}
    )
    assert run(transformers.Trainer, tmp_path, script) == run(Trainer, tmp_path, script) == ("end", None)


# Checkpoints.


class CountSteps(TrainerCallback):
    """Counts the updates that began."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1


def make_trainer(folder: Path, *callbacks: Any, model: Any = None, **changes: Any) -> Trainer:
    """24 sentences in batches of 8: three updates an epoch."""
    values = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2, "use_cpu": True, **changes}
    trainer = Trainer(
        model=bert_classifier(hidden=16) if model is None else model,
        args=TrainingArguments(str(folder), disable_tqdm=True, **values),
        train_dataset=classification_data(24),
        eval_dataset=classification_data(8, seed=1),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


@pytest.fixture(scope="module")
def whole_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    make_trainer(folder).train()
    return folder / "checkpoint-2"


@pytest.fixture
def checkpoint(whole_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a checkpoint inside an epoch, to be damaged."""
    return Path(shutil.copytree(whole_checkpoint, tmp_path / "checkpoint-2"))


def assert_refused(checkpoint: Path, *words: str, **changes: Any) -> None:
    """Assert that resuming is an error that names `words`, that no update began, and that nothing was written."""
    count = CountSteps()
    before = sorted(checkpoint.parent.iterdir())
    with pytest.raises(CheckpointError) as caught:
        make_trainer(checkpoint.parent, count, **changes).train(resume_from_checkpoint=True)
    assert count.steps == 0
    assert sorted(checkpoint.parent.iterdir()) == before
    assert_names(caught.value, checkpoint.name, *words)


RESUMED_FROM = (
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "run_state.json",
)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "cut_by_one_byte": lambda whole: whole.rstrip(b"\n")[:-1],
    "empty": lambda whole: b"",
    "overwritten": lambda whole: b"\x00other" * 30,
}


def test_an_undamaged_checkpoint_is_resumed(checkpoint: Path) -> None:
    count = CountSteps()
    assert make_trainer(checkpoint.parent, count).train(resume_from_checkpoint=True).global_step == 6
    assert count.steps == 4


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", RESUMED_FROM)
def test_a_damaged_file_is_an_error_that_names_it_and_says_what_to_do(checkpoint: Path, file: str, damage: str) -> None:
    (checkpoint / file).write_bytes(DAMAGES[damage]((checkpoint / file).read_bytes()))
    assert_refused(checkpoint, file, "damaged", "another")


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])
def test_a_missing_file_is_an_error_that_names_it(checkpoint: Path, file: str) -> None:
    (checkpoint / file).unlink()
    assert_refused(checkpoint, file, "missing")


def test_missing_weights_are_an_error_that_names_the_file(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert_refused(checkpoint, "model.safetensors")


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("trainer_state.json", {"global_step": "two"}),
        ("trainer_state.json", {"written_by": "another version"}),
        ("run_state.json", {"position": {"epoch": 1}}),
        ("run_state.json", {"position": {"epoch": 0, "batches": 2, "epoch_finished": False, "samples": 1}}),
        ("run_state.json", {"loss": {"sum": 1.0}}),
    ],
    ids=name_of,
)
def test_a_state_with_other_fields_is_an_error_that_names_the_file(
    checkpoint: Path, file: str, changes: dict[str, Any]
) -> None:
    values = json.loads((checkpoint / file).read_text())
    (checkpoint / file).write_text(json.dumps({**values, **changes}))
    assert_refused(checkpoint, file)


@pytest.mark.parametrize("file", ["trainer_state.json", "run_state.json"])
def test_a_state_that_is_a_list_is_an_error_that_names_the_file(checkpoint: Path, file: str) -> None:
    (checkpoint / file).write_text("[]")
    assert_refused(checkpoint, file)


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
@pytest.mark.parametrize("content", [{"other": 1}, [1, 2]], ids=["a_dict", "a_list"])
def test_a_file_that_holds_something_else_is_an_error_that_names_it(checkpoint: Path, file: str, content: Any) -> None:
    torch.save(content, checkpoint / file)
    assert_refused(checkpoint, file)


@pytest.mark.parametrize("optim", ["sgd", "adafactor", "adagrad"])
def test_the_state_of_another_optimizer_is_refused_before_the_first_update(checkpoint: Path, optim: str) -> None:
    assert_refused(checkpoint, "optimizer.pt", optim=optim)


def test_the_state_of_an_optimizer_of_other_parameter_groups_is_refused(checkpoint: Path) -> None:
    torch.save(some_optimizer().state_dict(), checkpoint / "optimizer.pt")
    assert_refused(checkpoint, "optimizer.pt")


def leave_one_out(weights: dict[str, torch.Tensor]) -> None:
    del weights["classifier.weight"]


def add_one(weights: dict[str, torch.Tensor]) -> None:
    weights["classifier.scale"] = torch.ones(1)


def change_a_shape(weights: dict[str, torch.Tensor]) -> None:
    weights["classifier.weight"] = torch.zeros(3, 16)


@pytest.mark.parametrize("change", [leave_one_out, add_one, change_a_shape])
def test_weights_that_do_not_fit_the_model_are_refused_naming_the_one(
    checkpoint: Path, change: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    weights = safetensors.torch.load_file(checkpoint / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    assert_refused(checkpoint, "classifier.scale" if change is add_one else "classifier.weight")


@pytest.mark.parametrize("other", [Line, lambda: bert_classifier(hidden=16, layers=2)], ids=["plain", "deeper"])
def test_a_checkpoint_of_another_model_is_refused_before_the_first_update(
    checkpoint: Path, other: Callable[[], Any]
) -> None:
    assert_refused(checkpoint, "another model", model=other())


def test_a_file_is_not_a_checkpoint_folder(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        make_trainer(checkpoint.parent).train(resume_from_checkpoint=str(checkpoint / "optimizer.pt"))
