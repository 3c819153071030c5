"""A training loop that two processes call together, as users of torch's process group write it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from hpsearch import FunctionTrial
from tests.support.searching import Diary

STEPS = 6


class LoopInGroups:
    """Trains a line on batches in an order of its own, with a checkpoint of both processes after each pass.

    Args:
        diary: for the run, the step, the rank and the process of each optimizer step; None: they are not written.
    """

    def __init__(self, diary: Diary | None = None) -> None:
        self._diary = diary

    def __call__(self, trial: FunctionTrial) -> None:
        distributed.init_process_group("gloo")
        rank, size = distributed.get_rank(), distributed.get_world_size()
        x = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
        y = x.sum(1, keepdim=True)
        model: Any = DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["learning_rate"], momentum=0.9)
        begin = 0
        if trial.checkpoint is not None:
            saved = torch.load(trial.checkpoint / f"part-{rank}.pt", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            torch.set_rng_state(saved["stream"])
            begin = saved["step"]
        for step in range(begin + 1, STEPS + 1):
            for batch in torch.randperm(48).split(8):
                mine = batch[rank::size]
                optimizer.zero_grad()
                mse_loss(model(x[mine]), y[mine]).backward()
                optimizer.step()
                self._write(trial, step, rank)
            trial.report({"loss": mse_loss(model(x), y)}, step)
            with trial.save() as folder:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, "stream": torch.get_rng_state(), "step": step}, folder / f"part-{rank}.pt")
            if trial.should_prune():
                return

    def _write(self, trial: Any, step: int, rank: int) -> None:
        if self._diary is not None and isinstance(trial, FunctionTrial):  # the first call is no trial
            self._diary.write((trial.name, step, rank, os.getpid()))
