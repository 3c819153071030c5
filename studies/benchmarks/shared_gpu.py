"""What it brings that trials share a GPU: numbers of trials per device, and `trials_per_device="auto"`, in one run.

    python -m studies.benchmarks.shared_gpu [--rounds 2] [--trials 16] [--works small base] [--sharing 1 2 4 auto]

Each side searches the same trials of a BERT on one GPU, in workers; only the number of trials that share the GPU
differs. Rounds are interleaved and their order rotates; the ratios of each round are taken side by side, and their
medians printed. Training is from the first optimizer step of a search to the end of its last trial, in all is from the
call. It needs a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification

import hpsearch

from .stamps import Stamps, TrialTimes, read_stamps

LENGTH = 128


@dataclass(frozen=True)
class Work:
    """A BERT, and what one trial trains it on."""

    hidden: int
    layers: int
    batch: int
    steps: int
    bf16: bool

    def model(self) -> Any:
        """Return a new model."""
        config = BertConfig(
            vocab_size=8000,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,
            intermediate_size=4 * self.hidden,
            max_position_embeddings=LENGTH,
        )
        return BertForSequenceClassification(config)


WORKS = {"small": Work(256, 4, 16, 120, bf16=False), "base": Work(768, 12, 32, 40, bf16=True)}


class Said(hpsearch.SearchListener):
    """Remembers what the search says about the GPU."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def on_notice(self, notice: str) -> None:
        """Remember a notice."""
        self.notices.append(notice)


def make_data(size: int) -> list[dict[str, torch.Tensor]]:
    """Return rows of random tokens."""
    tokens = torch.randint(0, 8000, (size, LENGTH), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "attention_mask": torch.ones(LENGTH).long(), "labels": row[0] % 2} for row in tokens]


def search(work: Work, trials: int, sharing: int | str) -> tuple[float, list[TrialTimes], list[str]]:
    """Search in a new folder; return the seconds of all of it, when its trials did what, and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        stamps, said = Stamps(str(Path(folder, "stamps")), make=work.model), Said()
        args = hpsearch.TrainingArguments(
            str(Path(folder, "out")),
            per_device_train_batch_size=work.batch,
            per_device_eval_batch_size=work.batch,
            max_steps=work.steps,
            eval_strategy="steps",
            eval_steps=work.steps // 2,
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
            bf16=work.bf16,
        )
        data = make_data(1024)
        trainer = hpsearch.Trainer(
            model_init=stamps.model_init, args=args, train_dataset=data, eval_dataset=data[:64], callbacks=[stamps]
        )
        trainer.remove_callback(transformers.PrinterCallback)
        begin = time.perf_counter()
        trainer.hyperparameter_search(
            {"learning_rate": hpsearch.Float(1e-5, 1e-3, log=True)},
            "loss",
            n_trials=trials,
            sampler="random",
            pruner="none",
            progress=said,
            trials_per_device=sharing,
        )
        return time.perf_counter() - begin, read_stamps(stamps.file), said.notices


def compare(name: str, rounds: int, trials: int, sides: list[int | str]) -> None:
    """Print the seconds of all sides, and their ratios to the first one."""
    training: dict[int | str, list[float]] = {side: [] for side in sides}
    whole: dict[int | str, list[float]] = {side: [] for side in sides}
    workers: dict[int | str, int] = {}
    notices: list[str] = []
    for place in range(rounds):
        for side in sides[:: 1 if place % 2 == 0 else -1]:
            seconds, times, said = search(WORKS[name], trials, side)
            whole[side].append(seconds)
            training[side].append(max(each.end for each in times) - min(each.first_step for each in times))
            workers[side] = len({each.pid for each in times})
            print(f"  {name}, {side}: {training[side][-1]:.1f} s of training, {seconds:.1f} s in all", flush=True)
            notices += [each for each in said if each.startswith("GPU")]
    print(f"{trials} trials '{name}' of {WORKS[name]}; medians of {rounds} rounds, on {torch.cuda.get_device_name()}")
    print(f"{'trials_per_device':<18}{'workers':>8}{'training s':>12}{'ratio':>8}{'in all s':>10}{'ratio':>8}")
    for side in sides:
        ratios = [
            statistics.median(mine / one for mine, one in zip(figures[side], figures[sides[0]], strict=True))
            for figures in (training, whole)
        ]
        middles = [statistics.median(figures[side]) for figures in (training, whole)]
        print(
            f"{side!s:<18}{workers[side]:8d}{middles[0]:12.2f}{ratios[0]:8.2f}{middles[1]:10.2f}{ratios[1]:8.2f}",
            flush=True,
        )
    for notice in dict.fromkeys(notices):
        print(f"  {notice}")


def main() -> None:
    """Compare the sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--works", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--sharing", nargs="+", default=["1", "2", "4", "auto"])
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU")
    search(WORKS["small"], 1, 1)  # the workers' server starts once
    for name in given.works:
        compare(name, given.rounds, given.trials, [each if each == "auto" else int(each) for each in given.sharing])


if __name__ == "__main__":
    main()
