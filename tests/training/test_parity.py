"""Our trainer does what transformers' trainer does: one script, run by both on CPU, gives the same run.

The same run is: the same events in the same order at the same steps, the same log lines, the same results, and the same
files with the same contents in every checkpoint, up to the timings.
"""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from transformers import TrainerCallback, TrainerState
from transformers.trainer_pt_utils import safe_globals

from hpsearch import Trainer
from tests.support.models import (
    Line,
    PlainClassifier,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    line_data,
    small_tokenizer,
)
from tests.support.parity import (
    STEPS,
    Script,
    Stream,
    assert_same_numbers,
    make_trainer,
    ragged,
    without_timings,
)

SHARED_ARGUMENTS = {each.name for each in fields(transformers.TrainingArguments)} - {"output_dir"}
EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_")]


class Recorder(TrainerCallback):
    """Keeps every event with the step, the epoch, the control flags, and what the model was like just then."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.weights: list[float] = []


def _recording(event: str) -> Any:
    def record(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        flags = sorted(name for name, is_on in vars(control).items() if is_on)
        parameter = next(kwargs["model"].parameters())
        has_gradient = parameter.grad is not None
        self.events.append((event, state.global_step, state.epoch, has_gradient, kwargs["model"].training, *flags))
        self.weights.append(parameter.detach().double().norm().item())

    return record


for _event in EVENTS:
    setattr(Recorder, _event, _recording(_event))


@dataclass
class Outcome:
    """What a script left behind."""

    trainer: Any
    folder: Path
    recorder: Recorder
    output: Any
    final: dict[str, float]

    @property
    def checkpoints(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def run(kind: Any, folder: Path, script: Script) -> Outcome:
    recorder = Recorder()
    trainer = make_trainer(kind, folder, script, recorder)
    output = trainer.train()
    return Outcome(trainer, folder, recorder, output, trainer.evaluate())


def run_both(tmp_path: Path, script: Script) -> tuple[Outcome, Outcome]:
    """Return what the script does with transformers' trainer, and with ours."""
    return run(transformers.Trainer, tmp_path / "peer", script), run(Trainer, tmp_path / "ours", script)


def assert_same_run(peer: Outcome, ours: Outcome) -> None:
    assert ours.recorder.events == peer.recorder.events
    assert ours.recorder.weights == pytest.approx(peer.recorder.weights, rel=1e-5, nan_ok=True)
    assert_same_numbers(ours.trainer.state.log_history, peer.trainer.state.log_history)
    assert_same_numbers([ours.final], [peer.final])
    assert ours.output.global_step == peer.output.global_step
    assert ours.output.training_loss == pytest.approx(peer.output.training_loss, rel=1e-5, nan_ok=True)
    assert_same_numbers([ours.output.metrics], [peer.output.metrics])
    assert [path.name for path in ours.checkpoints] == [path.name for path in peer.checkpoints]
    for our_folder, peer_folder in zip(ours.checkpoints, peer.checkpoints, strict=True):
        assert files_in(our_folder) == files_in(peer_folder) | {"run_state.json"}
    if peer.checkpoints:
        assert_same_contents(ours.checkpoints[-1], peer.checkpoints[-1])


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def assert_same_contents(ours: Path, peer: Path) -> None:
    """Compare the files of two checkpoints: tensors, optimizer, schedule, random streams, arguments and state.

    The streams of a run that ended inside an epoch differ on purpose: ours are those before its last evaluation, with
    which the epoch can be gone on with exactly.
    """
    state = state_in(peer)
    ended_inside_an_epoch = state["global_step"] == state["max_steps"] and state["epoch"] % 1 > 0
    for name in files_in(peer) - ({"rng_state.pth"} if ended_inside_an_epoch else set()):
        if name.endswith(".safetensors"):
            ours_read, peer_read = (safetensors.torch.load_file(folder / name) for folder in (ours, peer))
        elif name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            with safe_globals():
                ours_read, peer_read = (torch.load(folder / name, weights_only=True) for folder in (ours, peer))
            ours_read = {key: value for key, value in ours_read.items() if key != "epoch_start"}
        elif name == "training_args.bin":
            ours_read, peer_read = (arguments_in(folder / name) for folder in (ours, peer))
        elif name == "trainer_state.json":
            ours_read, peer_read = (state_in(folder) for folder in (ours, peer))
        elif name.endswith(".json"):
            ours_read, peer_read = (json.loads((folder / name).read_text()) for folder in (ours, peer))
        else:
            raise AssertionError(f"{name} is a file this test does not know.")
        assert_equal(ours_read, peer_read, name)


def arguments_in(path: Path) -> dict[str, Any]:
    """Read the arguments that both trainers have, but for the folder and what the peer overwrites for accelerate."""
    values = torch.load(path, weights_only=False).to_dict()
    values["accelerator_config"].pop("gradient_accumulation_kwargs")
    return {name: value for name, value in values.items() if name in SHARED_ARGUMENTS}


def state_in(folder: Path) -> dict[str, Any]:
    state = vars(TrainerState.load_from_json(str(folder / "trainer_state.json"))).copy()
    state["log_history"] = [without_timings(entry) for entry in state["log_history"]]
    state["best_model_checkpoint"] = state["best_model_checkpoint"] and Path(state["best_model_checkpoint"]).name
    return state


def assert_equal(received: Any, expected: Any, place: str) -> None:
    """Assert that two nested values are the same; numbers up to 1e-5, their types and everything else exactly."""
    assert type(received) is type(expected), place
    if isinstance(expected, dict):
        assert list(received) == list(expected), place
        for key, value in expected.items():
            assert_equal(received[key], value, f"{place}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(received) == len(expected), place
        for index, (ours, peer) in enumerate(zip(received, expected, strict=True)):
            assert_equal(ours, peer, f"{place}[{index}]")
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            received, expected, rtol=1e-5, atol=1e-8, equal_nan=True, msg=lambda m: f"{place} {m}"
        )
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(received, expected, err_msg=place)
    elif isinstance(expected, float):
        assert received == pytest.approx(expected, rel=1e-5, nan_ok=True), place
    else:
        assert received == expected, place


# What both trainers are given: optimizers, schedules, precision, lengths, strategies, losses, data, evaluation.

OPTIMIZERS: dict[str, Script] = {
    "adamw": Script({"optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-4}),
    "adamw_fused": Script({"optim": "adamw_torch_fused", "weight_decay": 0.3}),
    "weight_decay_of_a_transformer": Script({"weight_decay": 0.3}, "classification"),
    "sgd": Script({"optim": "sgd"}),
    "sgd_with_momentum": Script({"optim": "sgd", "optim_args": "momentum=0.9,nesterov=true,weight_decay=0.1"}),
    "adagrad": Script({"optim": "adagrad"}),
    "adagrad_with_arguments": Script({"optim": "adagrad", "optim_args": "lr_decay=0.1,eps=1e-3"}),
    "rmsprop": Script({"optim": "rmsprop"}),
    "rmsprop_with_arguments": Script({"optim": "rmsprop", "optim_args": "alpha=0.9,momentum=0.5"}),
    "adafactor": Script({"optim": "adafactor"}, "classification"),
    "optimizer_class": Script(
        parts=lambda: {"optimizer_cls_and_kwargs": (torch.optim.NAdam, {"lr": 0.02, "momentum_decay": 0.01})}
    ),
    "optimizer_made_by_the_caller": Script(parts=lambda: own_optimizer(with_schedule=False)),
    "optimizer_and_schedule_made_by_the_caller": Script(parts=lambda: own_optimizer(with_schedule=True)),
    "tight_clipping": Script({"max_grad_norm": 0.05}, "classification"),
    "no_clipping": Script({"max_grad_norm": 0.0}, "classification"),
}


def own_optimizer(with_schedule: bool) -> dict[str, Any]:
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3) if with_schedule else None
    return {"model": model, "optimizers": (optimizer, schedule)}


def scripts(changes: dict[str, dict[str, Any]]) -> dict[str, Script]:
    return {name: Script(each) for name, each in changes.items()}


SCHEDULES = scripts(
    {
        "linear_with_warm_up": {"warmup_steps": 3},
        "warm_up_ratio": {"warmup_steps": 0.3},
        "cosine": {"lr_scheduler_type": "cosine", "warmup_steps": 2},
        "cosine_with_restarts": {
            "lr_scheduler_type": "cosine_with_restarts",
            "lr_scheduler_kwargs": {"num_cycles": 3},
        },
        "polynomial": {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0, "lr_end": 1e-5}},
        "constant": {"lr_scheduler_type": "constant"},
        "constant_with_warmup": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 4},
        "inverse_sqrt": {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 2},
        "inverse_sqrt_with_arguments": {"lr_scheduler_type": "inverse_sqrt", "lr_scheduler_kwargs": {"timescale": 5}},
        "cosine_with_min_lr": {
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr": 1e-3},
            "warmup_steps": 2,
        },
        "cosine_warmup_with_min_lr": {
            "lr_scheduler_type": "cosine_warmup_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2},
            "warmup_steps": 3,
        },
        "warmup_stable_decay": {
            "lr_scheduler_type": "warmup_stable_decay",
            "lr_scheduler_kwargs": {"num_decay_steps": 4},
            "warmup_steps": 2,
        },
        "reduce_on_plateau": {
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "threshold": 0.9, "factor": 0.5},
            "num_train_epochs": 4,
        },
        "reduce_on_plateau_of_the_best_metric": {
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "mode": "max", "threshold": 0.9},
            "metric_for_best_model": "loss",
            "eval_strategy": "steps",
            "eval_steps": 2,
            "eval_on_start": True,
        },
        "greedy": {"lr_scheduler_type": "greedy", "lr_scheduler_kwargs": {"patience": 1}, "num_train_epochs": 4},
    }
)
PRECISION: dict[str, Script] = {
    "bf16": Script({"bf16": True}, "classification"),
    "bf16_of_a_language_model": Script({"bf16": True, "gradient_accumulation_steps": 2}, "language"),
    "bf16_of_a_plain_module": Script({"bf16": True}),
    "bf16_of_a_tuple": Script({"bf16": True}, parts=lambda: {"model": Line("tuple")}),
    "activation_checkpointing": Script({"activation_checkpointing": True}, "classification"),
    "activation_checkpointing_with_arguments": Script(
        {
            "activation_checkpointing": True,
            "activation_checkpointing_kwargs": {"use_reentrant": False, "every_n_layers": 2},
        },
        "language",
    ),
    "empty_cache": Script({"torch_empty_cache_steps": 2}),
    "noisy_embeddings": Script({"neftune_noise_alpha": 5.0}, "language"),
    "noisy_embeddings_of_a_classifier": Script({"neftune_noise_alpha": 5.0}, "classification"),
    "full_determinism_is_off_but_another_seed": Script({"seed": 7, "data_seed": 3}, "classification"),
}
LENGTHS: dict[str, Script] = {
    "plain_module": Script(),
    "classifier": Script(task="classification"),
    "language_model": Script(task="language"),
    "model_init": Script(parts=lambda: {"model": None, "model_init": Line}),
    "model_init_of_a_transformer": Script(
        task="classification",
        parts=lambda: {"model": None, "model_init": lambda trial=None: without_cache(bert_classifier(hidden=16))},
    ),
    "accumulation": Script({"gradient_accumulation_steps": 2}),
    "accumulation_with_a_leftover": Script({"gradient_accumulation_steps": 4}),
    "accumulation_of_a_classifier": Script({"gradient_accumulation_steps": 4}, "classification"),
    "accumulation_of_a_language_model": Script({"gradient_accumulation_steps": 4}, "language"),
    "accumulation_set_for_accelerate": Script(
        {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 3}}}
    ),
    "accumulation_of_more_than_an_epoch": Script({"gradient_accumulation_steps": 9}),
    "short_last_batch_dropped": Script({"dataloader_drop_last": True}),
    "fractional_epochs": Script({"num_train_epochs": 1.6}),
    "less_than_an_epoch": Script({"num_train_epochs": 0.4}),
    "max_steps_inside_an_epoch": Script({"max_steps": 4}),
    "max_steps_over_epochs": Script({"max_steps": 15}),
    "tokens_counted": Script({"include_num_input_tokens_seen": "all"}, "classification"),
    "tokens_counted_without_padding": Script(
        {"include_num_input_tokens_seen": "non_padding", "gradient_accumulation_steps": 4},
        "classification",
        lambda: ragged(),
    ),
    "max_steps_and_accumulation": Script({"max_steps": 5, "gradient_accumulation_steps": 4}),
}


def without_cache(model: Any) -> Any:
    """Set what transformers sets only in the model of the constructor, and not in the one that `train()` makes anew."""
    model.config.use_cache = False
    return model


BEST = {"load_best_model_at_end": True, "learning_rate": 0.8, "num_train_epochs": 4}
STRATEGIES = scripts(
    {
        "nothing": {"logging_strategy": "no", "eval_strategy": "no", "save_strategy": "no"},
        "logging_by_epoch": {"logging_strategy": "epoch", "num_train_epochs": 2.5},
        "logging_the_first_step": {"logging_first_step": True, "logging_steps": 5},
        "logging_every_few_steps": {"logging_steps": 5},
        "by_steps": {**STEPS, "eval_steps": 4, "save_steps": 5, "logging_steps": 3},
        "by_steps_that_follow_logging": {"eval_strategy": "steps", "logging_steps": 5},
        "by_ratios_of_all_steps": {**STEPS, "eval_steps": 0.25, "save_steps": 0.5, "logging_steps": 0.2},
        "evaluation_after_a_delay_in_epochs": {"eval_delay": 2, "num_train_epochs": 3},
        "evaluation_after_a_delay_in_steps": {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 5},
        "evaluation_on_start": {"eval_on_start": True},
        "evaluation_on_start_by_steps": {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 5},
        "saving_by_steps_evaluating_by_epoch": {"save_strategy": "steps", "save_steps": 4},
        "saving_the_best": {"save_strategy": "best", "metric_for_best_model": "loss", "learning_rate": 0.8},
        "saving_only_the_model": {"save_only_model": True},
        "keeping_one": {"save_total_limit": 1, "num_train_epochs": 3},
        "keeping_two_by_steps": {**STEPS, "save_steps": 2, "eval_steps": 3, "save_total_limit": 2},
        "loading_the_best": BEST,
        "loading_the_best_and_keeping_one": {**BEST, "save_total_limit": 1},
        "loading_the_best_and_keeping_two": {**BEST, "save_total_limit": 2},
        "loading_the_best_of_only_models": {**BEST, "save_only_model": True},
        "loading_the_best_by_steps": {**BEST, **STEPS, "eval_steps": 2, "save_steps": 4},
        "loading_the_best_by_ratios": {**BEST, **STEPS, "eval_steps": 0.1, "save_steps": 0.2},
        "loading_the_best_saved": {**BEST, "save_strategy": "best", "metric_for_best_model": "eval_loss"},
        "loading_the_best_of_the_greatest": {**BEST, "greater_is_better": True},
    }
)


def half_labels_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    logits = outputs["logits"]
    losses = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="sum"
    )
    return losses / (2 * (labels.numel() if num_items_in_batch is None else num_items_in_batch))


LOSSES: dict[str, Script] = {
    "label_smoothing": Script({"label_smoothing_factor": 0.2}, "classification"),
    "label_smoothing_and_accumulation": Script(
        {"label_smoothing_factor": 0.2, "gradient_accumulation_steps": 4}, "classification"
    ),
    "label_smoothing_of_a_language_model": Script({"label_smoothing_factor": 0.2}, "language"),
    "label_smoothing_of_a_language_model_and_accumulation": Script(
        {"label_smoothing_factor": 0.2, "gradient_accumulation_steps": 2}, "language"
    ),
    "loss_function": Script(task="classification", parts=lambda: {"compute_loss_func": half_labels_loss}),
    "loss_function_and_accumulation": Script(
        {"gradient_accumulation_steps": 4}, "language", lambda: {"compute_loss_func": half_labels_loss}
    ),
    "loss_function_of_a_language_model_wins_over_smoothing": Script(
        {"label_smoothing_factor": 0.2}, "language", lambda: {"compute_loss_func": half_labels_loss}
    ),
    "tokens_not_averaged": Script(
        {"average_tokens_across_devices": False, "gradient_accumulation_steps": 2}, "language"
    ),
    "tuple_of_a_plain_module": Script({"gradient_accumulation_steps": 2}, parts=lambda: {"model": Line("tuple")}),
    "losses_that_are_no_numbers": Script({"logging_steps": 2}, parts=lambda: {"train_dataset": broken_points()}),
    "losses_that_are_no_numbers_shown": Script(
        {"logging_nan_inf_filter": False, "logging_steps": 2}, parts=lambda: {"train_dataset": broken_points()}
    ),
}


def broken_points() -> list[dict[str, Any]]:
    points = line_data(44)
    return [
        {**point, "labels": point["labels"] * float("inf" if index == 7 else 1)} for index, point in enumerate(points)
    ]


def table(size: int, seed: int = 0) -> datasets.Dataset:
    """Sentences with columns that the model does not take."""
    sentences = datasets.Dataset.from_list(classification_data(size, seed=seed))
    return sentences.add_column("text", ["words"] * size).add_column("number", list(range(size)))


def tables() -> dict[str, Any]:
    return {"train_dataset": table(44), "eval_dataset": table(21, seed=1)}


def streamed_table() -> datasets.IterableDataset:
    return table(44).to_iterable_dataset()


GROUPED = {"train_sampling_strategy": "group_by_length"}
DATA: dict[str, Script] = {
    "sequential": Script({"train_sampling_strategy": "sequential"}),
    "grouped_by_length": Script(GROUPED, "classification", ragged),
    "grouped_by_length_and_accumulated": Script(
        {**GROUPED, "gradient_accumulation_steps": 2}, "classification", ragged
    ),
    "grouped_by_a_column_of_lengths": Script(
        {**GROUPED, "length_column_name": "words"}, "classification", lambda: ragged(as_dataset=True)
    ),
    "grouped_by_length_with_a_tokenizer": Script(
        GROUPED, "classification", lambda: ragged(data_collator=None, processing_class=small_tokenizer())
    ),
    "rebalanced": Script({"train_sampling_strategy": "batch_rebalance"}, "classification", ragged),
    "table_with_unused_columns": Script(task="classification", parts=tables),
    "dicts_with_unused_keys": Script(parts=lambda: {"train_dataset": line_data(44, extra=1)}),
    "nothing_removed": Script({"remove_unused_columns": False}),
    "stream": Script({"max_steps": 5}, parts=lambda: {"train_dataset": Stream(44)}),
    "stream_that_starts_again": Script({"max_steps": 13}, parts=lambda: {"train_dataset": Stream(40)}),
    "stream_with_accumulation": Script(
        {"max_steps": 5, "gradient_accumulation_steps": 3}, parts=lambda: {"train_dataset": Stream(48)}
    ),
    "stream_of_evaluation": Script(parts=lambda: {"eval_dataset": Stream(13)}),
    "streamed_table": Script({"max_steps": 13}, "classification", lambda: {"train_dataset": streamed_table()}),
    "streamed_table_shuffled": Script(
        {"max_steps": 13},
        "classification",
        lambda: {"train_dataset": streamed_table().shuffle(seed=3, buffer_size=20)},
    ),
    "one_worker": Script({"dataloader_num_workers": 1, "num_train_epochs": 1}),
    "order_by_a_seed_of_its_own": Script({"data_seed": 11}),
    "order_by_the_random_stream": Script({"accelerator_config": {"use_seedable_sampler": False}}),
    "label_is_called_label": Script(
        parts=lambda: {"train_dataset": [{"x": each["x"], "label": each["labels"].item()} for each in line_data(44)]}
    ),
    "samples_that_are_objects": Script(
        parts=lambda: {"train_dataset": [SimpleNamespace(**each) for each in line_data(44)]}
    ),
}


def inputs_and_losses(prediction: Any) -> dict[str, float]:
    return {"input_sum": float(prediction.inputs.sum()), "loss_max": float(prediction.losses.max())}


class RunningAccuracy:
    """Collects batch by batch and gives the result at the last one."""

    def __init__(self) -> None:
        self.hits: list[float] = []

    def __call__(self, prediction: Any, compute_result: bool) -> dict[str, float]:
        self.hits += (prediction.predictions.argmax(-1) == prediction.label_ids).float().tolist()
        if not compute_result:
            return {}
        hits, self.hits = self.hits, []
        return {"accuracy": float(np.mean(hits)), "batches": float(len(hits))}


EVALUATION: dict[str, Script] = {
    "several_sets": Script(
        task="classification",
        parts=lambda: {
            "eval_dataset": {"dev": classification_data(9, seed=1), "other set": classification_data(5, seed=2)}
        },
    ),
    "best_of_several_sets": Script(
        {"load_best_model_at_end": True, "metric_for_best_model": "eval_dev_loss"},
        parts=lambda: {"eval_dataset": {"dev": line_data(9, seed=1), "test": line_data(5, seed=2)}},
    ),
    "inputs_and_losses_in_metrics": Script(
        {"include_for_metrics": ["inputs", "loss"]},
        "classification",
        lambda: {"compute_metrics": inputs_and_losses},
    ),
    "metrics_batch_by_batch": Script(
        {"batch_eval_metrics": True}, "classification", lambda: {"compute_metrics": RunningAccuracy()}
    ),
    "outputs_moved_to_the_host": Script({"eval_accumulation_steps": 2}, "classification"),
    "outputs_not_concatenated": Script(
        {"eval_do_concat_batches": False},
        "classification",
        lambda: {"compute_metrics": lambda prediction: {"batches": float(len(prediction.predictions))}},
    ),
    "loss_only": Script({"prediction_loss_only": True}),
    "logits_preprocessed": Script(
        task="classification",
        parts=lambda: {
            "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1),
            "compute_metrics": lambda prediction: {
                "share": float((prediction.predictions == prediction.label_ids).mean())
            },
        },
    ),
    "label_names": Script({"label_names": ["labels"]}, "classification"),
    "label_names_that_are_not_there": Script({"label_names": ["start", "end"]}, "classification"),
    "no_metrics": Script(task="classification", parts=lambda: {"compute_metrics": None}),
    "early_stopping": Script(
        {"metric_for_best_model": "loss", "learning_rate": 3.0, "num_train_epochs": 6, "load_best_model_at_end": True},
        parts=lambda: {"callbacks": [transformers.EarlyStoppingCallback(early_stopping_patience=2)]},
    ),
}
SCRIPTS = {
    f"{group}-{name}": script
    for group, members in {
        "optimizer": OPTIMIZERS,
        "schedule": SCHEDULES,
        "precision": PRECISION,
        "length": LENGTHS,
        "strategy": STRATEGIES,
        "loss": LOSSES,
        "data": DATA,
        "evaluation": EVALUATION,
    }.items()
    for name, script in members.items()
}


@pytest.mark.feature(38, 43, 53, 59, 67, 92)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_script_gives_the_same_run_as_the_peer(tmp_path: Path, name: str) -> None:
    peer, ours = run_both(tmp_path, SCRIPTS[name])
    assert_same_run(peer, ours)


@pytest.mark.feature(56)
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
def test_activation_checkpointing_by_its_older_name_gives_the_same_run_as_the_peer(tmp_path: Path) -> None:
    changes = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    peer, ours = run_both(tmp_path, Script(changes, "language"))
    assert_same_run(peer, ours)


@pytest.mark.parametrize(("accumulation", "step"), [(1, 1), (1, 3), (1, 8), (4, 1), (4, 3)])
def test_resuming_its_own_checkpoint_gives_the_events_and_log_lines_of_the_peer(
    tmp_path: Path, accumulation: int, step: int
) -> None:
    changes = {**STEPS, "save_steps": 1, "eval_steps": 2, "gradient_accumulation_steps": accumulation}
    outcomes = []
    for kind in (transformers.Trainer, Trainer):
        folder = tmp_path / kind.__module__
        run(kind, folder, Script(changes))
        recorder = Recorder()
        resumed = make_trainer(kind, folder, Script(changes), recorder)
        resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
        outcomes.append((recorder.events, resumed.state.log_history[:-1]))
    (peer_events, peer_history), (our_events, our_history) = outcomes
    assert our_events == peer_events
    assert_same_numbers(our_history, peer_history)


def test_resuming_the_last_step_of_an_epoch_fires_the_end_that_had_not_come_where_the_peer_skips_it(
    tmp_path: Path,
) -> None:
    events = []
    for kind in (transformers.Trainer, Trainer):
        folder, recorder = tmp_path / kind.__module__, Recorder()
        script = Script({"save_strategy": "steps", "save_steps": 6})
        run(kind, folder, script)
        make_trainer(kind, folder, script, recorder).train(resume_from_checkpoint=str(folder / "checkpoint-6"))
        events.append([event for event, step, *_ in recorder.events if step == 6])
    end_of_the_epoch = ["on_epoch_end", *["on_prediction_step"] * 2, "on_log", "on_evaluate"]
    assert events[0] == [
        "on_train_begin",
        "on_epoch_begin",
        "on_step_begin",
        "on_pre_optimizer_step",
        "on_optimizer_step",
    ]
    assert events[1] == ["on_train_begin", "on_epoch_begin", *end_of_the_epoch, *events[0][1:]]


@pytest.mark.parametrize("changes", [{}, {"bf16": True}], ids=["float32", "bfloat16"])
def test_an_evaluation_in_half_precision_gives_the_peers_numbers_and_leaves_the_weights_which_the_peer_rounds(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    peer, ours = run_both(tmp_path, Script({"bf16_full_eval": True, **changes}, "classification"))
    assert ours.recorder.events == peer.recorder.events
    assert_same_numbers(ours.trainer.state.log_history, peer.trainer.state.log_history)
    assert_same_numbers([ours.final], [peer.final])
    assert {each.dtype for each in peer.trainer.model.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in ours.trainer.model.parameters()} == {torch.float32}


@pytest.mark.feature(52)
def test_label_smoothing_works_for_a_plain_module_where_the_peer_needs_a_config(tmp_path: Path) -> None:
    def parts(config: Any = None) -> dict[str, Any]:
        model = PlainClassifier()
        if config is not None:
            model.config = config
        return {"model": model}

    changes = {"label_smoothing_factor": 0.3}
    with pytest.raises(AttributeError, match="config"):
        run(transformers.Trainer, tmp_path, Script(changes, "classification", parts))
    with_config = Script(changes, "classification", lambda: parts(SimpleNamespace(problem_type=None)))
    peer = run(transformers.Trainer, tmp_path / "peer", with_config)
    ours = run(Trainer, tmp_path / "ours", Script(changes, "classification", parts))
    assert_same_run(peer, ours)


def test_the_micro_batches_left_over_of_a_stream_make_an_update_where_the_peer_drops_them(tmp_path: Path) -> None:
    changes = {"max_steps": 4, "gradient_accumulation_steps": 4, "eval_strategy": "no"}
    ours = run(Trainer, tmp_path / "ours", Script(changes, parts=lambda: {"train_dataset": Stream(44)}))
    whole = run(transformers.Trainer, tmp_path / "peer", Script({**changes, "train_sampling_strategy": "sequential"}))
    for received, expected in zip(ours.trainer.state.log_history, whole.trainer.state.log_history, strict=True):
        assert received["step"] == expected["step"]
        for name in {"loss", "grad_norm", "learning_rate", "train_loss"} & set(expected):
            assert received[name] == pytest.approx(expected[name], rel=1e-5)


def test_use_cache_is_switched_off_in_the_model_of_model_init_where_the_peer_leaves_it_on(tmp_path: Path) -> None:
    script = Script({"max_steps": 1}, "language", lambda: {"model": None, "model_init": lambda: gpt2_language_model()})
    peer, ours = run_both(tmp_path, script)
    assert peer.trainer.model.config.use_cache is True
    assert ours.trainer.model.config.use_cache is False


def test_how_long_a_model_took_to_prepare_is_not_among_the_metrics_unlike_the_peers(tmp_path: Path) -> None:
    keys = []
    for kind in (transformers.Trainer, Trainer):
        keys.append(set(make_trainer(kind, tmp_path / kind.__module__, Script()).evaluate()))
    assert keys[0] - keys[1] == {"eval_model_preparation_time"}
    assert keys[1] < keys[0]


def test_persistent_workers_of_an_evaluation_set_are_started_once(tmp_path: Path) -> None:
    changes = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "save_strategy": "no"}
    before = set(multiprocessing.active_children())
    trainer = make_trainer(Trainer, tmp_path, Script(changes))
    try:
        trainer.evaluate()
        started = set(multiprocessing.active_children()) - before
        trainer.evaluate()
        assert set(multiprocessing.active_children()) - before == started
        assert len(started) == 1
    finally:
        trainer.release()
