"""transformers' collators and EvalPrediction, as our trainer uses them (rows 66 and 88)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorWithPadding, EvalPrediction, default_data_collator

from tests.support.line_trainer import letter_tokenizer, line_trainer
from tests.support.models import Line, bert_classifier


def batches_of(trainer: Any) -> list[dict[str, torch.Tensor]]:
    return [dict(batch) for batch in trainer.get_eval_dataloader()]


@pytest.mark.feature(66, "P4")
@pytest.mark.parametrize(("values", "kind"), [([3, 1, 2], torch.int64), ([0.5, 1.5, 2.5], torch.float32)])
def test_without_a_tokenizer_samples_are_stacked_and_their_label_becomes_labels(
    tmp_path: Path, values: list[float], kind: torch.dtype
) -> None:
    samples = [{"x": [float(value), 0.0], "label": value} for value in values]
    trainer = line_trainer(tmp_path, {"eval_dataset": samples}, remove_unused_columns=False)
    assert trainer.data_collator is default_data_collator
    (batch,) = batches_of(trainer)
    assert sorted(batch) == ["labels", "x"]
    assert batch["labels"].dtype == kind
    assert batch["labels"].tolist() == values
    assert batch["x"].shape == (3, 2)


@pytest.mark.feature(66)
@pytest.mark.parametrize("make", [list, torch.tensor])
def test_label_ids_become_labels_too(tmp_path: Path, make: Any) -> None:
    samples = [{"x": [0.0, 0.0], "label_ids": make([1, 2, 3])}] * 2
    (batch,) = batches_of(line_trainer(tmp_path, {"eval_dataset": samples}))
    assert batch["labels"].tolist() == [[1, 2, 3], [1, 2, 3]]


def test_none_and_text_are_left_out_of_a_stacked_batch(tmp_path: Path) -> None:
    samples = [{"x": np.zeros(2), "name": "first", "weight": None, "label": 1}] * 2
    trainer = line_trainer(tmp_path, {"eval_dataset": samples}, remove_unused_columns=False)
    assert sorted(batches_of(trainer)[0]) == ["labels", "x"]


@pytest.mark.feature(66)
def test_with_a_tokenizer_each_batch_is_padded_to_its_own_longest_sample(tmp_path: Path) -> None:
    tokenizer = letter_tokenizer()
    samples = [{**tokenizer(text), "label": 1} for text in ("a", "a b c", "a b", "a b c d e")]
    trainer = line_trainer(
        tmp_path,
        {"model_init": bert_classifier, "eval_dataset": samples, "processing_class": tokenizer},
        per_device_eval_batch_size=2,
    )
    first, second = batches_of(trainer)
    assert first["input_ids"].tolist() == [[2, 0, 0], [2, 3, 4]]
    assert first["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert second["input_ids"].shape == (2, 5)
    assert first["labels"].tolist() == [1, 1]


def test_a_padding_collator_of_ones_own_pads_as_it_is_told_and_trains(tmp_path: Path) -> None:
    tokenizer = letter_tokenizer()
    samples = [{**tokenizer("a b c"[: 2 * (number % 3) + 1]), "label": number % 2} for number in range(12)]
    collator = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=7, pad_to_multiple_of=4)
    trainer = line_trainer(
        tmp_path,
        {
            "model_init": bert_classifier,
            "train_dataset": samples,
            "eval_dataset": samples,
            "processing_class": tokenizer,
            "data_collator": collator,
        },
    )
    assert {batch["input_ids"].shape[1] for batch in batches_of(trainer)} == {8}
    assert trainer.train().global_step == 2


def test_padding_does_not_change_what_is_predicted(tmp_path: Path) -> None:
    tokenizer = letter_tokenizer()
    samples = [{**tokenizer(text), "label": 0} for text in ("a", "a b c d", "b c")]
    given = {"model_init": bert_classifier, "processing_class": tokenizer}
    together = line_trainer(tmp_path, given).predict(samples).predictions
    alone = line_trainer(tmp_path, given, per_device_eval_batch_size=1).predict(samples).predictions
    assert together == pytest.approx(alone, abs=1e-5)


@pytest.mark.feature(88)
@pytest.mark.parametrize(
    ("included", "names"),
    [
        ([], ("predictions", "label_ids")),
        (["inputs"], ("predictions", "label_ids", "inputs")),
        (["loss"], ("predictions", "label_ids", "losses")),
        (["inputs", "loss"], ("predictions", "label_ids", "inputs", "losses")),
    ],
)
def test_an_eval_prediction_unpacks_and_is_indexed_in_its_order(
    tmp_path: Path, included: list[str], names: tuple[str, ...]
) -> None:
    class LineWithMainInput(Line):
        main_input_name = "x"

    seen: list[EvalPrediction] = []

    def remember(prediction: EvalPrediction) -> dict[str, float]:
        seen.append(prediction)
        return {}

    trainer = {"model_init": LineWithMainInput, "compute_metrics": remember}
    line_trainer(tmp_path, trainer, include_for_metrics=included).evaluate()
    (prediction,) = seen
    assert type(prediction) is EvalPrediction
    parts = tuple(prediction)
    assert len(parts) == len(names)
    for index, (part, name) in enumerate(zip(parts, names, strict=True)):
        assert part is getattr(prediction, name)
        assert prediction[index] is part
        assert len(part) == 9
    for wrong in (-1, len(names)):
        with pytest.raises(IndexError):
            prediction[wrong]


@pytest.mark.feature(70)
def test_compute_metrics_may_unpack_predictions_and_labels(tmp_path: Path) -> None:
    def mean_error(prediction: Any) -> dict[str, float]:
        predictions, labels = prediction
        return {"error": float(((predictions - labels) ** 2).mean())}

    metrics = line_trainer(tmp_path, {"compute_metrics": mean_error}).evaluate()
    assert metrics["eval_error"] == pytest.approx(metrics["eval_loss"], rel=1e-5)
