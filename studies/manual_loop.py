"""What the Trainer does with its default arguments, written out as a plain PyTorch loop; both give the same losses.

    python -m studies.manual_loop [--epochs 3] [--samples 400]

AdamW at 5e-5 without weight decay, a linear schedule without warm-up over all updates, three epochs of batches of 8 in
a new random order, gradients clipped at a norm of 1.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from tqdm import tqdm
from transformers import PrinterCallback, default_data_collator, get_scheduler, set_seed

from studies.digits import load_data, model_init

SEED = 42


def losses_by_hand(dataset: Any, epochs: int) -> list[float]:
    """Train for `epochs` and return the loss of every update."""
    set_seed(SEED)
    model = model_init().train()
    order = torch.Generator()
    loader = DataLoader(
        dataset, batch_size=8, sampler=RandomSampler(dataset, generator=order), collate_fn=default_data_collator
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
    steps = epochs * len(loader)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps)
    losses = []
    with tqdm(total=steps, disable=None, leave=False) as bar:
        for epoch in range(epochs):
            order.manual_seed(SEED + epoch)
            for batch in loader:
                loss = model(**batch).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                bar.update()
    return losses


def losses_of_trainer(dataset: Any, **arguments: Any) -> list[float]:
    """Train with the default arguments, changed by `arguments`, and return the loss of every update."""
    from hpsearch import Trainer, TrainingArguments

    args = TrainingArguments(
        "manual_loop", logging_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True, **arguments
    )
    trainer = Trainer(model_init=model_init, args=args, train_dataset=dataset)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def show(ours: list[float], by_hand: list[float]) -> float:
    """Print both curves, thinned out; return the largest difference."""
    print(f"{'update':>8} {'by hand':>10} {'Trainer':>10}")
    for index in range(0, len(ours), max(1, len(ours) // 10)):
        print(f"{index + 1:>8} {by_hand[index]:>10.6f} {ours[index]:>10.6f}")
    largest = max(abs(one - other) for one, other in zip(ours, by_hand, strict=True))
    print(f"{len(ours)} updates; largest difference of two losses: {largest:.1e}")
    return largest


def options_of(arguments: list[str] | None, description: str | None) -> argparse.Namespace:
    """Parse the options that the loops share."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=400, help="how many of the training digits to use")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run both and compare; the exit status is 1 if they differ."""
    options = options_of(arguments, __doc__)
    dataset = load_data()["train"].select(range(options.samples))
    by_hand = losses_by_hand(dataset, options.epochs)
    # Three epochs are the default; the option only makes the study shorter.
    ours = losses_of_trainer(dataset, **({} if options.epochs == 3 else {"num_train_epochs": options.epochs}))
    return int(show(ours, by_hand) > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
