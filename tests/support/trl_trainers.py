"""Trainers of TRL on tiny models and data: six steps with an evaluation after each, in epochs of a few steps.

TRL takes seconds to import: tests import this module where they use it, not at their top.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import torch
import transformers
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)

from tests.support.models import gpt2_language_model, word_tokenizer

Make = Callable[[Any], transformers.Trainer]

STEPS = 6
_SHARED: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "max_steps": STEPS,
    "save_strategy": "no",
    "logging_strategy": "no",
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 8,
    "report_to": [],
    "disable_tqdm": True,
}
_TOKENIZED = {**_SHARED, "max_length": 16}
_GENERATING = {**_SHARED, "max_completion_length": 4, "num_generations": 2}


def counting(start: int, length: int = 6) -> str:
    """Words that count upwards."""
    return " ".join(f"w{(start + step) % 96}" for step in range(length))


def pairs(size: int) -> datasets.Dataset:
    """Prompts with a completion that counts on, and one that does not."""
    columns = {"prompt": 0, "chosen": 2, "rejected": 50}
    return datasets.Dataset.from_dict(
        {name: [" " * (at > 0) + counting(start + at, 2) for start in range(size)] for name, at in columns.items()}
    )


def supervised(**changes: Any) -> Make:
    texts = datasets.Dataset.from_dict({"text": [counting(start) for start in range(8)]})

    def make(trial: Any) -> transformers.Trainer:
        args = SFTConfig("made", **{**_TOKENIZED, **changes}, **trial.params)
        return SFTTrainer(
            gpt2_language_model(), args, train_dataset=texts, eval_dataset=texts, processing_class=word_tokenizer()
        )

    return make


def preference(**changes: Any) -> Make:
    def make(trial: Any) -> transformers.Trainer:
        args = DPOConfig("made", **{**_TOKENIZED, **changes}, **trial.params)
        return DPOTrainer(
            gpt2_language_model(),
            _reference(),
            args,
            train_dataset=pairs(8),
            eval_dataset=pairs(4),
            processing_class=word_tokenizer(),
        )

    return make


def unpaired_preference(**changes: Any) -> Make:
    columns = pairs(8).to_dict()
    judged = {"prompt": columns["prompt"], "completion": columns["chosen"], "label": [True, False] * 4}

    def make(trial: Any) -> transformers.Trainer:
        args = KTOConfig("made", **{**_TOKENIZED, **changes}, **trial.params)
        data = datasets.Dataset.from_dict(judged)
        return KTOTrainer(
            gpt2_language_model(),
            _reference(),
            args,
            train_dataset=data,
            eval_dataset=data,
            processing_class=word_tokenizer(),
        )

    return make


def reward(**changes: Any) -> Make:
    config = GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=1, n_head=2, num_labels=1, pad_token_id=0)

    def make(trial: Any) -> transformers.Trainer:
        args = RewardConfig("made", **{**_TOKENIZED, **changes}, **trial.params)
        return RewardTrainer(
            GPT2ForSequenceClassification(config),
            args,
            train_dataset=pairs(8),
            eval_dataset=pairs(4),
            processing_class=word_tokenizer(),
        )

    return make


def group_relative(prompts: int = 4, **changes: Any) -> Make:
    return _generating(GRPOTrainer, GRPOConfig, prompts, changes)


def leave_one_out(prompts: int = 4, **changes: Any) -> Make:
    return _generating(RLOOTrainer, RLOOConfig, prompts, changes)


def _generating(kind: Any, config: Any, prompts: int, changes: dict[str, Any]) -> Make:
    """A trainer that generates: two prompts in a step, with two completions each; the policy is read from a folder,
    as TRL makes its reference model from there."""
    data = datasets.Dataset.from_dict({"prompt": [counting(start, 2) for start in range(prompts)]})

    def make(trial: Any) -> transformers.Trainer:
        _reference().save_pretrained("policy")
        policy = GPT2LMHeadModel.from_pretrained("policy")
        args = config("made", **{**_GENERATING, **changes}, **trial.params)
        tokenizer = word_tokenizer()
        tokenizer.padding_side = "left"
        return kind(policy, _even_digits, args, train_dataset=data, eval_dataset=data, processing_class=tokenizer)

    return make


def _even_digits(completions: list[str], **kwargs: Any) -> list[float]:
    """The reward: the share of even digits in a completion."""
    return [sum(each.count(digit) for digit in "02468") / (1 + len(each)) for each in completions]


def _reference() -> GPT2LMHeadModel:
    """The same model each time, whatever the seed of the trial."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return gpt2_language_model()
