"""What docs/feature-table.md says of single rows and no other test shows, in the order of the table."""

from __future__ import annotations

import contextlib
import importlib.machinery
import inspect
import json
import logging
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import safetensors.torch
import torch
import transformers
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import EvalLoopOutput, get_last_checkpoint
from transformers.training_args import ParallelMode

import hpsearch
from hpsearch import Float, MissingPackageError, Trainer, TrainingArguments
from hpsearch.backends import get_backend
from hpsearch.errors import ArgumentError
from hpsearch.training.acceleration import make_accelerator
from hpsearch.training.batches import start_epoch
from tests.models import (
    Line,
    accuracy,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    line_data,
)
from tests.search.small_trainer import CountsModels, small_trainer


def args_of(**values: Any) -> TrainingArguments:
    return TrainingArguments("out", **{"use_cpu": True, **values})


def make_trainer(folder: Path, kind: type = Trainer, **changes: Any) -> Any:
    """24 points in batches of 8: 3 updates. What the constructor takes goes there, the rest into the arguments."""
    accepted = inspect.signature(Trainer.__init__).parameters
    parts = {name: changes.pop(name) for name in list(changes) if name in accepted}
    values: dict[str, Any] = {
        "learning_rate": 0.05,
        "num_train_epochs": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    if "model" not in parts:
        parts.setdefault("model_init", Line)
    parts = {"train_dataset": line_data(), "eval_dataset": line_data(10, seed=1), **parts}
    trainer = kind(args=TrainingArguments(str(folder), **values), **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def logged(trainer: Any, name: str) -> dict[int, float]:
    """The values of one name in the log history, by step."""
    return {entry["step"]: entry[name] for entry in trainer.state.log_history if name in entry}


class Look(TrainerCallback):
    """Calls a function with the model and the other keyword arguments of one event."""

    def __init__(self, event: str, look: Any) -> None:
        setattr(self, event, lambda args, state, control, **kwargs: look(args=args, state=state, **kwargs))


# A. Hyperparameter search.


def test_a_search_takes_the_documented_arguments_in_their_order_and_runs_twenty_trials_by_default() -> None:
    parameters = inspect.signature(Trainer.hyperparameter_search).parameters
    documented = ["hp_space", "compute_objective", "n_trials", "direction", "backend", "hp_name"]
    assert list(parameters)[1:7] == documented
    assert parameters["n_trials"].default == 20
    theirs = inspect.signature(transformers.Trainer.hyperparameter_search).parameters
    assert list(theirs)[1:7] == documented


def test_without_the_package_of_a_backend_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.machinery.PathFinder.find_spec
    hidden = staticmethod(lambda name, *rest: None if name == "optuna" else found(name, *rest))
    monkeypatch.delitem(sys.modules, "optuna")
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", hidden)
    for name in (None, "optuna"):
        with pytest.raises(MissingPackageError, match="pip install optuna"):
            get_backend(name, {})


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


def test_a_trial_of_optuna_is_trained_with_its_values(tmp_path: Path) -> None:
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1)
    trainer = small_trainer(tmp_path, model_init=(init := CountsModels()))
    trainer.train(trial=trial)
    assert trainer.optimizer.param_groups[0]["initial_lr"] == rate
    assert trainer.state.trial_params == {"learning_rate": rate}
    assert init.trials == [trial]


# B. Training arguments.


def test_the_output_folder_is_optional_and_a_tilde_in_it_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert TrainingArguments(use_cpu=True).output_dir == "trainer_output"
    trainer = make_trainer(Path("~/runs"), save_strategy="epoch")
    trainer.train()
    trainer.save_model()
    assert {path.name for path in (tmp_path / "runs").iterdir()} >= {"checkpoint-3", "model.safetensors"}


def test_the_arguments_that_are_for_scripts_change_nothing_in_the_trainer(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, do_train=False, do_predict=False, resume_from_checkpoint="nowhere")
    assert trainer.train().global_step == 3
    assert trainer.evaluate()["eval_loss"] > 0
    assert len(trainer.predict(line_data(4)).label_ids) == 4


@pytest.mark.parametrize(("strategy", "evaluates"), [("no", False), ("epoch", True), ("steps", True)])
def test_a_strategy_of_evaluation_switches_do_eval_on_but_not_do_predict(strategy: str, evaluates: bool) -> None:
    args = args_of(eval_strategy=strategy)
    assert (args.do_eval, args.do_predict) == (evaluates, False)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, []),
        ({"eval_strategy": "no", "eval_steps": 1}, []),
        ({"eval_strategy": "epoch"}, [3, 6, 9]),
        ({"eval_strategy": "steps", "eval_steps": 4}, [4, 8, 9]),
        ({"eval_strategy": "steps", "logging_steps": 5}, [5, 9]),
        ({"eval_strategy": "steps", "eval_steps": 0.3}, [3, 6, 9]),
        ({"eval_strategy": "epoch", "eval_delay": 2}, [6, 9]),
        ({"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 5}, [6, 8, 9]),
        ({"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 3}, [2, 3]),
    ],
)
def test_evaluations_come_at_the_steps_the_strategy_names_and_at_the_last(
    tmp_path: Path, changes: dict[str, Any], steps: list[int]
) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=3, **changes)
    trainer.train()
    assert list(logged(trainer, "eval_loss")) == steps


def test_steps_are_updates_whatever_they_accumulate(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        num_train_epochs=2,
    )
    assert trainer.train().global_step == 6
    assert list(logged(trainer, "loss")) == [1, 2, 3, 4, 5, 6]
    assert list(logged(trainer, "eval_loss")) == [2, 4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


@pytest.mark.parametrize(("n_gpu", "expected"), [(0, (3, 5)), (1, (3, 5)), (4, (12, 20))])
def test_a_batch_is_as_large_as_those_of_all_gpus_of_one_process(n_gpu: int, expected: tuple[int, int]) -> None:
    assert (args_of().train_batch_size, args_of().eval_batch_size) == (8, 8)
    args = args_of(per_device_train_batch_size=3, per_device_eval_batch_size=5)
    args._n_gpu = n_gpu
    assert (args.train_batch_size, args.eval_batch_size) == expected


def test_the_optimizer_has_the_documented_defaults_and_those_that_are_given(tmp_path: Path) -> None:
    plain = Trainer(Line(), args_of())
    plain.create_optimizer()
    assert type(plain.optimizer) is torch.optim.AdamW
    for group in plain.optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (5e-5, (0.9, 0.999), 1e-8)
        assert group["weight_decay"] == 0.0
    given = {"learning_rate": 0.1, "adam_beta1": 0.5, "adam_beta2": 0.6, "adam_epsilon": 1e-3, "weight_decay": 0.25}
    own = Trainer(Line(), args_of(**given))
    own.create_optimizer()
    weights, biases = own.optimizer.param_groups
    assert (weights["lr"], weights["betas"], weights["eps"]) == (0.1, (0.5, 0.6), 1e-3)
    assert (weights["weight_decay"], biases["weight_decay"]) == (0.25, 0.0)


@pytest.mark.parametrize("limit", [1.0, 0.01, 0.0])
def test_gradients_are_clipped_to_their_norm_before_the_update_and_logged_as_they_were(
    tmp_path: Path, limit: float
) -> None:
    norms: list[float] = []

    def note(model: Any, **_: Any) -> None:
        norms.append(float(torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])))

    before = make_trainer(tmp_path, max_grad_norm=0.0, max_steps=1)
    before.train()
    trainer = make_trainer(tmp_path, max_grad_norm=limit, max_steps=1, callbacks=[Look("on_pre_optimizer_step", note)])
    trainer.train()
    unclipped = logged(before, "grad_norm")[1]
    assert unclipped > 1.0
    assert logged(trainer, "grad_norm")[1] == pytest.approx(unclipped)
    assert norms == [pytest.approx(limit or unclipped, rel=1e-4)]


@pytest.mark.parametrize(
    ("changes", "steps", "epoch"),
    [
        ({}, 9, 3.0),
        ({"num_train_epochs": 1.5}, 5, 5 / 3),
        ({"num_train_epochs": 0.1}, 1, 1 / 3),
        ({"num_train_epochs": 1, "max_steps": 7}, 7, 7 / 3),
        ({"num_train_epochs": 50, "max_steps": 2}, 2, 2 / 3),
    ],
)
def test_training_is_as_long_as_epochs_say_unless_max_steps_does(
    tmp_path: Path, changes: dict[str, Any], steps: int, epoch: float
) -> None:
    trainer = make_trainer(tmp_path, **{"num_train_epochs": args_of().num_train_epochs, **changes})
    assert trainer.train().global_step == trainer.state.max_steps == steps
    assert trainer.state.epoch == pytest.approx(epoch)


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"warmup_steps": 7}, 7),
        ({"warmup_steps": 0.1}, 11),
        ({"warmup_steps": 0.101}, 11),
        ({"warmup_ratio": 0.1}, 11),
        ({"warmup_ratio": 0.1, "warmup_steps": 7}, 7),
    ],
)
@pytest.mark.filterwarnings("ignore:warmup_ratio:DeprecationWarning")
def test_warm_up_is_a_number_of_steps_or_a_rounded_up_share_of_them_and_the_number_wins(
    changes: dict[str, Any], count: int
) -> None:
    assert args_of(**changes).get_warmup_steps(105) == count


def test_the_learning_rate_rises_in_a_straight_line_and_falls_to_nothing(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=2, warmup_steps=0.5, learning_rate=0.3)
    trainer.train()
    assert list(logged(trainer, "learning_rate").values()) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.2, 0.1])
    assert trainer.lr_scheduler.get_last_lr()[0] == 0.0


@pytest.fixture
def levels_put_back() -> Iterator[None]:
    ours, theirs = logging.getLogger("hpsearch"), transformers.utils.logging.get_verbosity()
    level = ours.level
    yield
    ours.setLevel(level)
    transformers.utils.logging.set_verbosity(theirs)


@pytest.mark.usefixtures("levels_put_back")
@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("debug", logging.DEBUG),
        ("info", logging.INFO),
        ("warning", logging.WARNING),
        ("error", logging.ERROR),
        ("critical", logging.CRITICAL),
    ],
)
def test_the_main_process_speaks_at_the_level_of_log_level(tmp_path: Path, name: str, level: int) -> None:
    trainer = make_trainer(tmp_path, log_level=name)
    assert trainer.args.get_process_log_level() == level
    assert trainer.state.global_step == 0  # the first look builds the run
    assert transformers.utils.logging.get_verbosity() == level
    assert logging.getLogger("hpsearch").level == level


def at_process(monkeypatch: pytest.MonkeyPatch, process_index: int, local_process_index: int) -> None:
    """Give all arguments the place of a process among several that are not there."""
    monkeypatch.setattr(TrainingArguments, "process_index", process_index)
    monkeypatch.setattr(TrainingArguments, "local_process_index", local_process_index)


def test_the_levels_are_passive_and_warning_by_default() -> None:
    args = args_of()
    assert (args.log_level, args.log_level_replica, args.log_on_each_node) == ("passive", "warning", True)
    assert transformers.utils.logging.get_verbosity() == logging.WARNING
    assert args.get_process_log_level() == logging.WARNING


def test_tensorboard_writes_below_the_output_folder_under_time_and_host(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    make_trainer(tmp_path, report_to="tensorboard", max_steps=1).train()
    (file,) = tmp_path.rglob("events.out.*")
    assert file.parent.parent == tmp_path / "runs"
    assert file.parent.name.endswith(f"_{socket.gethostname()}")


def test_strategies_and_trackers_have_the_documented_defaults() -> None:
    args = args_of()
    assert (args.logging_strategy.value, args.logging_steps, args.logging_first_step) == ("steps", 500, False)
    assert (args.save_strategy.value, args.save_steps, args.save_total_limit) == ("steps", 500, None)
    assert args.report_to == []
    assert args.optim == "adamw_torch_fused"
    assert args.lr_scheduler_type.value == "linear"


def test_the_first_step_is_logged_but_not_evaluated(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, logging_first_step=True, logging_steps=2, eval_strategy="steps", eval_steps=2, num_train_epochs=1
    )
    trainer.train()
    assert list(logged(trainer, "loss")) == [1, 2]
    assert list(logged(trainer, "eval_loss")) == [2, 3]


@pytest.mark.parametrize(
    ("on_each_node", "place", "saves"),
    [(False, (0, 0), True), (False, (2, 0), False), (True, (2, 0), True), (True, (3, 1), False)],
)
def test_the_main_process_of_all_nodes_saves_or_that_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_each_node: bool, place: tuple[int, int], saves: bool
) -> None:
    trainer = make_trainer(tmp_path, save_strategy="epoch", save_on_each_node=on_each_node)
    at_process(monkeypatch, *place)
    trainer.train()
    files = {path.name for path in (tmp_path / "checkpoint-3").glob("*")}
    assert {"model.safetensors", "trainer_state.json"} <= files if saves else files == set()


def batches_of(trainer: Any) -> torch.Tensor:
    return torch.cat([batch["x"] for batch in trainer.get_train_dataloader()])


def test_the_order_of_the_data_follows_data_seed_and_the_weights_follow_seed(tmp_path: Path) -> None:
    trainers = {
        (seed, data_seed): make_trainer(tmp_path, seed=seed, data_seed=data_seed)
        for seed, data_seed in ((1, 5), (2, 5), (1, 6), (5, None))
    }
    orders = {key: batches_of(each) for key, each in trainers.items()}
    weights = {key: each.model.linear.weight for key, each in trainers.items()}
    assert torch.equal(orders[1, 5], orders[2, 5])
    assert not torch.equal(orders[1, 5], orders[1, 6])
    assert torch.equal(weights[1, 5], weights[1, 6])
    assert not torch.equal(weights[1, 5], weights[2, 5])


def test_full_determinism_allows_deterministic_algorithms_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("FLASH_ATTENTION_DETERMINISTIC", "")
    seen: list[bool] = []

    def note(**_: Any) -> None:
        seen.append(torch.are_deterministic_algorithms_enabled())

    try:
        for full in (False, True):
            trainer = make_trainer(
                tmp_path, full_determinism=full, max_steps=1, callbacks=[Look("on_step_begin", note)]
            )
            trainer.train()
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [False, True]


def test_on_a_cpu_there_is_one_process_and_no_gpu_and_the_timeout_is_that_of_the_arguments() -> None:
    args = args_of(ddp_timeout=60)
    assert (args.device.type, args.n_gpu, args.world_size) == ("cpu", 0, 1)
    assert (args.process_index, args.local_process_index, args.local_rank) == (0, 0, -1)
    assert args.parallel_mode is ParallelMode.NOT_PARALLEL
    assert args.ddp_timeout_delta == timedelta(seconds=60)
    assert args_of().ddp_timeout == 1800


def test_several_gpus_in_one_process_without_a_launcher_are_data_parallel() -> None:
    args = args_of()
    args._n_gpu = 2
    assert args.parallel_mode is ParallelMode.NOT_DISTRIBUTED


def test_the_loader_follows_its_arguments(tmp_path: Path) -> None:
    plain = make_trainer(tmp_path).get_train_dataloader()
    assert (plain.drop_last, plain.num_workers, plain.batch_size) == (False, 0, 8)
    assert TrainingArguments.__dataclass_fields__["dataloader_pin_memory"].default is True
    dropping = make_trainer(
        tmp_path,
        per_device_train_batch_size=7,
        per_device_eval_batch_size=4,
        dataloader_drop_last=True,
        dataloader_num_workers=2,
        dataloader_prefetch_factor=3,
    )
    loader = dropping.get_train_dataloader()
    assert (loader.drop_last, loader.num_workers, loader.prefetch_factor, len(loader)) == (True, 2, 3, 3)
    assert len(dropping.get_eval_dataloader()) == 2


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


def test_a_run_has_a_name_where_one_is_given() -> None:
    assert args_of().run_name is None
    assert args_of(run_name="mine").run_name == "mine"


def question_answering() -> Any:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return transformers.BertForQuestionAnswering(config)


def test_labels_are_those_the_model_names_or_those_that_are_given(tmp_path: Path) -> None:
    spans = [{"input_ids": [1, 2, 3], "start_positions": 0, "end_positions": 1} for _ in range(4)]
    answering = make_trainer(tmp_path, model=question_answering(), eval_dataset=spans)
    output = answering.predict(spans)
    assert [each.shape for each in output.label_ids] == [(4,), (4,)]
    assert output.metrics["test_loss"] > 0
    assert make_trainer(tmp_path, model=Line()).predict(line_data(4)).label_ids.shape == (4,)


def test_without_label_names_there_is_no_loss_only_predictions(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Line(), label_names=[])
    output = trainer.predict([{"x": each["x"]} for each in line_data(4)])
    assert output.label_ids is None
    assert "test_loss" not in output.metrics
    assert output.predictions[0].shape == (4,)


@pytest.mark.parametrize(
    ("metric", "greater"),
    [
        ("loss", False),
        ("eval_loss", False),
        ("eval_data1_loss", False),
        ("my_loss", False),
        ("accuracy", True),
        ("eval_accuracy", True),
        ("loss_ratio", True),
    ],
)
def test_a_metric_whose_name_ends_in_loss_is_better_when_smaller_and_any_other_when_greater(
    metric: str, greater: bool
) -> None:
    assert args_of(metric_for_best_model=metric).greater_is_better is greater
    assert args_of(metric_for_best_model=metric, greater_is_better=not greater).greater_is_better is not greater


def test_the_best_model_is_by_default_the_one_of_least_loss_and_may_be_named_with_or_without_prefix(
    tmp_path: Path,
) -> None:
    both = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    args = args_of(load_best_model_at_end=True, **both)
    assert (args.metric_for_best_model, args.greater_is_better) == ("loss", False)
    best = []
    for name in ("match", "eval_match"):
        course = iter((0.3, 0.9, 0.1))
        trainer = make_trainer(
            tmp_path / name,
            compute_metrics=lambda prediction, course=course: {"match": next(course)},
            metric_for_best_model=name,
            num_train_epochs=3,
            **both,
        )
        trainer.train()
        best.append((trainer.state.best_metric, trainer.state.best_global_step))
    assert best == [(0.9, 6), (0.9, 6)]


@pytest.mark.parametrize("ignored", [False, True])
def test_a_resumed_run_goes_on_behind_the_data_it_has_seen_unless_it_is_told_not_to(
    tmp_path: Path, ignored: bool
) -> None:
    seen: list[torch.Tensor] = []

    class Notes(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            seen.append(inputs["x"])
            return super().training_step(model, inputs, num_items_in_batch)

    changes = {"train_sampling_strategy": "sequential", "save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, Notes, **changes).train()
    whole = list(seen)
    seen.clear()
    resumed = make_trainer(tmp_path, Notes, ignore_data_skip=ignored, **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert torch.equal(seen[0], whole[0 if ignored else 1])


def test_smoothing_leaves_out_the_labels_of_minus_100_and_shifts_those_of_a_language_model(tmp_path: Path) -> None:
    model = gpt2_language_model().eval()
    trainer = make_trainer(tmp_path, model=model, label_smoothing_factor=0.2)
    batch = trainer.data_collator(language_data(12))
    logits, labels = model(input_ids=batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:]
    kept = labels != -100
    assert 0 < kept.sum() < kept.numel()
    expected = torch.nn.functional.cross_entropy(logits[kept], labels[kept], label_smoothing=0.2)
    assert trainer.compute_loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def test_activations_are_computed_again_in_the_backward_pass_and_give_the_same_loss(tmp_path: Path) -> None:
    calls: list[str] = []

    def model_init() -> Any:
        model = bert_classifier(hidden=16, layers=2, dropout=0.0)
        model.bert.encoder.layer[0].attention.self.register_forward_hook(lambda *_: calls.append("forward"))
        return model

    results = []
    for recompute in (False, True):
        calls.clear()
        trainer = make_trainer(
            tmp_path,
            model_init=model_init,
            train_dataset=classification_data(8),
            activation_checkpointing=recompute,
        )
        trainer.train()
        results.append((len(calls), trainer.state.log_history[0]["loss"]))
    assert [count for count, _ in results] == [1, 2]
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-6)


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


# C. The trainer: construction and attributes.


def test_the_constructor_takes_what_the_peers_takes_in_the_same_order() -> None:
    ours, theirs = (
        [
            name
            for name, each in inspect.signature(kind.__init__).parameters.items()
            if each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        for kind in (Trainer, transformers.Trainer)
    )
    assert ours == theirs


@pytest.mark.parametrize("kind", [None, "model"])
def test_an_argument_the_constructor_does_not_have_is_an_error(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(TypeError, match="callback"):
        Trainer(Line(), callback=[TrainerCallback()])  # type: ignore[call-arg]
    for name in ("distributed", "device"):
        with pytest.raises((TypeError, AttributeError), match=name):
            TrainingArguments(str(tmp_path), **{name: kind})


class Countdown(IterableDataset):
    """A stream that shuffles by its generator, or by the epoch it is told."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.randperm(16, generator=self.generator).tolist())


class ToldEpochs(IterableDataset):
    """A stream that keeps the epochs it is told."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(line_data(16))


def test_a_stream_is_told_the_epoch(tmp_path: Path) -> None:
    stream = ToldEpochs()
    make_trainer(tmp_path, train_dataset=stream, max_steps=5).train()
    assert list(dict.fromkeys(stream.epochs)) == [0, 1, 2]


def test_the_generator_of_a_stream_is_seeded_anew_each_epoch_so_that_processes_share_one_order() -> None:
    def shares(epoch: int) -> list[list[int]]:
        received = []
        for process in (0, 1):
            loader = prepare_data_loader(
                DataLoader(Countdown(), batch_size=4), num_processes=2, process_index=process, put_on_device=False
            )
            received.append([int(each) for batch in start_epoch(loader, epoch) for each in batch])
        return received

    first, second = shares(0), shares(1)
    for each in (first, second):
        assert sorted(each[0] + each[1]) == list(range(16))
    assert first != second


class Wrapper(torch.nn.Module):
    """What a distributed wrapper looks like from outside."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Any) -> Any:
        return self.module(**inputs)


def test_the_wrapped_model_is_what_trains_and_the_core_model_is_what_is_saved(tmp_path: Path) -> None:
    trained_with: list[Any] = []

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            trained_with.append(model)
            return super().compute_loss(model, inputs, return_outputs)

    def wrap(model: Any, **_: Any) -> None:
        trainer.model_wrapped = Wrapper(model)

    trainer = make_trainer(tmp_path, Own, callbacks=[Look("on_train_begin", wrap)])
    trainer.train()
    assert type(trained_with[0]) is Wrapper
    assert trained_with[0].module is trainer.model
    assert type(trainer.model) is Line
    trainer.save_model()
    assert set(safetensors.torch.load_file(tmp_path / "model.safetensors")) == {"linear.weight", "linear.bias"}


def test_a_model_argument_called_label_needs_a_collator_that_keeps_the_name(tmp_path: Path) -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = Line()

        def forward(self, x: torch.Tensor, label: torch.Tensor | None = None) -> Any:
            return self.line(x, label)

    data = [{"x": each["x"], "label": each["labels"].item()} for each in line_data()]
    parts: dict[str, Any] = {"model_init": Named, "train_dataset": data, "eval_dataset": data, "label_names": ["label"]}
    with pytest.raises(TypeError, match="labels"):
        make_trainer(tmp_path, **parts).train()

    def keep_names(samples: list[Any]) -> dict[str, torch.Tensor]:
        return {name: torch.stack([torch.as_tensor(each[name]) for each in samples]) for name in samples[0]}

    trainer = make_trainer(tmp_path, data_collator=keep_names, **parts)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


def test_input_ids_may_be_numbers_with_a_fraction_where_the_model_takes_them(tmp_path: Path) -> None:
    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
            logits = self.linear(input_ids).squeeze(-1)
            return (torch.nn.functional.mse_loss(logits, labels), logits)

    data = [{"input_ids": each["x"], "labels": each["labels"]} for each in line_data()]
    trainer = make_trainer(tmp_path, model_init=Dense, train_dataset=data, eval_dataset=data)
    trainer.train()
    losses = list(logged(trainer, "loss").values())
    assert trainer.evaluate()["eval_loss"] < losses[0]


# D. The training loop.


@pytest.mark.parametrize("given", [None, False])
def test_training_returns_its_steps_its_loss_and_its_speed(tmp_path: Path, given: Any) -> None:
    output = make_trainer(tmp_path).train(resume_from_checkpoint=given)
    steps, loss, metrics = output
    assert (output.global_step, output.training_loss, output.metrics) == (steps, loss, metrics)
    assert steps == 3
    assert set(metrics) == {
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
        "total_flos",
        "train_loss",
        "epoch",
    }
    assert metrics["train_loss"] == loss
    ratio = metrics["train_samples_per_second"] / metrics["train_steps_per_second"]
    assert ratio == pytest.approx(24 / 3, rel=0.05)


def test_the_training_loss_is_the_mean_over_all_updates(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=2)
    loss = trainer.train().training_loss
    assert loss == pytest.approx(sum(logged(trainer, "loss").values()) / 6, rel=1e-5)


def test_keys_to_ignore_reach_the_evaluations_during_training(tmp_path: Path) -> None:
    counts: list[int] = []

    class Widely(Line):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            return {**super().forward(x, labels), "features": x}

    def metrics(prediction: Any) -> dict[str, float]:
        counts.append(len(prediction.predictions) if isinstance(prediction.predictions, tuple) else 1)
        return {}

    trainer = make_trainer(tmp_path, model_init=Widely, compute_metrics=metrics, eval_strategy="epoch")
    trainer.train()
    trainer.train(ignore_keys_for_eval=["features"])
    assert counts == [2, 1]


def test_a_training_step_trains_in_the_context_of_the_loss_and_returns_it_detached(tmp_path: Path) -> None:
    entered: list[bool] = []

    class Own(Trainer):
        def compute_loss_context_manager(self) -> Any:
            @contextlib.contextmanager
            def noting() -> Iterator[None]:
                entered.append(True)
                yield

            return noting()

    trainer = make_trainer(tmp_path, Own, model=Line())
    trainer.model.eval()
    batch = trainer.data_collator(line_data(4))
    expected = trainer.model(**batch)["loss"]
    expected.backward()
    gradient = trainer.model.linear.weight.grad.clone()
    trainer.model.zero_grad()
    loss = trainer.training_step(trainer.model, batch)
    assert loss.item() == pytest.approx(expected.item())
    assert loss.requires_grad is False
    assert trainer.model.training is True
    assert entered == [True]
    torch.testing.assert_close(trainer.model.linear.weight.grad, gradient)
    with trainer.autocast_smart_context_manager():
        assert torch.is_autocast_enabled("cpu") is False


@pytest.mark.parametrize("take", ["get", "pop"])
def test_an_override_of_the_loss_may_look_at_the_labels_or_take_them_out(tmp_path: Path, take: str) -> None:
    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            labels = getattr(inputs, take)("labels")
            outputs = model(**inputs)
            loss = torch.nn.functional.mse_loss(outputs["predictions"], labels)
            return (loss, outputs) if return_outputs else loss

    own, plain = make_trainer(tmp_path, Own, eval_strategy="epoch"), make_trainer(tmp_path, eval_strategy="epoch")
    own.train()
    plain.train()
    assert logged(own, "loss") == pytest.approx(logged(plain, "loss"))
    assert logged(own, "eval_loss") == pytest.approx(logged(plain, "eval_loss"))


def test_operations_are_six_for_every_token_and_weight_outside_the_embeddings(tmp_path: Path) -> None:
    data = classification_data(16, length=12)
    trainer = make_trainer(tmp_path, model_init=bert_classifier, train_dataset=data)
    trainer.train()
    weights = trainer.model.num_parameters(exclude_embeddings=True)
    assert trainer.state.total_flos == 6 * 16 * 12 * weights
    assert trainer.floating_point_ops({"input_ids": torch.zeros(2, 5)}) == 6 * 10 * weights


def test_a_model_that_counts_its_operations_is_asked(tmp_path: Path) -> None:
    class Counts(Line):
        def floating_point_ops(self, inputs: Any) -> int:
            return 1000

    trainer = make_trainer(tmp_path, model_init=Counts)
    trainer.train()
    assert trainer.state.total_flos == 3000


def test_data_without_a_length_are_loaded_in_their_order_and_without_a_sampler(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_dataset=ToldEpochs(), max_steps=1)
    loader = trainer.get_train_dataloader()
    received = torch.cat([batch["x"] for batch in loader])
    assert torch.equal(received, torch.stack([each["x"] for each in line_data(16)]))
    with pytest.raises(ValueError, match="train_dataset"):
        make_trainer(tmp_path, train_dataset=None).get_train_dataloader()


def test_loaders_of_evaluation_and_test_take_any_dataset_and_drop_what_the_model_does_not_take(tmp_path: Path) -> None:
    sets = {"dev": line_data(6, extra=1), "other": line_data(7)}
    trainer = make_trainer(tmp_path, model=Line(), eval_dataset=sets)
    given = line_data(5, extra=1)
    loaders = [trainer.get_eval_dataloader(given), trainer.get_test_dataloader(given)]
    for loader in loaders:
        (batch,) = loader
        assert set(batch) == {"x", "labels"}
        assert trainer.num_examples(loader) == 5
    assert isinstance(loaders[1].sampler, SequentialSampler)
    assert trainer.num_examples(trainer.get_eval_dataloader("dev")) == 6
    assert trainer.num_examples(trainer.get_eval_dataloader("other")) == 7


def test_the_optimizer_of_some_arguments_can_be_asked_for(tmp_path: Path) -> None:
    kind, kwargs = Trainer.get_optimizer_cls_and_kwargs(args_of(optim="sgd", optim_args="momentum=0.5"))
    assert kind is torch.optim.SGD
    assert (kwargs["lr"], float(kwargs["momentum"])) == (5e-5, 0.5)
    trainer = make_trainer(tmp_path, model=Line())
    own = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    schedule = trainer.create_scheduler(10, optimizer=own)
    assert schedule.optimizer is own
    both = make_trainer(tmp_path, model=Line())
    both.create_optimizer_and_scheduler(10)
    assert both.lr_scheduler.optimizer is both.optimizer


# E. Evaluation, prediction, metrics.


def test_the_keys_of_an_evaluation_are_loss_metrics_speed_and_epoch(tmp_path: Path) -> None:
    seen: list[Any] = []

    def note(metrics: Any, **_: Any) -> None:
        seen.append(metrics)

    trainer = make_trainer(tmp_path, model=Line(), callbacks=[Look("on_evaluate", note)])
    metrics = trainer.evaluate()
    speed = {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}
    assert set(metrics) == {"eval_loss", *speed, "epoch"}
    assert seen == [metrics]
    trainer.compute_metrics = lambda prediction: {"one": 1.0}
    assert set(trainer.evaluate()) == {"eval_loss", "eval_one", *speed, "epoch"}


@pytest.mark.parametrize("loss_only", [False, True])
def test_an_evaluation_loop_returns_predictions_labels_metrics_and_how_many(tmp_path: Path, loss_only: bool) -> None:
    data = classification_data(11)
    trainer = make_trainer(tmp_path, model=bert_classifier(hidden=16), compute_metrics=accuracy)
    loader = trainer.get_eval_dataloader(data)
    output = trainer.evaluation_loop(loader, "Some set", prediction_loss_only=loss_only, metric_key_prefix="some")
    assert isinstance(output, EvalLoopOutput)
    assert output.num_samples == 11
    assert output.metrics["some_loss"] > 0
    assert trainer.model.training is False
    if loss_only:
        assert (output.predictions, output.label_ids) == (None, None)
    else:
        assert output.predictions.shape == (11, 2)
        assert output.label_ids.tolist() == [each["labels"] for each in data]
        expected = (output.predictions.argmax(-1) == output.label_ids).mean()
        assert output.metrics["some_accuracy"] == pytest.approx(expected)


def test_a_prediction_has_metrics_under_its_prefix_and_is_announced(tmp_path: Path) -> None:
    seen: list[Any] = []

    def note(metrics: Any, **_: Any) -> None:
        seen.append(metrics)

    trainer = make_trainer(
        tmp_path,
        model=bert_classifier(hidden=16),
        compute_metrics=accuracy,
        callbacks=[Look("on_predict", note)],
    )
    predictions, labels, metrics = trainer.predict(classification_data(5), metric_key_prefix="last")
    assert (predictions.shape, labels.shape) == ((5, 2), (5,))
    assert set(metrics) == {
        "last_loss",
        "last_accuracy",
        "last_runtime",
        "last_samples_per_second",
        "last_steps_per_second",
    }
    assert seen == [metrics]
    assert trainer.state.log_history == []


def test_a_prediction_step_leaves_out_what_the_configuration_ignores(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=gpt2_language_model(), use_cache=True)
    model, batch = trainer.model.eval(), trainer.data_collator(language_data(2))
    loss, logits, labels = trainer.prediction_step(model, batch, prediction_loss_only=False)
    assert "past_key_values" in model.config.keys_to_ignore_at_inference
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (2, 12, 100)
    assert torch.equal(labels, batch["labels"])
    assert (loss.requires_grad, logits.requires_grad) == (False, False)
    _, everything, _ = trainer.prediction_step(model, batch, prediction_loss_only=False, ignore_keys=[])
    assert isinstance(everything, tuple)
    assert torch.equal(everything[0], logits)
    assert trainer.prediction_step(model, batch, prediction_loss_only=True)[1:] == (None, None)


def test_metrics_are_shown_in_megabytes_hours_and_four_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path)
    values = {
        "init_mem_cpu_alloc_delta": 3 * 2**20,
        "train_runtime": 3725.25,
        "total_flos": 3 * 2**30,
        "loss": 1 / 3,
        "n": 7,
    }
    trainer.log_metrics("train", values)
    shown = dict(line.replace(" ", "").split("=") for line in capsys.readouterr().out.strip().splitlines()[1:])
    assert shown == {
        "init_mem_cpu_alloc_delta": "3MB",
        "train_runtime": "1:02:05.25",
        "total_flos": "3GF",
        "loss": "0.3333",
        "n": "7",
    }


def test_only_the_main_process_shows_and_writes_metrics_state_and_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path / "out", model=Line())
    assert trainer.is_local_process_zero()
    assert trainer.is_world_process_zero()

    def write() -> None:
        trainer.log_metrics("eval", {"eval_loss": 1.0})
        trainer.save_metrics("eval", {"eval_loss": 1.0})
        trainer.save_state()
        trainer.save_model()

    with monkeypatch.context() as patched:
        at_process(patched, 1, 1)
        write()
        assert (trainer.is_local_process_zero(), trainer.is_world_process_zero()) == (False, False)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "out").exists()
    write()
    assert "eval_loss" in capsys.readouterr().out
    expected = {"all_results.json", "eval_results.json", "trainer_state.json", "model.safetensors", "training_args.bin"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected


# F. Checkpoints.


def test_a_checkpoint_is_named_by_its_step_and_holds_optimizer_schedule_streams_and_state(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_strategy="epoch").train()
    (folder,) = tmp_path.iterdir()
    assert folder.name == "checkpoint-3"
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "training_args.bin",
        "run_state.json",
    }
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    assert all(float(each["exp_avg"].abs().sum()) > 0 for each in state["state"].values())


def test_the_newest_checkpoint_is_the_one_of_the_highest_number_and_can_be_loaded_to_predict(tmp_path: Path) -> None:
    assert get_last_checkpoint(str(tmp_path)) is None
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=1, num_train_epochs=4)
    trainer.train()
    expected = trainer.predict(line_data(4)).predictions
    newest = get_last_checkpoint(str(tmp_path))
    assert newest == str(tmp_path / "checkpoint-12")
    other = make_trainer(tmp_path, model=Line())
    assert not np.array_equal(other.predict(line_data(4)).predictions, expected)
    other.load_weights(newest)
    np.testing.assert_array_equal(other.predict(line_data(4)).predictions, expected)
    steps: list[int] = []
    look = Look("on_step_end", lambda state, **_: steps.append(state.global_step))
    make_trainer(tmp_path, num_train_epochs=5, callbacks=[look]).train(resume_from_checkpoint=True)
    assert steps == [13, 14, 15]


# G. Callbacks.


def test_a_second_callback_of_one_class_is_added_and_warned_of(tmp_path: Path) -> None:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    transformers.utils.logging.add_handler(handler)
    try:
        trainer = make_trainer(tmp_path, callbacks=[TrainerCallback, TrainerCallback])
        count = sum(type(each) is TrainerCallback for each in trainer.callback_handler.callbacks)
        assert count == 2
        assert any("already" in message for message in heard)
        heard.clear()
        without_flow = make_trainer(tmp_path)
        without_flow.remove_callback(hpsearch.DefaultFlowCallback)
        assert without_flow.state.global_step == 0
        assert any("DefaultFlowCallback" in message for message in heard)
    finally:
        transformers.utils.logging.remove_handler(handler)


def test_the_bar_moves_by_the_updates_made_and_evaluations_have_their_own(tmp_path: Path) -> None:
    moves: list[tuple[int, int]] = []

    def note(state: Any, **_: Any) -> None:
        bar = progress.training_bar
        moves.append((state.global_step, bar.n))

    progress = ProgressCallback()
    total: list[Any] = []
    trainer = make_trainer(
        tmp_path,
        disable_tqdm=True,
        eval_strategy="epoch",
        gradient_accumulation_steps=2,
        callbacks=[
            progress,
            Look("on_step_end", note),
            Look("on_prediction_step", lambda **_: total.append(progress.prediction_bar.total)),
        ],
    )
    trainer.train()
    assert moves == [(1, 1), (2, 2)]
    assert total == [2, 2]
    assert (progress.training_bar, progress.prediction_bar) == (None, None)


def test_a_fresh_state_and_control_have_the_documented_fields() -> None:
    state = TrainerState()
    documented = {
        "epoch",
        "global_step",
        "max_steps",
        "num_train_epochs",
        "total_flos",
        "log_history",
        "best_metric",
        "best_model_checkpoint",
        "is_local_process_zero",
        "is_world_process_zero",
        "is_hyper_param_search",
        "trial_name",
        "trial_params",
    }
    assert documented <= set(vars(state))
    assert (state.global_step, state.log_history, state.is_hyper_param_search) == (0, [], False)
    assert hpsearch.TrainerState is TrainerState
    assert hpsearch.TrainerControl is TrainerControl
    assert vars(TrainerControl()) == {
        "should_training_stop": False,
        "should_epoch_stop": False,
        "should_save": False,
        "should_evaluate": False,
        "should_log": False,
    }


def test_the_best_checkpoint_in_the_state_is_text(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_strategy="epoch", save_strategy="epoch", metric_for_best_model="loss")
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-3")


# J. Devices and distribution.


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


# Contradictions between the documents.


def test_a_number_of_beams_is_a_whole_number_and_a_warm_up_may_be_a_share() -> None:
    args = hpsearch.Seq2SeqTrainingArguments("out", use_cpu=True, generation_num_beams=4, warmup_steps=0.25)
    assert type(args.replace(generation_num_beams=4.0).generation_num_beams) is int  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="generation_num_beams"):
        args.replace(generation_num_beams=True)
    assert args.warmup_steps == 0.25


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_options_of_the_command_line_begin_with_two_dashes() -> None:
    parser = transformers.HfArgumentParser(TrainingArguments)
    common = ["--output_dir", "out", "--use_cpu"]
    (args,) = parser.parse_args_into_dataclasses([*common, "--seed", "5"])
    assert args.seed == 5
    with pytest.raises((SystemExit, ValueError)):
        parser.parse_args_into_dataclasses([*common, "-seed", "5"])


def test_hard_restarts_are_counted_and_one_by_default(tmp_path: Path) -> None:
    rates = []
    for kind, kwargs in (("cosine", None), ("cosine_with_restarts", None), ("cosine_with_restarts", {"num_cycles": 2})):
        trainer = make_trainer(
            tmp_path, num_train_epochs=2, lr_scheduler_type=kind, lr_scheduler_kwargs=kwargs, learning_rate=1.0
        )
        trainer.train()
        rates.append(list(logged(trainer, "learning_rate").values()))
    assert rates[0] == pytest.approx(rates[1])
    assert rates[2][3] == pytest.approx(1.0)
