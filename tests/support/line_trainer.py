"""What the tests of the reused libraries share: our trainer on points of a line, and a tokenizer made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback

from hpsearch import Trainer, TrainingArguments
from tests.support.models import Line, line_data

LETTERS = tuple("abcdefghij")


def arguments(folder: Path | str, **changes: Any) -> TrainingArguments:
    """Three updates per epoch over 24 samples, on the CPU, quietly, with every update logged."""
    return TrainingArguments(
        str(folder),
        **{
            "learning_rate": 1e-2,
            "per_device_train_batch_size": 8,
            "num_train_epochs": 1,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            **changes,
        },
    )


def line_trainer(folder: Path | str, trainer: dict[str, Any] | None = None, **changes: Any) -> Trainer:
    """Our trainer on 24 points of a line; `trainer` are arguments of the Trainer, `changes` training arguments."""
    given: dict[str, Any] = {"train_dataset": line_data(), "eval_dataset": line_data(9, seed=1), **(trainer or {})}
    if "model" not in given:
        given.setdefault("model_init", Line)
    made = Trainer(args=arguments(folder, **changes), **given)
    made.remove_callback(PrinterCallback)
    return made


def logged(trainer: Trainer, name: str) -> list[tuple[int, float]]:
    """(step, value) of every entry of the log history that has `name`."""
    return [(entry["step"], entry[name]) for entry in trainer.state.log_history if name in entry]


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of ten one-letter words; `[PAD]` is 0, `[UNK]` 1, `a` 2."""
    vocabulary = {name: index for index, name in enumerate(("[PAD]", "[UNK]", *LETTERS))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        model_max_length=32,
        model_input_names=["input_ids", "attention_mask"],
    )
