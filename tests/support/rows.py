"""What the tests of single rows of docs/feature-table.md share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from hpsearch import TrainingArguments
from tests.support.models import (
    line_data,
)


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
