"""What the tests run in one process or several: one training, as a settings file says; every process writes a report.

python -m tests.distributed.script settings.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from hpsearch import Trainer, TrainerCallback, TrainingArguments
from tests.models import accuracy, bert_classifier, classification_data, gpt2_language_model, language_data, weights_of


class Events(TrainerCallback):
    """Remembers which events came, at which step."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(("evaluate", state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(("save", state.global_step))


class UnevenStream(IterableDataset):
    """A stream of which every process holds another part: process 0 more than the others."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from classification_data(size=40 if self.rank == 0 else 24, seed=self.rank)


class Stream(IterableDataset):
    """A stream that is the same in every process."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.samples


class OwnPartTrainer(Trainer):
    """Feeds each process its own part of the data, as it is."""

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(
            self.train_dataset, batch_size=self.args.train_batch_size, collate_fn=self.data_collator
        )


def build(settings: dict[str, Any]) -> Trainer:
    args = TrainingArguments(use_cpu=True, report_to="none", disable_tqdm=True, **settings["args"])
    size, eval_size = settings.get("train_size", 64), settings.get("eval_size", 21)
    task = settings.get("task", "bert")
    kind: type[Trainer] = Trainer
    train: Any = classification_data(size=size)
    evaluation: Any = classification_data(size=eval_size, seed=1)
    model_init: Any = lambda: bert_classifier(dropout=settings.get("dropout", 0.0))  # noqa: E731
    metrics: Any = remember_rows
    if task == "gpt2":
        train, evaluation = language_data(size=size), language_data(size=eval_size, seed=1)
        model_init, metrics = gpt2_language_model, None
    if task == "ragged":
        train = [
            {**each, "input_ids": each["input_ids"][: 4 + index % 9], "attention_mask": [1] * (4 + index % 9)}
            for index, each in enumerate(train)
        ]
    if task == "uneven_stream":
        kind, train = OwnPartTrainer, UnevenStream(args.process_index)
    if task == "stream":
        train, evaluation = Stream(train), Stream(evaluation)
    return kind(
        model_init=model_init,
        args=args,
        train_dataset=train,
        eval_dataset=evaluation,
        compute_metrics=metrics,
        callbacks=[Events()],
        data_collator=padded if task == "ragged" else None,
    )


def padded(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(each["input_ids"]) for each in samples)
    return {
        **{
            name: torch.tensor([each[name] + [0] * (longest - len(each[name])) for each in samples])
            for name in ("input_ids", "attention_mask")
        },
        "labels": torch.tensor([each["labels"] for each in samples]),
    }


def remember_rows(prediction: Any) -> dict[str, float]:
    """Accuracy, how many samples were seen, and a number that changes if one is missing, doubled or moved."""
    places = np.arange(1, len(prediction.label_ids) + 1)
    return {
        **accuracy(prediction),
        "rows": len(prediction.label_ids),
        "digest": float((places * prediction.predictions[:, 0]).sum()),
    }


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    trainer = build(settings)
    output = trainer.train(resume_from_checkpoint=settings.get("resume"))
    final = trainer.evaluate() if trainer.eval_dataset is not None else {}
    trainer.save_model(settings["args"]["output_dir"] + "/final")
    report = {
        "history": trainer.state.log_history,
        "loss": output.training_loss,
        "steps": output.global_step,
        "tokens": trainer.state.num_input_tokens_seen,
        "flos": trainer.state.total_flos,
        "final": final,
        "events": next(each.seen for each in trainer.callbacks if isinstance(each, Events)),
        "distributed_type": str(trainer.accelerator.distributed_type),
        "world_size": trainer.args.world_size,
        "weights": float(sum(each.double().abs().sum() for each in weights_of(trainer.model).values()))
        if not settings.get("sharded")
        else None,
    }
    Path(sys.argv[2], f"rank-{trainer.args.process_index}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
