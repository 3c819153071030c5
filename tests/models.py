"""Small models and data that the tests share; all made here, nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel


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
