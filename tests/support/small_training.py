"""The small trainer that tests of training share."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch.utils.data import IterableDataset
from transformers import PrinterCallback, TrainerCallback

from hpsearch import Trainer, TrainingArguments
from tests.support.models import Line, line_data


def make_trainer(folder: Path, kind: type = Trainer, **changes: Any) -> Any:
    """A trainer on `line_data`; names that the constructor takes go there, the others into the arguments."""
    accepted = inspect.signature(kind.__init__).parameters
    parts = {name: changes.pop(name) for name in list(changes) if name in accepted}
    values: dict[str, Any] = {
        "learning_rate": 0.05,
        "per_device_train_batch_size": 8,
        "num_train_epochs": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    if "model" not in parts:
        parts.setdefault("model_init", Line)
    arguments = TrainingArguments if issubclass(kind, Trainer) else transformers.TrainingArguments
    parts = {"train_dataset": line_data(), "eval_dataset": line_data(10, seed=1), **parts}
    trainer = kind(args=arguments(str(folder), **values), **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> Iterator[None]:
    """Every stage collects garbage; what the libraries hold need not be looked through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def args_of(**values: Any) -> TrainingArguments:
    return TrainingArguments("out", **{"use_cpu": True, **values})


def logged(trainer: Any, name: str) -> dict[int, float]:
    """The values of one name in the log history, by step."""
    return {entry["step"]: entry[name] for entry in trainer.state.log_history if name in entry}


class Look(TrainerCallback):
    """Calls a function with the model and the other keyword arguments of one event."""

    def __init__(self, event: str, look: Any) -> None:
        setattr(self, event, lambda args, state, control, **kwargs: look(args=args, state=state, **kwargs))


def at_process(monkeypatch: pytest.MonkeyPatch, process_index: int, local_process_index: int) -> None:
    """Give all arguments the place of a process among several that are not there."""
    monkeypatch.setattr(TrainingArguments, "process_index", process_index)
    monkeypatch.setattr(TrainingArguments, "local_process_index", local_process_index)


class ToldEpochs(IterableDataset):
    """A stream that keeps the epochs it is told."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(line_data(16))
