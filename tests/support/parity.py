"""One training script that our trainer and the one of transformers run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers
from transformers import DataCollatorWithPadding, PrinterCallback

from hpsearch import TrainingArguments
from tests.support.models import (
    Line,
    accuracy,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    line_data,
    small_tokenizer,
)

# What is measured, and so differs from run to run; `preparation_time` is reported by transformers only.
TIMINGS = ("runtime", "per_second", "preparation_time")


@dataclass(frozen=True)
class Script:
    """A training script: its task, what it changes in the common arguments, what else it gives to the trainer."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    task: str = "line"
    parts: Callable[[], dict[str, Any]] = dict


def line_task() -> dict[str, Any]:
    return {"model": Line(), "train_dataset": line_data(44), "eval_dataset": line_data(10, seed=1)}


def averaging_classifier() -> Any:
    """A classifier of which both trainers know that it averages its loss over the batch it sees.

    Ours finds that out; the peer takes it to normalise over all accumulated batches, because its forward takes
    ``**kwargs``, and multiplies loss and gradients by their number.
    """
    model = bert_classifier(hidden=16, dropout=0.1)
    model.accepts_loss_kwargs = False
    return model


def classification_task() -> dict[str, Any]:
    return {
        "model": averaging_classifier(),
        "train_dataset": classification_data(44),
        "eval_dataset": classification_data(21, seed=1),
        "compute_metrics": accuracy,
    }


def language_task() -> dict[str, Any]:
    return {
        "model": gpt2_language_model(),
        "train_dataset": language_data(44),
        "eval_dataset": language_data(21, seed=1),
    }


TASKS = {"line": line_task, "classification": classification_task, "language": language_task}


COMMON: dict[str, Any] = {
    "learning_rate": 1e-2,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "num_train_epochs": 2,
    "logging_steps": 1,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


def make_trainer(kind: Any, folder: Path, script: Script, *callbacks: Any) -> Any:
    arguments = transformers.TrainingArguments if kind is transformers.Trainer else TrainingArguments
    torch.manual_seed(0)
    parts = {**TASKS[script.task](), **script.parts()}
    args = arguments(str(folder), **copy.deepcopy({**COMMON, **script.changes}))
    trainer = kind(args=args, callbacks=[*parts.pop("callbacks", []), *callbacks], **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def assert_same_numbers(received: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(received) == len(expected)
    for our_entry, peer_entry in zip(map(without_timings, received), map(without_timings, expected), strict=True):
        assert list(our_entry) == list(peer_entry)
        assert our_entry == pytest.approx(peer_entry, rel=1e-5, nan_ok=True)


def without_timings(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if not key.endswith(TIMINGS)}


STEPS = {"eval_strategy": "steps", "save_strategy": "steps"}


class Stream(torch.utils.data.IterableDataset):
    """Points one after the other, without a length."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        return iter(line_data(self.size))


def ragged_sentences(size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences of 2 to 12 tokens."""
    lengths = np.random.default_rng(seed).integers(2, 13, size)
    return [
        {
            "input_ids": each["input_ids"][:length],
            "attention_mask": each["attention_mask"][:length],
            "labels": each["labels"],
        }
        for each, length in zip(classification_data(size, seed=seed), lengths.tolist(), strict=True)
    ]


def ragged(as_dataset: bool = False, **extra: Any) -> dict[str, Any]:
    parts: dict[str, Any] = {"train_dataset": ragged_sentences(44), "eval_dataset": ragged_sentences(21, seed=1)}
    if as_dataset:
        parts = {name: datasets.Dataset.from_list(samples) for name, samples in parts.items()}
        parts = {
            name: each.add_column("words", [len(ids) for ids in each["input_ids"]]) for name, each in parts.items()
        }
    return {**parts, "data_collator": DataCollatorWithPadding(small_tokenizer()), **extra}
