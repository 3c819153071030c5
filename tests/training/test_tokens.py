"""Counting the input tokens of a training: all, or those that are no padding; logged, resumed, as the peer counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import DataCollatorWithPadding, TrainerCallback

from hpsearch import Trainer
from tests.support.models import Line, bert_classifier, classification_data, line_data, small_tokenizer
from tests.support.small_training import make_trainer

LENGTHS = (3, 9, 5, 7, 4, 8, 6, 9, 3, 5)
SPEEDS = ("runtime", "per_second", "preparation_time")


def ragged() -> list[dict[str, Any]]:
    """Ten sentences of unequal length; in order, in batches of four, they are padded to 9, 9 and 5."""
    return [classification_data(1, length=length, seed=place)[0] for place, length in enumerate(LENGTHS)]


PADDED = (4 * 9, 4 * 9, 2 * 5)
REAL = (3 + 9 + 5 + 7, 4 + 8 + 6 + 9, 3 + 5)


def tokens_trainer(folder: Path, how: Any, kind: Any = Trainer, **changes: Any) -> Any:
    """A classifier on `ragged` data, in order, in three batches an epoch."""
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "model": bert_classifier(hidden=16),
        "train_dataset": ragged(),
        "data_collator": DataCollatorWithPadding(small_tokenizer()),
        "per_device_train_batch_size": 4,
        "train_sampling_strategy": "sequential",
        "include_num_input_tokens_seen": how,
        "learning_rate": 1e-3,
        **changes,
    }
    values["model"].accepts_loss_kwargs = False  # the peer takes BERT to normalise over accumulated batches
    return make_trainer(folder, kind, **values)


def seen(trainer: Any) -> list[int]:
    return [entry["num_input_tokens_seen"] for entry in trainer.state.log_history if "loss" in entry]


def running(*counts: int) -> list[int]:
    return [sum(counts[: place + 1]) for place in range(len(counts))]


@pytest.mark.parametrize(("how", "counts"), [("all", PADDED), (True, PADDED), ("non_padding", REAL)])
def test_the_count_is_that_of_a_count_by_hand(tmp_path: Path, how: Any, counts: tuple[int, ...]) -> None:
    trainer = tokens_trainer(tmp_path, how, num_train_epochs=2)
    output = trainer.train()
    assert seen(trainer) == running(*counts, *counts)
    assert trainer.state.num_input_tokens_seen == 2 * sum(counts)
    assert output.metrics["num_input_tokens_seen"] == 2 * sum(counts)
    assert trainer.state.log_history[-1]["num_input_tokens_seen"] == 2 * sum(counts)


@pytest.mark.parametrize("how", ["no", False])
def test_nothing_is_counted_or_logged_unless_asked_for(tmp_path: Path, how: Any) -> None:
    trainer = tokens_trainer(tmp_path, how)
    output = trainer.train()
    assert trainer.state.num_input_tokens_seen == 0
    entries = [*trainer.state.log_history, output.metrics]
    assert not any("tokens" in name for entry in entries for name in entry)


def test_accumulated_batches_count_together(tmp_path: Path) -> None:
    trainer = tokens_trainer(tmp_path, "non_padding", gradient_accumulation_steps=2, num_train_epochs=2)
    trainer.train()
    assert seen(trainer) == running(REAL[0] + REAL[1], REAL[2], REAL[0] + REAL[1], REAL[2])


def test_every_training_line_tells_the_tokens_per_second_and_evaluations_do_not(tmp_path: Path) -> None:
    trainer = tokens_trainer(tmp_path, "all", eval_dataset=ragged(), eval_strategy="epoch")
    trainer.train()
    lines = trainer.state.log_history
    training = [entry for entry in lines if "loss" in entry]
    assert [set(entry) >= {"train_tokens_per_second", "num_input_tokens_seen"} for entry in training] == [True] * 3
    for entry in training:
        assert entry["train_tokens_per_second"] > 0
        rate = entry["num_input_tokens_seen"] / entry["train_runtime"]
        assert entry["train_tokens_per_second"] == pytest.approx(rate, rel=0.1)
    [evaluation] = [entry for entry in lines if "eval_loss" in entry]
    assert evaluation["num_input_tokens_seen"] == sum(PADDED)
    assert "train_tokens_per_second" not in evaluation


def test_evaluation_data_are_not_counted(tmp_path: Path) -> None:
    trainer = tokens_trainer(tmp_path, "all", eval_dataset=ragged(), eval_strategy="steps", eval_steps=1)
    trainer.train()
    trainer.evaluate()
    trainer.predict(ragged())
    assert trainer.state.num_input_tokens_seen == sum(PADDED)


def without_speeds(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if not name.endswith(SPEEDS)}


@pytest.mark.parametrize("how", ["all", "non_padding", True])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_log_history_is_the_peers_with_the_same_keys_in_the_same_order(
    tmp_path: Path, how: Any, steps: int
) -> None:
    histories = []
    for kind in (transformers.Trainer, Trainer):
        trainer = tokens_trainer(
            tmp_path / kind.__module__,
            how,
            kind,
            gradient_accumulation_steps=steps,
            num_train_epochs=2,
            eval_dataset=ragged(),
            eval_strategy="epoch",
        )
        trainer.train()
        histories.append(trainer.state.log_history)
    peer, ours = histories
    for our_entry, peer_entry in zip(ours, peer, strict=True):
        assert [name for name in our_entry if "preparation" not in name] == [
            name for name in peer_entry if "preparation" not in name
        ]
        assert without_speeds(our_entry) == pytest.approx(without_speeds(peer_entry), rel=1e-5)
    assert ours[-1]["num_input_tokens_seen"] > 0


@pytest.mark.parametrize("how", ["all", "non_padding"])
def test_a_resumed_training_goes_on_counting(tmp_path: Path, how: str) -> None:
    class StopsAtFour(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save = control.should_training_stop = state.global_step == 4

    whole = tokens_trainer(tmp_path / "whole", how, num_train_epochs=2)
    whole.train()
    first = tokens_trainer(tmp_path / "parts", how, num_train_epochs=2, callbacks=[StopsAtFour()])
    first.train()
    counts = REAL if how == "non_padding" else PADDED
    assert first.state.num_input_tokens_seen == sum(counts) + counts[0]
    resumed = tokens_trainer(tmp_path / "parts", how, num_train_epochs=2)
    resumed.train(resume_from_checkpoint=True)
    assert seen(resumed) == seen(whole) == running(*counts, *counts)
    fifth = next(entry for entry in resumed.state.log_history if entry["step"] == 5)
    assert fifth["train_tokens_per_second"] == pytest.approx(counts[1] / fifth["train_runtime"], rel=0.1)


def test_padding_is_told_by_the_tokenizer_where_there_is_no_attention_mask(tmp_path: Path) -> None:
    rows = [{"input_ids": [*each["input_ids"], *[0] * (9 - len(each["input_ids"]))], "labels": 1} for each in ragged()]
    trainer = tokens_trainer(
        tmp_path,
        "non_padding",
        train_dataset=rows,
        data_collator=transformers.default_data_collator,
        processing_class=small_tokenizer(),
    )
    trainer.train()
    assert seen(trainer) == running(*REAL)


def test_every_token_counts_where_padding_cannot_be_told_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{key: value for key, value in each.items() if key != "attention_mask"} for each in classification_data(8)]
    trainer = tokens_trainer(
        tmp_path, "non_padding", train_dataset=rows, data_collator=transformers.default_data_collator
    )
    trainer.train()
    assert seen(trainer) == [48, 96]
    assert "no attention mask and no padding token" in caplog.text


class Points(Line):
    """A model whose main input is not called input_ids, as a class attribute tells."""

    main_input_name = "x"


def test_the_main_input_of_the_model_is_what_counts(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model=Points(), include_num_input_tokens_seen="all")
    trainer.train()
    assert seen(trainer) == [16, 32, 48]


def test_a_batch_without_the_main_input_counts_nothing_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(tmp_path, model=Line(), train_dataset=line_data(8), include_num_input_tokens_seen="all")
    trainer.train()
    assert seen(trainer) == [0]
    assert "'input_ids'" in caplog.text
