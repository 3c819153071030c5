"""The task of adapters (LoRA): a small Llama that was pre-trained on one half of a text is fine-tuned on the other.

The pre-trained model is made once, by `studies.lora`, and kept in a folder. It is the same each time: its training has
one seed and one thread.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hpsearch import Categorical, Float, FromPretrained, Int, SearchSpace

from ..character_model import load_data
from ..lora import make_base
from .real_tasks import MissingData, Task, causal_rows, read_data

PRETRAINING_STEPS = 1080
SPACE = SearchSpace(
    {
        "learning_rate": Float(1e-4, 3e-2, log=True),
        "per_device_train_batch_size": Categorical((8, 16, 32)),
        "warmup_steps": Float(0.0, 0.2),
        "lora.r": Int(2, 32, log=True),
        "lora.alpha": Int(4, 64, log=True),
        "lora.dropout": Float(0.0, 0.3),
    }
)
_DEFAULTS = {"lora.r": 8, "lora.alpha": 16, "lora.dropout": 0.05}


def adapted(pretrained: FromPretrained, trial: Any = None) -> Any:
    """Return the pre-trained model with new adapters on every linear layer but the output."""
    from peft import LoraConfig, get_peft_model

    params = _DEFAULTS if trial is None else trial.params
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=params["lora.r"],
        lora_alpha=params["lora.alpha"],
        lora_dropout=params["lora.dropout"],
        target_modules="all-linear",
    )
    return get_peft_model(pretrained(), config)


def pretrain(data: Path, folder: Path, steps: int = PRETRAINING_STEPS) -> Path:
    """Return the folder of the pre-trained model in this folder; make it if it does not exist.

    Raises:
        MissingData: there is no text, or PEFT is not installed.
    """
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise MissingData("peft is not installed") from error
    first, _ = _halves(data)
    made = folder / f"lora-base-{steps}-{zlib.crc32(first.encode()):08x}"
    if not made.is_dir():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # sums of several threads differ in their last digits
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                make_base(first, steps, made)
        finally:
            torch.set_num_threads(threads)
    return made


def make_lora(data: Path, folder: Path, epoch: int = 192, steps: int = PRETRAINING_STEPS) -> Task:
    """Return the fine-tuning; `folder` keeps the pre-trained model, which is made with this number of steps.

    Raises:
        MissingData: there is no text, or PEFT is not installed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = pretrain(data, folder, steps)
    splits = load_data(_halves(data)[1], AutoTokenizer.from_pretrained(made))
    train, dev, test = (splits[name][:]["input_ids"] for name in ("train", "dev", "test"))
    model_init = partial(adapted, FromPretrained(AutoModelForCausalLM, made))
    return Task("loss", SPACE, model_init, causal_rows(train, epoch), causal_rows(dev[::6]), causal_rows(test), 18)


def _halves(data: Path) -> tuple[str, str]:
    text = read_data(data / "tinyshakespeare" / "input.txt")
    return text[: len(text) // 2], text[len(text) // 2 :]
