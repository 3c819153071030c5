"""A loop by hand with accelerate: searched, with rungs and checkpoints, and compared with the Trainer.

    python -m studies.accelerate_loop --trials 20 [--jobs 2] [--output output]
    hpsearch run studies/accelerate_loop.py
    python -m studies.accelerate_loop [--epochs 3] [--samples 400]
    accelerate launch --config_file studies/accelerate/cpu_two_processes.yaml -m studies.accelerate_loop

`prepare` wraps what the loop uses, `backward` takes the place of `loss.backward()`; no line names a device. The first
two lines search `train`, a function of a trial; `save_state` writes its checkpoints. The others train the same loop,
also in several processes, beside the Trainer with the same arguments, and compare the losses of all steps. In a search
each trial has one process. Its trials have the same numbers as those of `studies.manual_loop`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hpsearch import BestRun, FunctionTrial, SearchPlan
from studies.command import until_interrupted
from studies.digits import load_data, model_init
from studies.manual_loop import (
    EPOCHS,
    SEED,
    SPACE,
    accuracy_of,
    data,
    losses_of_trainer,
    options_of,
    show,
    show_best,
)

LEARNING_RATE = 3e-5


class AcceleratedLoop:
    """A training run with accelerate.

    Attributes:
        model: as `prepare` has wrapped it.
        accelerator: of the run.
    """

    def __init__(
        self,
        make_model: Callable[[], Any],
        dataset: Any,
        epochs: int,
        learning_rate: float = LEARNING_RATE,
        weight_decay: float = 0.0,
        batch_size: int = 8,
        seed: int = SEED,
    ) -> None:
        import torch
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration
        from torch.utils.data import DataLoader
        from transformers import default_data_collator, get_scheduler, set_seed

        self.accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
        set_seed(seed)
        model = make_model()
        loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, collate_fn=default_data_collator)
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)
        self._loader, self.model, self._optimizer = self.accelerator.prepare(loader, model, optimizer)
        steps = epochs * len(self._loader)
        self._schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps)
        self.accelerator.register_for_checkpointing(self._schedule)

    @property
    def epoch(self) -> int:
        """The number of epochs so far."""
        return int(self._schedule.last_epoch) // len(self._loader)

    def train_epoch(self) -> list[float]:
        """Train for an epoch, and return the loss of every step, averaged over the processes."""
        losses = []
        self.model.train()
        for batch in self._loader:
            loss = self.model(**batch).loss
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
            self._schedule.step()
            self._optimizer.zero_grad()
            losses.append(self.accelerator.gather(loss.detach()).mean().item())
        return losses

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint of `save_state`."""
        self.accelerator.load_state(str(folder))
        self._loader.iteration = self.epoch  # the order of the samples depends on it


def train(trial: FunctionTrial) -> None:
    """Train a model with accelerate, and report its accuracy on the validation split after each epoch."""
    names = ("learning_rate", "weight_decay", "batch_size")
    parameters = {name: trial.params[name] for name in names}
    loop = AcceleratedLoop(lambda: model_init(trial), data()["train"], EPOCHS, **parameters, seed=trial.seed)
    if trial.checkpoint is not None:
        loop.load(trial.checkpoint)
    while loop.epoch < EPOCHS:
        loop.train_epoch()
        trial.report({"accuracy": accuracy_of(loop.model, data()["dev"])}, step=loop.epoch)
        with trial.save() as folder:
            loop.accelerator.save_state(str(folder))
        if trial.should_prune():
            return


study = SearchPlan(train, SPACE, n_trials=20, max_resource=EPOCHS, study_name="accelerate_loop")


def losses_with_accelerate(dataset: Any, epochs: int) -> list[float]:
    """Train for `epochs` and return the loss of every step, averaged over the processes."""
    loop = AcceleratedLoop(model_init, dataset, epochs)
    hides_bar = None if loop.accelerator.is_main_process else True
    return [loss for _ in tqdm(range(epochs), disable=hides_bar, leave=False) for loss in loop.train_epoch()]


def search(trials: int, jobs: int, output: str) -> None:
    """Search, and print the best run."""
    from safetensors.torch import load_file

    best = study.run({"output_dir": output}, n_trials=trials, n_jobs=jobs)
    assert isinstance(best, BestRun)
    assert best.checkpoint is not None
    show_best(best, load_file(best.checkpoint / "model.safetensors"))


def main(arguments: list[str] | None = None) -> int:
    """Search, or compare with the Trainer; the exit status is 1 if the losses differ."""
    options = options_of(arguments, __doc__)
    if options.trials is not None:
        return until_interrupted(lambda: search(options.trials, options.jobs, options.output))
    from accelerate import PartialState

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
