"""What the tests run in one process or in several: trainings, as a settings file says; every process writes reports.

python -m tests.support.distributed_training settings.json
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset

from hpsearch import Trainer, TrainerCallback, TrainingArguments
from hpsearch.training.sharding import has_shards
from tests.support.models import (
    accuracy,
    bert_classifier,
    classification_data,
    gpt2_language_model,
    language_data,
    weights_of,
)


class Watch(TrainerCallback):
    """Remembers the saves, and the parameters that each process holds while it trains."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.own_parameters = 0
        self.is_sharded = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saved.append(state.global_step)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        parameters = list(kwargs["model"].parameters())
        self.is_sharded = has_shards(kwargs["model"])
        self.own_parameters = sum((each.to_local() if self.is_sharded else each).numel() for each in parameters)


class Stream(IterableDataset):
    """Samples without a length."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        yield from self.samples


class OwnPartTrainer(Trainer):
    """Feeds each process its own part of the data, as it is."""

    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=self.args.train_batch_size, collate_fn=self.data_collator)


def gpt2_without_dropout() -> torch.nn.Module:
    model = gpt2_language_model()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


class OwnLossTrainer(Trainer):
    """Takes the model's own mean, whatever the count of items."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(each["input_ids"]) for each in samples)
    rows = {
        name: torch.tensor([each[name] + [0] * (longest - len(each[name])) for each in samples])
        for name in ("input_ids", "attention_mask")
    }
    return {**rows, "labels": torch.tensor([each["labels"] for each in samples])}


def ragged(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples, cut to lengths from 4 to 12."""
    return [
        {**each, "input_ids": each["input_ids"][: 4 + index % 9], "attention_mask": [1] * (4 + index % 9)}
        for index, each in enumerate(samples)
    ]


def remember_rows(prediction: Any) -> dict[str, float]:
    """Accuracy, the number of rows, and a sum that changes if a row is missing, doubled or moved."""
    places = np.arange(1, len(prediction.label_ids) + 1)
    digest = float((places * prediction.predictions[:, 0]).sum())
    return {**accuracy(prediction), "rows": len(prediction.label_ids), "digest": digest}


def adapted_classifier() -> Any:
    import peft

    return peft.get_peft_model(bert_classifier(dropout=0.0), peft.LoraConfig(task_type="SEQ_CLS", r=4))


def build(case: dict[str, Any]) -> Trainer:
    args = TrainingArguments(use_cpu=True, report_to="none", disable_tqdm=True, **case["args"])
    task = case.get("task", "classification")
    parts: dict[str, Any] = {
        "model_init": functools.partial(bert_classifier, dropout=case.get("dropout", 0.0)),
        "train_dataset": classification_data(size=64),
        "eval_dataset": classification_data(size=21, seed=1),
        "compute_metrics": remember_rows,
    }
    kind: type[Trainer] = Trainer
    if task == "language":
        parts = {
            "model_init": gpt2_without_dropout,
            "train_dataset": language_data(size=64),
            "eval_dataset": language_data(size=21, seed=1),
        }
        kind = OwnLossTrainer if case.get("own_loss") else Trainer
    elif task == "ragged":
        parts["train_dataset"] = ragged(parts["train_dataset"])
        parts["data_collator"] = padded
    elif task == "stream":
        parts["train_dataset"], parts["eval_dataset"] = Stream(parts["train_dataset"]), Stream(parts["eval_dataset"])
    elif task == "uneven_streams":
        kind = OwnPartTrainer
        parts["train_dataset"] = Stream(classification_data(size=40 if args.process_index == 0 else 24))
    if case.get("adapters"):
        parts["model_init"] = adapted_classifier
    if case.get("evaluates_a_given_model_first"):
        torch.manual_seed(0)
        parts["model"] = parts.pop("model_init")()
    if "eval_size" in case:
        parts["eval_dataset"] = parts["eval_dataset"][: case["eval_size"]]
    return kind(args=args, callbacks=[Watch()], **parts)


def run(case: dict[str, Any]) -> dict[str, Any]:
    trainer = build(case)
    order = Path(case["args"]["output_dir"] + ".order")
    with trainer.args.main_process_first(desc="preparing the data"), open(order, "a", encoding="utf-8") as lines:
        lines.write(f"{trainer.args.process_index} begins\n")
        if trainer.args.process_index == 0:
            time.sleep(0.3)
        lines.write(f"{trainer.args.process_index} ends\n")
    if case.get("evaluates_a_given_model_first"):
        trainer.evaluate()
    output = trainer.train(resume_from_checkpoint=case.get("resume"))
    watch = next(each for each in trainer.callbacks if isinstance(each, Watch))
    predictions = trainer.predict(trainer.eval_dataset).predictions
    trainer.save_model(str(Path(trainer.args.output_dir, "final")))
    return {
        "history": trainer.state.log_history,
        "loss": output.training_loss,
        "steps": output.global_step,
        "tokens": trainer.state.num_input_tokens_seen,
        "flos": trainer.state.total_flos,
        "final": trainer.evaluate(),
        "output_dir": trainer.args.output_dir,
        "predictions": len(predictions),
        "saved": watch.saved,
        "is_sharded": watch.is_sharded,
        "own_parameters": watch.own_parameters,
        "distribution": str(trainer.accelerator.distributed_type),
        "world_size": trainer.args.world_size,
        "log_level": transformers.utils.logging.get_verbosity(),
        "weights": None
        if watch.is_sharded
        else float(sum(each.double().abs().sum() for each in weights_of(trainer.model).values())),
    }


def main() -> None:
    torch.set_num_threads(1)
    settings = Path(sys.argv[1])
    for name, case in json.loads(settings.read_text()).items():
        report = run(case)
        rank = TrainingArguments("unused", use_cpu=True).process_index
        settings.with_name(f"{name}-{rank}.json").write_text(json.dumps(report))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # torch's gloo threads now and then abort a process that ends by itself, whoever trained in it


if __name__ == "__main__":
    main()
