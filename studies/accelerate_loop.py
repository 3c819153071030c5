"""A loop of one's own on several devices, with accelerate; the Trainer with the same arguments gives the same losses.

    python -m studies.accelerate_loop [--epochs 3] [--samples 400]
    accelerate launch --config_file studies/accelerate/cpu_two_processes.yaml -m studies.accelerate_loop

`prepare` wraps what the loop uses, `backward` takes the place of `loss.backward()`; no line names a device.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import default_data_collator, get_scheduler, set_seed

from studies.digits import load_data, model_init
from studies.manual_loop import SEED, losses_of_trainer, options_of, show

LEARNING_RATE = 3e-5


def losses_with_accelerate(dataset: Any, epochs: int) -> list[float]:
    """Train for `epochs` and return the loss of every update, averaged over the processes."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(SEED)
    model = model_init()
    loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=default_data_collator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
    steps = epochs * len(loader)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps)
    losses = []
    model.train()
    with tqdm(total=steps, disable=None if accelerator.is_main_process else True, leave=False) as bar:
        for _ in range(epochs):
            for batch in loader:
                loss = model(**batch).loss
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(accelerator.gather(loss.detach()).mean().item())
                bar.update()
    return losses


def main(arguments: list[str] | None = None) -> int:
    """Run both and compare; the exit status is 1 if they differ."""
    options = options_of(arguments, __doc__)
    dataset = load_data()["train"].select(range(options.samples))
    with_accelerate = losses_with_accelerate(dataset, options.epochs)
    ours = losses_of_trainer(dataset, learning_rate=LEARNING_RATE, num_train_epochs=options.epochs)
    state = PartialState()
    differs = False
    if state.is_main_process:
        print(f"{state.num_processes} process(es)")
        differs = show(ours, with_accelerate) > 1e-5
    state.destroy_process_group()
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
