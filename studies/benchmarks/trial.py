"""What lies between two trials: from the last evaluation of one to the first step of the next, without model_init.

    python -m studies.benchmarks.trial [--rounds 5] [--trials 6]

Both sides search the same space with Optuna: ours with its defaults (SQLite in the study folder, best weights kept),
the transformers Trainer with its own (storage in memory, nothing kept). Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import optuna
import torch
import transformers

import hpsearch

from .step import make_data, make_model


class Gaps(transformers.TrainerCallback):
    """Measures the time from each trial's last evaluation to the next trial's first step, less `model_init`."""

    def __init__(self) -> None:
        self.last_evaluation: float | None = None
        self.in_model_init = 0.0
        self.gaps: list[float] = []

    def model_init(self) -> Any:
        begin = time.perf_counter()
        model = make_model(32, 1)
        self.in_model_init += time.perf_counter() - begin
        return model

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0 and self.last_evaluation is not None:
            self.gaps.append(time.perf_counter() - self.last_evaluation - self.in_model_init)
            self.last_evaluation = None

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            self.last_evaluation, self.in_model_init = time.perf_counter(), 0.0


def arguments(library: Any, folder: str) -> Any:
    return library.TrainingArguments(
        folder,
        num_train_epochs=2,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )


def median_gap(library: Any, trials: int, folder: str) -> float:
    """Median milliseconds between two trials."""
    gaps = Gaps()
    data = make_data(64)
    trainer = library.Trainer(
        model_init=gaps.model_init,
        args=arguments(library, folder),
        train_dataset=data,
        eval_dataset=data[:16],
        callbacks=[gaps],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    if library is hpsearch:
        space: Any = {
            "learning_rate": hpsearch.Float(1e-5, 1e-3, log=True),
            "weight_decay": hpsearch.Float(0.0, 0.3),
            "warmup_steps": hpsearch.Int(0, 4),
            "seed": hpsearch.Int(1, 40),
        }
        trainer.hyperparameter_search(space, n_trials=trials, pruner="none", progress=False)
    else:
        trainer.hyperparameter_search(
            lambda trial: {
                "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True),
                "weight_decay": trial.suggest_float("weight_decay", 0.0, 0.3),
                "warmup_steps": trial.suggest_int("warmup_steps", 0, 4),
                "seed": trial.suggest_int("seed", 1, 40),
            },
            n_trials=trials,
            pruner=optuna.pruners.NopPruner(),
        )
    return statistics.median(gaps.gaps) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ours, peer = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            ours.append(median_gap(hpsearch, options.trials, folder))
            peer.append(median_gap(transformers, options.trials, folder))
    ratio = statistics.median(them / us for us, them in zip(ours, peer, strict=True))
    print(f"from a trial's last evaluation to the next one's first step, less model_init; {options.rounds} rounds")
    print(
        f"ours {statistics.median(ours):.1f} ms (target 30)   peer {statistics.median(peer):.1f} ms   ratio {ratio:.1f}"
    )


if __name__ == "__main__":
    main()
