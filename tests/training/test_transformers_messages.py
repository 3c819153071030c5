"""Errors that scripts tell by their texts: the words that they match are in ours as they are in transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import hpsearch
from tests.support.models import Line, bert_classifier, line_data


def contradictory() -> transformers.GenerationConfig:
    """Return a generation config with a temperature, which only sampling would use."""
    config = transformers.GenerationConfig(do_sample=False)
    config.temperature = 0.5
    return config


def made(package: Any, folder: Path, **changes: Any) -> Any:
    """Make a trainer of one of the two packages; names that its arguments have go there."""
    fields = package.TrainingArguments.__dataclass_fields__
    values = {name: changes.pop(name) for name in list(changes) if name in fields}
    args = package.TrainingArguments(
        str(folder), **{"use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "report_to": "none", **values}
    )
    parts = {} if {"model", "model_init"} & changes.keys() else {"model": Line()}
    return package.Trainer(
        args=args, **{"train_dataset": line_data(8), "eval_dataset": line_data(4), **parts, **changes}
    )


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(Line().parameters(), lr=0.1)


def empty_checkpoint(package: Any, folder: Path) -> Any:
    (folder / "checkpoint-1").mkdir(parents=True, exist_ok=True)
    return made(package, folder).train(resume_from_checkpoint=str(folder / "checkpoint-1"))


def best_by_an_unknown_metric(package: Any, folder: Path) -> Any:
    return made(
        package, folder, eval_strategy="steps", eval_steps=1, save_strategy="best", metric_for_best_model="quality"
    ).train()


Situation = Callable[[Any, Path], Any]
MESSAGES: dict[str, Situation] = {
    "`Trainer` requires either a `model` or `model_init` argument": lambda p, f: made(p, f, model=None),
    "`Trainer` requires either a `model` or `model_init` argument, but not both": lambda p, f: made(
        p, f, model=Line(), model_init=Line
    ),
    "Passing a `model_init` is incompatible with providing the `optimizers` argument": lambda p, f: made(
        p, f, model_init=Line, optimizers=(sgd(), None)
    ),
    "Passing both `optimizers` and `optimizer_cls_and_kwargs` arguments is incompatible": lambda p, f: made(
        p, f, optimizers=(sgd(), None), optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1})
    ),
    "you didn't pass an `eval_dataset` to `Trainer`": lambda p, f: made(p, f, eval_strategy="epoch", eval_dataset=None),
    "your `compute_metrics` function must take a `compute_result`": lambda p, f: made(
        p, f, batch_eval_metrics=True, compute_metrics=lambda prediction: {}
    ),
    "`args.metric_for_best_model` must be provided when using 'best' save_strategy": lambda p, f: made(
        p, f, save_strategy="best", eval_strategy="epoch"
    ),
    "The `metric_for_best_model` training argument is set to '": best_by_an_unknown_metric,
    "model_init should have 0 or 1 argument": lambda p, f: made(p, f, model_init=lambda a, b: Line()),
    "model_init should not return None": lambda p, f: made(p, f, model_init=lambda: None).train(),
    "Trainer: training requires a train_dataset": lambda p, f: made(p, f, train_dataset=None).train(),
    "Trainer: evaluation requires an eval_dataset": lambda p, f: made(p, f, eval_dataset=None).evaluate(),
    "Trainer optimizer is None": lambda p, f: made(p, f).get_learning_rates(),
    "No valid checkpoint found in output directory (": lambda p, f: made(p, f).train(resume_from_checkpoint=True),
    "Can't find a valid checkpoint at": lambda p, f: made(p, f).train(resume_from_checkpoint=str(f / "checkpoint-9")),
    "Can't find a valid checkpoint at ": empty_checkpoint,
    "Fix these issues to train your model.": lambda p, f: p.Seq2SeqTrainer.load_generation_config(contradictory()),
    "requires the save and eval strategy to match": lambda p, f: made(
        p, f, load_best_model_at_end=True, eval_strategy="epoch", save_strategy="steps"
    ),
    "At most one of fp16 and bf16 can be True": lambda p, f: made(p, f, fp16=True, bf16=True),
}


@pytest.mark.parametrize("words", MESSAGES)
def test_the_words_of_transformers_are_in_our_error(tmp_path: Path, words: str) -> None:
    for package in (transformers, hpsearch):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the types are compared below
            MESSAGES[words](package, tmp_path / package.__name__)
        assert words in str(caught.value), package.__name__
    assert isinstance(caught.value, hpsearch.HpsearchError)


def test_a_model_without_a_head_is_refused_in_the_words_of_transformers(tmp_path: Path) -> None:
    headless = bert_classifier().bert
    with pytest.raises(hpsearch.InvalidInputError, match=r"picked \(BertModel\) cannot be used as is for training"):
        made(hpsearch, tmp_path, model=headless).train()
