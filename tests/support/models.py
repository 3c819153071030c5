"""Small models and data that the tests share; all made here, nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)


def bert_classifier(hidden: int = 32, layers: int = 1, dropout: float = 0.1) -> BertForSequenceClassification:
    """A BERT classifier with two labels over a vocabulary of 100."""
    config = BertConfig(
        vocab_size=100,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * hidden,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForSequenceClassification(config)


def gpt2_language_model() -> GPT2LMHeadModel:
    """A GPT-2 language model over a vocabulary of 100."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=1, n_head=2))


def llama_language_model(hidden: int = 32) -> LlamaForCausalLM:
    """A Llama over a vocabulary of 100."""
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config)


def classification_data(size: int = 60, length: int = 12, seed: int = 0) -> list[dict[str, Any]]:
    """Token sequences whose label tells whether the first token is in the upper half of the vocabulary."""
    random = np.random.default_rng(seed)
    tokens = random.integers(1, 100, size=(size, length))
    return [{"input_ids": row.tolist(), "attention_mask": [1] * length, "labels": int(row[0] >= 50)} for row in tokens]


def language_data(size: int = 60, length: int = 12, seed: int = 0) -> list[dict[str, Any]]:
    """Token sequences counting upwards from a random start, with some labels masked out."""
    random = np.random.default_rng(seed)
    samples = []
    for start in random.integers(0, 90, size=size):
        tokens = [(int(start) + step) % 100 for step in range(length)]
        masked = int(random.integers(0, 4))
        samples.append({"input_ids": tokens, "labels": [-100] * masked + tokens[masked:]})
    return samples


def accuracy(prediction: Any) -> dict[str, float]:
    """The fraction of samples whose largest logit is at the label."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of all parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


class Line(torch.nn.Module):
    """`prediction = weight * x + bias`; returns what `form` says: a dict, a tuple, or a dict without a loss."""

    def __init__(self, form: str = "dict") -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.form = form

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        predictions = self.linear(x).squeeze(-1)
        if labels is None or self.form == "no_loss":
            return {"predictions": predictions, "features": x}
        loss = torch.nn.functional.mse_loss(predictions, labels)
        return (loss, predictions) if self.form == "tuple" else {"loss": loss, "predictions": predictions}


def line_data(size: int = 24, seed: int = 0, **extra: Any) -> list[dict[str, Any]]:
    """Points of two coordinates `x` whose label is their sum; `extra` keys are added to every sample."""
    points = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed))
    return [{"x": point, "labels": point.sum(), **extra} for point in points]


class TiedPair(torch.nn.Module):
    """Two linear layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = torch.nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        predictions = self.second(self.first(x)).sum(-1)
        return {"loss": torch.nn.functional.mse_loss(predictions, labels), "predictions": predictions}


def small_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of two words that pads on the right with id 0; enough for collators that pad."""
    words = Tokenizer(WordLevel({"[PAD]": 0, "a": 1}, unk_token="[PAD]"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 96 words, ``w0`` to ``w95``, and the tokens that models of several packages ask for."""
    special = {"[PAD]": 0, "[EOS]": 1, "[UNK]": 2, "[CLS]": 3}
    words = Tokenizer(WordLevel({**special, **{f"w{at}": 4 + at for at in range(96)}}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]", cls_token="[CLS]"
    )


class PlainClassifier(torch.nn.Module):
    """A classifier with two labels over a vocabulary of 100 that is no transformers model: the mean of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 8)
        self.output = torch.nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.output(self.embedding(input_ids).mean(1))
        loss = {} if labels is None else {"loss": torch.nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}
