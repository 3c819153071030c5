"""What the trials of a search write down of themselves, and what lies between them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from .step import make_model


def smallest_model() -> Any:
    """Return a new BERT of one layer."""
    return make_model(32, 1)


class Stamps(transformers.TrainerCallback):
    """Writes what happens in trials, when and in which process, a line for each; can make their training longer.

    Args:
        file: to write to.
        seconds: that each training takes at least.
        make: makes the models.
    """

    def __init__(self, file: str, seconds: float = 0.0, make: Callable[[], Any] = smallest_model) -> None:
        self.file, self.seconds, self.make = file, seconds, make
        self.first_step = 0.0

    def write(self, event: str, **values: Any) -> None:
        with open(self.file, "a") as file:
            file.write(json.dumps({"event": event, "pid": os.getpid(), "time": time.time(), **values}) + "\n")

    def model_init(self) -> Any:
        begin = time.perf_counter()
        model = self.make()
        self.write("model_init", seconds=time.perf_counter() - begin)
        return model

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.write("first_step")
            self.first_step = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            time.sleep(max(0.0, self.first_step + self.seconds - time.perf_counter()))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            self.write("evaluated")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.write("end")


@dataclass(frozen=True)
class TrialTimes:
    """When one trial did what, in seconds since the epoch; `model_init` is how long that took."""

    pid: int
    model_init: float
    first_step: float
    evaluated: float
    end: float


def read_stamps(file: str) -> list[TrialTimes]:
    """Return the trials of a search in the order of their first steps; what the driver wrote is left out."""
    trials: list[TrialTimes] = []
    begun: dict[int, dict[str, float]] = {}
    for line in Path(file).read_text().splitlines():
        stamp = json.loads(line)
        if stamp["pid"] == os.getpid():
            continue
        trial = begun.setdefault(stamp["pid"], {"model_init": 0.0})
        if stamp["event"] == "model_init":
            trial["model_init"] += stamp["seconds"]
        else:
            trial[stamp["event"]] = stamp["time"]
        if stamp["event"] == "end":
            trials.append(TrialTimes(stamp["pid"], **begun.pop(stamp["pid"])))
    return sorted(trials, key=lambda trial: trial.first_step)


def gaps(trials: list[TrialTimes], slots: int) -> list[float]:
    """Return the seconds between the trials of a slot, of all slots.

    A trial follows the one before it in its process; in a new process, the one that had left its slot first.
    """
    followers: dict[TrialTimes, TrialTimes] = {}
    latest: dict[int, TrialTimes] = {}
    for trial in trials:
        if trial.pid in latest:
            followers[latest[trial.pid]] = trial
        latest[trial.pid] = trial
    for trial in [each for each in trials if each not in followers.values()][slots:]:
        left = [each for each in trials if each not in followers and each.evaluated < trial.first_step]
        followers[min(left, key=lambda each: each.evaluated)] = trial
    return [after.first_step - before.evaluated - after.model_init for before, after in followers.items()]
