"""What a training step costs over a bare PyTorch loop: ours and the transformers Trainer, in one run.

    python -m studies.benchmarks.step [--rounds 7] [--threads 1]

All three do the same work on the same batches: default collator, forward, backward, clipping to norm 1, fused AdamW,
linear schedule, gradients dropped. Rounds are interleaved and their order rotates; the ratios of each round are taken
side by side, and their medians printed. Only the steps after a warm-up are timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader, Dataset, RandomSampler
from transformers import BertConfig, BertForSequenceClassification, default_data_collator, get_scheduler

import hpsearch

SIZES = {  # name: (hidden, layers, timed steps, target ratio)
    "h32x1": (32, 1, 300, 1.08),
    "h128x2": (128, 2, 120, 1.03),
    "h512x6": (512, 6, 12, 1.01),
}
BATCH, LENGTH, WARM_UP = 8, 32, 5


class Stopwatch(transformers.TrainerCallback):
    """Notes the time at the end of the warm-up and at the end of the last step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == WARM_UP:
            self.begin = time.perf_counter()
        self.end = time.perf_counter()


def make_model(hidden: int, layers: int) -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=1000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(2, hidden // 64),
        intermediate_size=4 * hidden,
        max_position_embeddings=64,
    )
    return BertForSequenceClassification(config)


class Rows(Dataset):
    """Training data of a given size in memory."""

    def __init__(self, size: int) -> None:
        self.tokens = torch.randint(0, 1000, (size // (8 * LENGTH), LENGTH))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.tokens[index]
        return {"input_ids": row, "attention_mask": torch.ones(LENGTH).long(), "labels": row[0] % 2}


def make_data(size: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 1000, (size, LENGTH), generator=generator)
    return [{"input_ids": row, "attention_mask": torch.ones(LENGTH).long(), "labels": row[0] % 2} for row in tokens]


def time_bare(hidden: int, layers: int, data: Any, steps: int) -> float:
    """Seconds a step of a plain loop."""
    torch.manual_seed(42)
    model = make_model(hidden, layers).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps + WARM_UP)
    loader = DataLoader(data, batch_size=BATCH, sampler=RandomSampler(data), collate_fn=default_data_collator)
    begin = 0.0
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == WARM_UP:
            begin = time.perf_counter()
    return (time.perf_counter() - begin) / steps


def time_trainer(library: Any, hidden: int, layers: int, data: Any, steps: int, folder: str) -> float:
    """Seconds a step of `library.Trainer`."""
    args = library.TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        save_strategy="no",
        logging_steps=10**6,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    stopwatch = Stopwatch()
    trainer = library.Trainer(
        model_init=lambda: make_model(hidden, layers), args=args, train_dataset=data, callbacks=[stopwatch]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return (stopwatch.end - stopwatch.begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), medians of {options.rounds} rounds")
    print(f"{'model':<8} {'bare ms':>8} {'ours':>7} {'peer':>7} {'target':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.sizes:
            hidden, layers, steps, target = SIZES[name]
            data = make_data(BATCH * (steps + WARM_UP))
            bare: list[float] = []
            ours: list[float] = []
            peer: list[float] = []
            sides = [
                lambda: bare.append(time_bare(hidden, layers, data, steps)),  # noqa: B023
                lambda: ours.append(time_trainer(hpsearch, hidden, layers, data, steps, folder)),  # noqa: B023
                lambda: peer.append(time_trainer(transformers, hidden, layers, data, steps, folder)),  # noqa: B023
            ]
            for place in range(options.rounds):
                for side in sides[place % 3 :] + sides[: place % 3]:
                    side()
            ratios = [
                statistics.median(each / base for each, base in zip(them, bare, strict=True)) for them in (ours, peer)
            ]
            median = statistics.median(bare) * 1e3
            print(f"{name:<8} {median:8.2f} {ratios[0]:7.3f} {ratios[1]:7.3f} {target:7.2f}", flush=True)


if __name__ == "__main__":
    main()
