"""What docs/feature-table.md says of the training arguments and no other test shows, row by row."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PrinterCallback, ProgressCallback
from transformers.training_args import ParallelMode

from hpsearch import Trainer, TrainingArguments
from tests.support.models import (
    Line,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    line_data,
)
from tests.support.rows import Look, args_of, at_process, logged
from tests.support.small_training import make_trainer


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


@pytest.mark.feature(20, 103)
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


@pytest.mark.feature(23)
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


@pytest.mark.feature(22)
@pytest.mark.parametrize(("n_gpu", "expected"), [(0, (3, 5)), (1, (3, 5)), (4, (12, 20))])
def test_a_batch_is_as_large_as_those_of_all_gpus_of_one_process(n_gpu: int, expected: tuple[int, int]) -> None:
    assert (args_of().train_batch_size, args_of().eval_batch_size) == (8, 8)
    args = args_of(per_device_train_batch_size=3, per_device_eval_batch_size=5)
    args._n_gpu = n_gpu
    assert (args.train_batch_size, args.eval_batch_size) == expected


@pytest.mark.feature(24, "P15")
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


@pytest.mark.feature(25)
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


@pytest.mark.feature(26)
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


@pytest.mark.feature(28)
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


@pytest.mark.feature(28)
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


@pytest.mark.feature(29)
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


@pytest.mark.feature(29, "P12")
def test_the_levels_are_passive_and_warning_by_default() -> None:
    args = args_of()
    assert (args.log_level, args.log_level_replica, args.log_on_each_node) == ("passive", "warning", True)
    assert transformers.utils.logging.get_verbosity() == logging.WARNING
    assert args.get_process_log_level() == logging.WARNING


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


@pytest.mark.feature(31, "P12")
def test_the_first_step_is_logged_but_not_evaluated(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, logging_first_step=True, logging_steps=2, eval_strategy="steps", eval_steps=2, num_train_epochs=1
    )
    trainer.train()
    assert list(logged(trainer, "loss")) == [1, 2]
    assert list(logged(trainer, "eval_loss")) == [2, 3]


@pytest.mark.feature(34)
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


@pytest.mark.feature(36)
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


@pytest.mark.feature(36)
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


@pytest.mark.feature(43)
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


def question_answering() -> Any:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return transformers.BertForQuestionAnswering(config)


@pytest.mark.feature(46)
def test_labels_are_those_the_model_names_or_those_that_are_given(tmp_path: Path) -> None:
    spans = [{"input_ids": [1, 2, 3], "start_positions": 0, "end_positions": 1} for _ in range(4)]
    answering = make_trainer(tmp_path, model=question_answering(), eval_dataset=spans)
    output = answering.predict(spans)
    assert [each.shape for each in output.label_ids] == [(4,), (4,)]
    assert output.metrics["test_loss"] > 0
    assert make_trainer(tmp_path, model=Line()).predict(line_data(4)).label_ids.shape == (4,)


@pytest.mark.feature(46)
def test_without_label_names_there_is_no_loss_only_predictions(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Line(), label_names=[])
    output = trainer.predict([{"x": each["x"]} for each in line_data(4)])
    assert output.label_ids is None
    assert "test_loss" not in output.metrics
    assert output.predictions[0].shape == (4,)


@pytest.mark.feature(48, "P5")
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


@pytest.mark.feature(48)
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


@pytest.mark.feature(49, "P7")
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


@pytest.mark.feature(52)
def test_smoothing_leaves_out_the_labels_of_minus_100_and_shifts_those_of_a_language_model(tmp_path: Path) -> None:
    model = gpt2_language_model().eval()
    trainer = make_trainer(tmp_path, model=model, label_smoothing_factor=0.2)
    batch = trainer.data_collator(language_data(12))
    logits, labels = model(input_ids=batch["input_ids"]).logits[:, :-1], batch["labels"][:, 1:]
    kept = labels != -100
    assert 0 < kept.sum() < kept.numel()
    expected = torch.nn.functional.cross_entropy(logits[kept], labels[kept], label_smoothing=0.2)
    assert trainer.compute_loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.feature(56)
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
