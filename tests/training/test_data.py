"""The order in which training and evaluation see the data, and the loaders that bring them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from hpsearch import TrainingArguments
from hpsearch.training.resume_epoch import start_epoch
from tests.support.models import (
    Line,
    line_data,
)
from tests.support.small_training import Look, ToldEpochs, logged, make_trainer


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


@pytest.mark.feature(79)
def test_data_without_a_length_are_loaded_in_their_order_and_without_a_sampler(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_dataset=ToldEpochs(), max_steps=1)
    loader = trainer.get_train_dataloader()
    received = torch.cat([batch["x"] for batch in loader])
    assert torch.equal(received, torch.stack([each["x"] for each in line_data(16)]))
    with pytest.raises(ValueError, match="train_dataset"):
        make_trainer(tmp_path, train_dataset=None).get_train_dataloader()


@pytest.mark.feature(45, 80)
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
