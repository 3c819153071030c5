"""Hypervolume of the Pareto front at the same budget, with and without rungs: two pairs of objectives, real training.

    python -m studies.benchmarks.several_objectives_at_rungs [--pairs size latency] [--seeds 8] [--budget 8]
        [--epochs 12] [--json FILE]

The data are scikit-learn's digits; the models are multilayer perceptrons whose width, depth, learning rate and batch
size are searched. `size` is accuracy and the number of weights; `latency` is evaluation loss and the time of a forward
pass of 256 images, which each evaluation measures: the median of 15. Both sides have the same budget in full training
runs, the same sampler (TPE) and the same seeds, and take turns; `pruner=None` is the only difference. Only trials with
a result count: they are what the search returns.

The hypervolume is exact, in two dimensions, on logarithmic scales: a point is (error or loss, cost), each from the
worst value of its box, where it is 0, to the best one, where it is 1. Printed are medians over seeds, and the median of
the ratio of the same seed with its 95% interval by bootstrap.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpsearch import Categorical, Float, Int, Trainer, TrainingArguments
from studies import digits

SPACE = {
    "learning_rate": Float(1e-4, 3e-2, log=True),
    "per_device_train_batch_size": Categorical((32, 64, 128)),
    "model.width": Int(4, 512, log=True),
    "model.depth": Int(1, 4),
}
SIDES: dict[str, dict[str, Any]] = {"rungs": {}, "to completion": {"pruner": None}}
# For each pair: the objectives, their directions, and the worst and the best value of each in the box. An error of half
# an image counts as the least.
PAIRS: dict[str, tuple[list[str], list[str], tuple[float, float], tuple[float, float]]] = {
    "size": (["accuracy", "num_parameters"], ["maximize", "minimize"], (0.9, 1 / 600), (1.1e6, 300.0)),
    "latency": (["loss", "forward_ms"], ["minimize", "minimize"], (2.3, 0.02), (40.0, 0.02)),
}


class Perceptron(torch.nn.Module):
    """A multilayer perceptron for the digits."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        sizes = [64, *[width] * depth]
        layers = [layer for a, b in itertools.pairwise(sizes) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(width, 10))

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the logits and, given labels, the loss."""
        logits = self.layers(pixel_values)
        loss = {} if labels is None else {"loss": torch.nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


class Measured:
    """Makes models, and measures the latency of the one that was made last beside its accuracy."""

    def model_init(self, trial: Any) -> Perceptron:
        """Return a new model, as wide and as deep as the trial says."""
        self._model = Perceptron(trial.params["model.width"], trial.params["model.depth"])
        return self._model

    def compute_metrics(self, prediction: Any) -> dict[str, float]:
        """Return the accuracy and the latency in milliseconds."""
        images, seconds = torch.rand(256, 1, 8, 8), []
        with torch.inference_mode():
            for _ in range(15):
                begin = time.perf_counter()
                self._model(images)
                seconds.append(time.perf_counter() - begin)
        return {**digits.compute_metrics(prediction), "forward_ms": 1000 * statistics.median(seconds)}


@dataclass(frozen=True)
class Searched:
    """The result of one search: its hypervolume, trials, complete ones, cost in full training runs, and time."""

    pair: str
    side: str
    seed: int
    hypervolume: float
    trials: int
    complete: int
    front: int
    full_runs: float
    seconds: float


def scaled(value: float, worst: float, best: float) -> float:
    """Return where a value lies on the logarithmic scale from the worst one (0) to the best one (1).

    >>> scaled(10, 100, 1), scaled(1000, 100, 1), scaled(0, 100, 1)
    (0.5, 0.0, 1.0)
    """
    if value <= best:
        return 1.0
    return max(0.0, math.log(value / worst) / math.log(best / worst))


def hypervolume(points: Sequence[tuple[float, float]]) -> float:
    """Return the area that points dominate, above and to the right of which they lie, from the origin.

    >>> hypervolume([(0.5, 1.0), (1.0, 0.5)]), hypervolume([(0.5, 0.5), (0.25, 0.25)]), hypervolume([])
    (0.75, 0.25, 0.0)
    """
    area = height = 0.0
    for x, y in sorted(points, reverse=True):
        area, height = area + x * max(0.0, y - height), max(height, y)
    return area


def search(data: dict[str, Any], pair: str, side: str, seed: int, budget: float, epochs: int) -> Searched:
    """Search once."""
    names, directions, quality, cost = PAIRS[pair]
    measured = Measured()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_eval_batch_size=300,
            eval_strategy="epoch",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model_init=measured.model_init,
            args=args,
            train_dataset=data["train"],
            eval_dataset=data["dev"],
            compute_metrics=measured.compute_metrics,
        )
        begin = time.perf_counter()
        found: list[Any] = trainer.hyperparameter_search(  # type: ignore[assignment]
            SPACE, names, direction=directions, budget=budget, seed=seed, progress=False, **SIDES[side]
        )
        seconds = time.perf_counter() - begin
    records = found[0].run_summary.records
    values = [each.objective for each in found]
    bad = [(1 - good if names[0] == "accuracy" else good, price) for good, price in values]
    points = [(scaled(good, *quality), scaled(price, *cost)) for good, price in bad]
    states = [each.state.value for each in records]
    runs = sum(each.fraction or 0.0 for each in records)
    complete = sum(state == "complete" for state in states)
    return Searched(pair, side, seed, hypervolume(points), len(states), complete, len(found), runs, seconds)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the median, by bootstrap."""
    drawn = np.random.default_rng(0).choice(np.array(ratios), size=(2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def show(found: Sequence[Searched]) -> None:
    """Print a table of each pair."""
    for pair in dict.fromkeys(each.pair for each in found):
        of_sides = {side: [each for each in found if (each.pair, each.side) == (pair, side)] for side in SIDES}
        count = min(map(len, of_sides.values()))
        print(f"{pair}: {count} seeds")
        print(f"{'':<15}{'hypervolume':>12}{'trials':>8}{'complete':>10}{'front':>7}{'runs':>7}{'s':>7}")
        for side, each in of_sides.items():
            medians = [
                statistics.median(getattr(one, name) for one in each[:count])
                for name in ("hypervolume", "trials", "complete", "front", "full_runs", "seconds")
            ]
            print("{:<15}{:>12.4f}{:>8.3g}{:>10.3g}{:>7.3g}{:>7.3g}{:>7.3g}".format(side, *medians))
        pairs = zip(*(each[:count] for each in of_sides.values()), strict=True)
        ratios = [ours.hypervolume / other.hypervolume for ours, other in pairs]
        low, high = interval(ratios)
        wins = sum(ratio > 1 for ratio in ratios)
        ratio = f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]"
        print(f"rungs / to completion {ratio}; better in {wins} of {count}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", choices=tuple(PAIRS), default=list(PAIRS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budget", type=float, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--json", type=Path, help="where the results are written, after each search")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    data, found = {name: list(split) for name, split in digits.load_data().items()}, []
    for seed in range(options.seeds):
        sides = list(SIDES)[:: 1 if seed % 2 else -1]
        for pair in options.pairs:
            for side in sides:
                found.append(search(data, pair, side, seed, options.budget, options.epochs))
                print(found[-1], file=sys.stderr, flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps([asdict(each) for each in found]))
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
