"""What the pages leave to their readers: small data, models and functions under the names that the pages use."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.models import (
    accuracy,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    llama_language_model,
    small_tokenizer,
    word_tokenizer,
)
from tests.support.small_trainer import TwoLayers, points

Names = dict[str, Any]


def model_init(trial: Any = None) -> torch.nn.Module:
    """Reads every parameter that is for it; the width of the model is one of them."""
    read = {} if trial is None else {name: trial.params[name] for name in trial.params}
    return TwoLayers(read.get("model.width", 8))


def everywhere() -> Names:
    data = {"train": points(48, 0), "dev": points(32, 1), "test": points(32, 2)}
    return {"model_init": model_init, "compute_metrics": accuracy, **data}


def with_trainer() -> Names:
    from hpsearch import Categorical, Float, Trainer, TrainingArguments

    names = everywhere()
    args = TrainingArguments("runs", num_train_epochs=3, eval_strategy="epoch", disable_tqdm=True)
    trainer = Trainer(
        model_init=model_init,
        args=args,
        train_dataset=names["train"],
        eval_dataset=names["dev"],
        compute_metrics=accuracy,
    )
    space = {"learning_rate": Float(1e-4, 1e-1, log=True), "per_device_train_batch_size": Categorical([8, 16])}
    return {**names, "trainer": trainer, "space": space, "args": args, "tokenizer": small_tokenizer()}


def with_a_best_run() -> Names:
    names = with_trainer()
    return {**names, "best": names["trainer"].hyperparameter_search(names["space"], n_trials=2, progress=False)}


def with_a_text_trainer() -> Names:
    """As `with_trainer`, for the page whose data are texts."""
    texts = {"train": classification_data(32), "dev": classification_data(16, seed=1), "tokenizer": small_tokenizer()}

    def text_model(trial: Any = None) -> torch.nn.Module:
        read = {name: trial.params[name] for name in trial.params}
        return bert_classifier(dropout=read.get("model.hidden_dropout_prob", 0.0))

    return {**everywhere(), **texts, "model_init": text_model, "new_model": bert_classifier}


def in_workers() -> Names:
    bert_classifier().save_pretrained("bert")
    names = with_trainer()
    return {**names, "name": "bert", "train": classification_data(16), "dev": classification_data(8)}


def promoted() -> Names:
    """A study in `runs/long` with a trial 7 that has not ended."""
    names = with_trainer()
    stopped: list[int] = []

    def stop(trial: Any = None) -> torch.nn.Module:
        if trial is not None and trial.number == 7 and not stopped:
            stopped.append(7)
            raise KeyboardInterrupt
        return model_init(trial)

    names["trainer"].model_init = stop
    try:
        names["trainer"].hyperparameter_search(names["space"], n_trials=9, study_name="long", progress=False)
    except KeyboardInterrupt:
        names["trainer"].model_init = model_init
    return names


def sequence_to_sequence() -> Names:
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = word_tokenizer()
    config = T5Config(
        vocab_size=100, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0, decoder_start_token_id=0
    )
    T5ForConditionalGeneration(config).save_pretrained("t5")
    samples = [{"input_ids": [4 + at, 5 + at], "labels": [5 + at, 1]} for at in range(16)]

    def exact_match(prediction: Any) -> dict[str, float]:
        width = prediction.label_ids.shape[1]
        found = (
            prediction.predictions[:, 1 : 1 + width] == prediction.label_ids[:, : prediction.predictions.shape[1] - 1]
        )
        return {"exact_match": float(found.all(1).mean())}

    given = {"train": samples, "dev": samples[:4], "test": samples[:4], "exact_match": exact_match}
    return {"name": "t5", "tokenizer": tokenizer, **given}


def other_trainers() -> Names:
    """What the page about trainers of other packages needs."""
    import datasets

    tokenizer = word_tokenizer()
    gpt2_language_model().save_pretrained("gpt2")
    bert_classifier().bert.save_pretrained("encoder")
    tokenizer.save_pretrained("encoder")
    words = tokenizer.convert_ids_to_tokens(range(4, 100))
    sentences = [" ".join(words[start : start + 4]) for start in range(24)]
    texts = datasets.Dataset.from_dict({"text": sentences})
    prompts = datasets.Dataset.from_dict({"prompt": sentences[:4]})
    pairs = datasets.Dataset.from_dict({"anchor": sentences, "positive": sentences[1:] + sentences[:1]})
    return {
        **everywhere(),
        **{"tokenizer": tokenizer, "language_model": "gpt2", "texts": texts, "other_texts": texts},
        **{"prompts": prompts, "other_prompts": prompts},
        **{"sentence_model": "encoder", "pairs": pairs, "other_pairs": pairs},
    }


def a_language_model() -> Names:
    """A tiny Llama in the folder `base`, and token sequences; a BERT without a head in `encoder`, and labelled ones."""
    llama_language_model().save_pretrained("base")
    bert_classifier().bert.save_pretrained("encoder")
    labelled = {"sentences": classification_data(48), "dev_sentences": classification_data(16, seed=1)}
    texts = {"train": language_data(48), "dev": language_data(16, seed=1), "tokenizer": word_tokenizer()}
    return {"base": "base", **texts, "encoder": "encoder", **labelled}


def with_a_hub() -> Names:
    """A Hub on this machine, for as long as the program runs."""
    import huggingface_hub
    import transformers
    from huggingface_hub import constants

    from tests.support.hub_server import TOKEN, HubServer

    server = HubServer()
    server.__enter__()
    atexit.register(server.__exit__, None, None, None)
    constants.ENDPOINT, constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_XET = server.url, False, True
    constants.HUGGINGFACE_CO_URL_TEMPLATE = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    huggingface_hub.hf_api.api.endpoint = server.url
    transformers.utils.hub._hf_api = None
    os.environ["HF_TOKEN"] = TOKEN
    return {"model": gpt2_language_model(), "data": language_data(16), "tokenizer": small_tokenizer()}


def offline_tracker() -> Names:
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=str(Path.cwd()))
    return everywhere()


GIVEN: dict[str, Callable[[], Names]] = {
    "README": with_a_text_trainer,
    "bring-your-trainer": other_trainers,
    "budgets": with_trainer,
    "coming-from-wandb-sweeps": offline_tracker,
    "continue-a-study": with_trainer,
    "define-a-space": with_trainer,
    "failures": with_a_best_run,
    "how-search-decides": promoted,
    "hub": with_a_hub,
    "language-models": a_language_model,
    "objectives": with_trainer,
    "parallel": in_workers,
    "repeats": with_trainer,
    "results": with_trainer,
    "search": with_trainer,
    "seq2seq": sequence_to_sequence,
    "test-set": with_trainer,
}


def given(page: str) -> Names:
    """Return the names that a page takes for granted."""
    return GIVEN.get(page, everywhere)()
