"""What docs/feature-table.md says of building a trainer and what it shows and no other test shows, row by row."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback

from hpsearch import Trainer, TrainingArguments
from hpsearch.training.batches import start_epoch
from tests.support.models import (
    Line,
    line_data,
)
from tests.support.rows import Look, ToldEpochs, logged
from tests.support.small_training import make_trainer


@pytest.mark.feature(63)
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


@pytest.mark.feature(120, "P2", "P13")
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


@pytest.mark.feature(67)
def test_a_stream_is_told_the_epoch(tmp_path: Path) -> None:
    stream = ToldEpochs()
    make_trainer(tmp_path, train_dataset=stream, max_steps=5).train()
    assert list(dict.fromkeys(stream.epochs)) == [0, 1, 2]


@pytest.mark.feature(67)
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


@pytest.mark.feature(72)
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


@pytest.mark.feature(74, "P4")
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


@pytest.mark.feature("P13")
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
