"""Data prepared with `datasets` as the documents do it, then given to a loader and to our trainer (row 135)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding

from hpsearch import InvalidInputError, Trainer
from tests.support.line_trainer import LETTERS, letter_tokenizer, line_trainer, logged
from tests.support.models import accuracy, bert_classifier


def sentence_pairs(count: int, seed: int) -> Dataset:
    """Pairs of sentences of one-letter words; the label tells whether both begin with the same word."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        first, second = (list(random.choice(LETTERS, size=random.integers(1, 7))) for _ in range(2))
        label = int(random.integers(2))
        second[0] = first[0] if label else random.choice([each for each in LETTERS if each != first[0]])
        rows.append({"idx": index, "sentence1": " ".join(first), "sentence2": " ".join(second), "label": label})
    return Dataset.from_list(rows)


def raw() -> DatasetDict:
    return DatasetDict({"train": sentence_pairs(40, seed=0), "validation": sentence_pairs(11, seed=1)})


def tokenized() -> DatasetDict:
    tokenizer = letter_tokenizer()
    return raw().map(lambda batch: tokenizer(batch["sentence1"], batch["sentence2"], truncation=True), batched=True)


def prepared() -> DatasetDict:
    """As for a loop written by hand: only what the model takes, as tensors."""
    data = tokenized().remove_columns(["idx", "sentence1", "sentence2"]).rename_column("label", "labels")
    data.set_format("torch")
    return data


def pair_trainer(folder: Path, data: Any, **changes: Any) -> Trainer:
    trainer = {
        "model_init": lambda: bert_classifier(dropout=0.0),
        "train_dataset": data["train"],
        "eval_dataset": data["validation"],
        "processing_class": letter_tokenizer(),
        "compute_metrics": accuracy,
    }
    return line_trainer(folder, trainer, **changes)


@pytest.mark.feature(135)
def test_tokenizing_in_batches_adds_the_columns_of_the_model_to_those_there_were() -> None:
    data = tokenized()
    assert data["train"].column_names == ["idx", "sentence1", "sentence2", "label", "input_ids", "attention_mask"]
    row = data["train"][0]
    words = f"{row['sentence1']} {row['sentence2']}".split()
    assert row["input_ids"] == [LETTERS.index(word) + 2 for word in words]
    assert row["attention_mask"] == [1] * len(words)


@pytest.mark.feature(135)
def test_a_loader_with_a_padding_collator_gives_batches_that_the_model_takes() -> None:
    data = prepared()
    assert data["train"].column_names == ["labels", "input_ids", "attention_mask"]
    assert isinstance(data["train"][0]["input_ids"], torch.Tensor)
    collator = DataCollatorWithPadding(letter_tokenizer())
    loader = DataLoader(data["validation"], batch_size=8, collate_fn=collator)
    lengths = [len(row) for row in data["validation"]["input_ids"]]
    model = bert_classifier()
    for batch, expected in zip(loader, (lengths[:8], lengths[8:]), strict=True):
        assert {name: tuple(value.shape) for name, value in batch.items()} == {
            "labels": (len(expected),),
            "input_ids": (len(expected), max(expected)),
            "attention_mask": (len(expected), max(expected)),
        }
        outputs = model(**batch)
        assert outputs.loss.shape == ()
        assert outputs.logits.shape == (len(expected), 2)


@pytest.mark.feature(135)
def test_our_trainer_sees_the_batches_of_such_a_loader_whichever_way_the_data_come(tmp_path: Path) -> None:
    collator = DataCollatorWithPadding(letter_tokenizer())
    expected = list(DataLoader(prepared()["validation"], batch_size=8, collate_fn=collator))
    for data in (prepared(), tokenized()):
        batches = list(pair_trainer(tmp_path, data).get_eval_dataloader())
        for batch, by_hand in zip(batches, expected, strict=True):
            assert set(batch) == set(by_hand)
            for name, value in by_hand.items():
                assert torch.equal(batch[name], value), name


@pytest.mark.feature(45)
def test_raw_columns_and_label_or_prepared_ones_and_labels_train_alike(tmp_path: Path) -> None:
    histories = []
    for data in (prepared(), tokenized()):
        trainer = pair_trainer(tmp_path, data, num_train_epochs=2, eval_strategy="epoch")
        trainer.train()
        histories.append((logged(trainer, "loss"), logged(trainer, "eval_loss"), logged(trainer, "eval_accuracy")))
    assert histories[0] == histories[1]
    assert [step for step, _ in histories[0][0]] == list(range(1, 11))


def test_the_columns_of_the_data_that_were_given_are_not_touched(tmp_path: Path) -> None:
    data = tokenized()
    columns = list(data["train"].column_names)
    pair_trainer(tmp_path, data).train()
    assert data["train"].column_names == columns


def test_text_that_was_never_tokenized_is_refused_with_its_columns_and_those_of_the_model(tmp_path: Path) -> None:
    data = raw().remove_columns("label")
    with pytest.raises(InvalidInputError, match=r"sentence1.*input_ids"):
        pair_trainer(tmp_path, data).train()


def test_a_column_that_was_kept_although_the_model_does_not_take_it_reaches_the_collator(tmp_path: Path) -> None:
    seen: set[str] = set()

    def collate(samples: list[dict[str, Any]]) -> Any:
        seen.update(samples[0])
        kept = [{name: row[name] for name in ("input_ids", "attention_mask", "label")} for row in samples]
        return DataCollatorWithPadding(letter_tokenizer())(kept)

    trainer = pair_trainer(tmp_path, tokenized(), remove_unused_columns=False, max_steps=1)
    trainer.data_collator = collate
    trainer.train()
    assert {"idx", "sentence1", "label"} <= seen


@pytest.mark.feature(54)
def test_the_length_column_of_a_map_groups_the_batches_by_length(tmp_path: Path) -> None:
    data = tokenized().map(lambda row: {"length": len(row["input_ids"])})
    widths = {}
    for strategy in ("random", "group_by_length"):
        trainer = pair_trainer(tmp_path, data, train_sampling_strategy=strategy, per_device_train_batch_size=4)
        widths[strategy] = sum(batch["input_ids"].numel() for batch in trainer.get_train_dataloader())
    assert widths["group_by_length"] < widths["random"]
