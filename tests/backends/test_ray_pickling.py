"""A trainer in Ray's object store has no token that workers find in their environment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

pytest.importorskip("ray")

from hpsearch.executors.ray_executor.object_store import put
from tests.support.small_trainer import small_trainer

TOKEN = "hf_of_the_environment"


def test_a_trainer_comes_out_the_same_and_its_token_does_not_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("ray.put", lambda value: value)
    theirs = transformers.TrainingArguments(str(tmp_path), hub_token=TOKEN, use_cpu=True)
    data = np.arange(100_000)
    trainer = small_trainer(tmp_path, model_init=lambda: (theirs, data), hub_token=TOKEN)
    sent = put(trainer)
    assert TOKEN.encode() not in sent.content
    assert len(sent.content) < data.nbytes
    again = sent.load()
    same, numbers = again.model_init()
    assert again.args.hub_token == same.hub_token == TOKEN
    assert np.array_equal(numbers, data)
