"""Searches whose trials are trained by groups of two processes, and what happens to these."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import TrainerCallback

from hpsearch import BestRun, Float, Int
from hpsearch.trial import distributed_ranks
from tests.support.searching import Diary
from tests.support.small_trainer import TwoLayers, small_trainer

SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True), "seed": Int(1, 99)}


def search(folder: Path, n_trials: int, *callbacks: Any, trainer: Any = None, **options: Any) -> BestRun:
    """Search with groups of two processes, whose batches together are those of one process with batches of four."""
    given = {"compute_objective": "loss", "pruner": "none", "processes_per_trial": 2, "progress": False, **options}
    batch = 4 // given["processes_per_trial"]
    small = small_trainer(
        folder, *callbacks, **{"per_device_train_batch_size": batch, "save_strategy": "epoch", **(trainer or {})}
    )
    return small.hyperparameter_search(given.pop("hp_space", SPACE), n_trials=n_trials, sampler="random", **given)


def reports(best: BestRun) -> list[list[list[float]]]:
    """Return the steps and values of the reports of each trial."""
    return [[[each.step, *each.values] for each in record.reports] for record in best.run_summary.records]


def assert_same(ours: BestRun, theirs: list[list[list[float]]]) -> None:
    for one, other in zip(reports(ours), theirs, strict=True):
        assert len(one) == len(other) > 0
        for report, expected in zip(one, other, strict=True):
            assert report == pytest.approx(expected, abs=1e-5)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    raise RuntimeError("a bad batch")


class WritesSteps(TrainerCallback):
    """Writes down the run, the step and the process of each optimizer step, and the rank of the process."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.diary.write([Path(args.output_dir).name, state.global_step, args.process_index, os.getpid()])


class Once(TrainerCallback):
    """Does something after a step of a run, once, in one of the processes, or in both (rank None)."""

    def __init__(self, act: Callable[[], None], run: str, step: int, rank: int | None, diary: Diary) -> None:
        self.act, self.run, self.step, self.rank, self.diary = act, run, step, rank, diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        is_here = (Path(args.output_dir).name, state.global_step) == (self.run, self.step)
        if is_here and self.rank in (None, args.process_index) and args.process_index not in self.diary.read():
            self.diary.write(args.process_index)
            self.act()


class TakesTime(TrainerCallback):
    """Takes so many seconds more for each step, in the main process."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            time.sleep(self.seconds)


class EvaluatesSlowly(TrainerCallback):
    """Takes so many seconds more for each batch of an evaluation."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)


class DoesNotWaitLong:
    """Stands for a part of a trainer: where it is loaded, a process that fails waits a second for the others."""

    def __reduce__(self) -> Any:
        return _do_not_wait_long, ()


def _do_not_wait_long() -> DoesNotWaitLong:
    distributed_ranks.SECONDS_TO_ARRIVE = 1.0
    return DoesNotWaitLong()


def listening_addresses(pid: int) -> set[str]:
    """Return the addresses on which a process waits for connections."""
    connections = psutil.Process(pid).net_connections("inet")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


class WritesEnvironment(TrainerCallback):
    """Writes down what a process finds in its environment, and that torch's process group is the same as before."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
        found = {name: os.environ.get(name) for name in names}
        found |= {"backend": torch.distributed.get_backend(), "threads": torch.get_num_threads(), "pid": os.getpid()}
        found["listens_on"] = sorted(listening_addresses(os.getpid()))
        self.diary.write({**found, "group": id(torch.distributed.group.WORLD), "run": Path(args.output_dir).name})


class IsUnusableInTheSecond(TwoLayers):
    """A part of a trainer that the second process of a group cannot load."""

    def __reduce__(self) -> Any:
        return _load_in_the_first, ()


def _load_in_the_first() -> None:
    if os.environ.get("RANK") == "1":
        raise MemoryError("there is no room in process 1")
