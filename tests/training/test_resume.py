"""A run that was stopped and resumed equals one that never stopped, bit for bit on CPU."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PrinterCallback, TrainerCallback, default_data_collator

from hpsearch import Trainer, TrainingArguments
from hpsearch.errors import CheckpointError
from tests.support.models import accuracy, bert_classifier, classification_data, weights_of
from tests.support.small_training import make_trainer as line_trainer


class StopAt(TrainerCallback):
    """Saves at a step, and then stops training politely or by an error."""

    def __init__(self, step: int, politely: bool = True) -> None:
        self.step, self.politely = step, politely

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step == self.step:
            control.should_save = True
            control.should_training_stop = self.politely
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and not self.politely:
            raise KeyboardInterrupt


class StopInsideAccumulation(TrainerCallback):
    """Breaks off between two micro-batches of an update."""

    def __init__(self, after_step: int) -> None:
        self.after_step = after_step

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.after_step:
            raise KeyboardInterrupt


def make_trainer(folder: Path, *callbacks: Any, **changes: Any) -> Trainer:
    """44 samples in batches of 4: 11 batches an epoch, so that accumulation by 2 leaves one over."""
    arguments: dict[str, Any] = {
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 3,
        "logging_steps": 4,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    trainer = Trainer(
        model_init=lambda: bert_classifier(dropout=0.2),
        args=TrainingArguments(str(folder), **arguments),
        train_dataset=classification_data(44),
        eval_dataset=classification_data(20, seed=1),
        compute_metrics=accuracy,
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def numbers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timings = ("runtime", "per_second")
    return [{key: value for key, value in each.items() if not key.endswith(timings)} for each in history]


def assert_equal_runs(resumed: Trainer, whole: Trainer) -> None:
    expected = weights_of(whole.model)
    for name, weights in weights_of(resumed.model).items():
        assert torch.equal(weights, expected[name]), name
    assert numbers(resumed.state.log_history) == numbers(whole.state.log_history)
    assert resumed.state.total_flos == whole.state.total_flos


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trainer]:
    """Trains without a stop, once for the same arguments."""

    @functools.cache
    def train(**changes: Any) -> Trainer:
        torch.set_num_threads(1)
        trainer = make_trainer(tmp_path_factory.mktemp("whole"), **changes)
        trainer.train()
        return trainer

    return train


@pytest.mark.feature(93, 94)
@pytest.mark.parametrize(
    ("workers", "accumulation", "step"),
    [(0, 1, step) for step in (1, 5, 11, 12, 22, 32)]
    + [(0, 2, step) for step in (3, 5, 6, 7, 12)]
    + [(2, 1, 5), (2, 1, 22), (2, 2, 6)],
)
def test_stopped_at_any_step_and_resumed_equals_never_stopped(
    tmp_path: Path, never_stopped: Callable[..., Trainer], workers: int, accumulation: int, step: int
) -> None:
    changes = {"dataloader_num_workers": workers, "gradient_accumulation_steps": accumulation}
    whole = never_stopped(**changes)
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path / "stopped", StopAt(step, politely=False), **changes).train()
    resumed = make_trainer(tmp_path / "stopped", **changes)
    output = resumed.train(resume_from_checkpoint=True)
    assert_equal_runs(resumed, whole)
    assert output.training_loss == whole.state.log_history[-1]["train_loss"]


class MasksTokens:
    """A collator that replaces random tokens, with torch's, numpy's and Python's random numbers, like masking does."""

    def __call__(self, samples: list[Any]) -> Any:
        batch = default_data_collator(samples)
        rows, columns = batch["input_ids"].shape
        batch["input_ids"][torch.rand(rows, columns) < 0.2] = 99
        batch["input_ids"][np.random.rand(rows, columns) < 0.1] = 98
        batch["input_ids"][random.randrange(rows)] = 97
        return batch


@pytest.mark.feature(94)
@pytest.mark.parametrize("sampling", ["random", "group_by_length"])
@pytest.mark.parametrize(("accumulation", "step"), [(1, 5), (1, 11), (2, 3), (2, 6), (3, 2)])
def test_data_that_draws_random_numbers_resumes_exactly(
    tmp_path: Path, sampling: str, accumulation: int, step: int
) -> None:
    changes = {"gradient_accumulation_steps": accumulation, "train_sampling_strategy": sampling}
    trainers = [
        make_trainer(tmp_path / "whole", **changes),
        make_trainer(tmp_path / "stopped", StopAt(step, politely=False), **changes),
        make_trainer(tmp_path / "stopped", **changes),
    ]
    for trainer in trainers:
        trainer.data_collator = MasksTokens()
    whole, stopped, resumed = trainers
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    resumed.train(resume_from_checkpoint=True)
    assert_equal_runs(resumed, whole)


def test_an_iterable_dataset_resumes_exactly(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(classification_data(44))

    changes = {"max_steps": 25, "eval_strategy": "no"}
    runs = [make_trainer(tmp_path, *stop, **changes) for stop in ([], [StopAt(15, politely=False)], [])]
    for trainer in runs:
        trainer.train_dataset = Stream()
    runs[0].train()
    with pytest.raises(KeyboardInterrupt):
        runs[1].train()
    runs[2].train(resume_from_checkpoint=True)
    assert_equal_runs(runs[2], runs[0])


def test_interrupted_inside_accumulation_resumes_from_the_last_update(tmp_path: Path) -> None:
    changes = {"gradient_accumulation_steps": 3, "save_strategy": "steps", "save_steps": 1}
    whole = make_trainer(tmp_path / "whole", **changes)
    whole.train()
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path / "stopped", StopInsideAccumulation(5), **changes).train()
    resumed = make_trainer(tmp_path / "stopped", **changes)
    resumed.train(resume_from_checkpoint=True)
    assert_equal_runs(resumed, whole)


@pytest.mark.parametrize("step", [5, 11])
def test_a_polite_stop_evaluates_once_more_and_still_resumes_exactly(tmp_path: Path, step: int) -> None:
    changes = {"save_strategy": "epoch"}
    whole = make_trainer(tmp_path / "whole", **changes)
    whole.train()
    make_trainer(tmp_path / "stopped", StopAt(step), **changes).train()
    resumed = make_trainer(tmp_path / "stopped", **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / f"checkpoint-{step}"))
    expected = weights_of(whole.model)
    for name, weights in weights_of(resumed.model).items():
        assert torch.equal(weights, expected[name]), name


@pytest.mark.feature(93)
@pytest.mark.parametrize("strategy", ["epoch", "steps"])
def test_resuming_from_any_saved_checkpoint_gives_the_same_end(tmp_path: Path, strategy: str) -> None:
    changes = {"save_strategy": strategy, "save_steps": 7, "eval_strategy": strategy, "eval_steps": 3}
    whole = make_trainer(tmp_path, **changes)
    whole.train()
    expected, history = weights_of(whole.model), numbers(whole.state.log_history)
    folders = sorted(tmp_path.glob("checkpoint-*"))
    assert len(folders) >= 3
    for folder in folders:
        resumed = make_trainer(tmp_path, **changes)
        resumed.train(resume_from_checkpoint=str(folder))
        assert all(torch.equal(weights, expected[name]) for name, weights in weights_of(resumed.model).items())
        assert numbers(resumed.state.log_history) == history


@pytest.mark.feature(93)
def test_a_missing_or_damaged_checkpoint_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint-N folder"):
        make_trainer(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(CheckpointError, match=r"^Can't find a valid checkpoint at .*checkpoint-99: it does not exist"):
        make_trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-99"))
    make_trainer(tmp_path, save_strategy="epoch").train()
    folder = tmp_path / "checkpoint-11"
    whole_optimizer = (folder / "optimizer.pt").read_bytes()
    (folder / "optimizer.pt").write_bytes(whole_optimizer[:100])
    with pytest.raises(CheckpointError, match=r"optimizer\.pt.* is damaged"):
        make_trainer(tmp_path).train(resume_from_checkpoint=str(folder))
    (folder / "optimizer.pt").unlink()
    with pytest.raises(CheckpointError, match=r"optimizer\.pt.* is missing"):
        make_trainer(tmp_path).train(resume_from_checkpoint=str(folder))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="damaged"):
        make_trainer(tmp_path).train(resume_from_checkpoint=str(folder))
    weights.unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        make_trainer(tmp_path).train(resume_from_checkpoint=str(folder))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_strategy="epoch").train()
    other = make_trainer(tmp_path)
    other.model_init = lambda: bert_classifier(layers=2)
    with pytest.raises(CheckpointError, match="another model"):
        other.train(resume_from_checkpoint=True)


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    class BreaksWhileSaving(Trainer):
        def save_weights(self, folder: Any, weights: Any = None) -> None:
            super().save_weights(folder, weights)
            raise OSError("disk full")

    plain = make_trainer(tmp_path, save_strategy="epoch")
    broken = BreaksWhileSaving(
        model_init=plain.model_init, args=plain.args, train_dataset=plain.train_dataset, eval_dataset=plain.eval_dataset
    )
    with pytest.raises(OSError, match="disk full"):
        broken.train()
    assert list(tmp_path.iterdir()) == []


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
    line_trainer(tmp_path, Notes, **changes).train()
    whole = list(seen)
    seen.clear()
    resumed = line_trainer(tmp_path, Notes, ignore_data_skip=ignored, **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert torch.equal(seen[0], whole[0 if ignored else 1])
