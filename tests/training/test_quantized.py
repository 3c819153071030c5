"""Adapters on weights in 4 bits (QLoRA): trained, searched, resumed from pauses, and loaded; on the CPU too."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hpsearch import Categorical, FromPretrained, InvalidInputError, Trainer, TrainingArguments
from tests.support.models import language_data, llama_language_model

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def in_4_bits(folder: Path) -> Any:
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    llama_language_model(64).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_a_search_trains_adapters_on_weights_in_4_bits_and_loads_the_best(base: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def model_init(trial: Any) -> Any:
        model = peft.prepare_model_for_kbit_training(in_4_bits(base))
        rank = trial.params["lora.r"]
        return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=rank, target_modules="all-linear"))

    args = TrainingArguments(
        str(tmp_path), num_train_epochs=3, eval_strategy="epoch", learning_rate=1e-2, use_cpu=True, disable_tqdm=True
    )
    data = language_data(16)
    trainer = Trainer(model_init=model_init, args=args, train_dataset=data, eval_dataset=data)
    best = trainer.hyperparameter_search({"lora.r": Categorical([1, 2, 3, 4, 5, 6])}, n_trials=6, progress=False)
    states = {record.state.value for record in best.run_summary.records}
    assert states == {"complete", "pruned"}  # so some have been paused
    files = {each.name: each.stat().st_size for each in best.checkpoint.iterdir()}
    assert "model.safetensors" not in files
    model = best.load_model()
    assert "4bit" in type(model.base_model.model.model.layers[0].mlp.up_proj.base_layer).__name__
    again = Trainer(model=model, args=args, eval_dataset=data)
    # bitsandbytes computes on the CPU with kernels that differ a little between two calls.
    assert again.evaluate()["eval_loss"] == pytest.approx(best.objective, rel=5e-3)


def test_a_folder_of_weights_in_4_bits_is_refused_by_from_pretrained_with_what_to_do(
    base: Path, tmp_path: Path
) -> None:
    in_4_bits(base).save_pretrained(tmp_path / "quantized")
    with pytest.raises(InvalidInputError, match=r"is quantized.*Call from_pretrained in a model_init function instead"):
        FromPretrained(AutoModelForCausalLM, tmp_path / "quantized")()
