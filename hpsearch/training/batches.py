"""The micro-batches of an epoch: counted as they are drawn, and grouped into updates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from .hooks import Hooks


class Drawn(Iterator[Any]):
    """Micro-batches of an epoch, counted as they are drawn: `count` is where in the epoch the run is.

    Args:
        batches: what comes next in the epoch.
        count: the micro-batches before that.
    """

    def __init__(self, batches: Iterator[Any], count: int) -> None:
        self._batches = batches
        self.count = count

    def __next__(self) -> object:
        batch = next(self._batches)
        self.count += 1
        return batch


def take(batches: Iterator[Any], size: int) -> list[Any]:
    """Return the next `size` micro-batches, or as many as are left."""
    return list(itertools.islice(batches, size))


def group_into_updates(
    trainer: Hooks, batches: Iterator[Any], count: int, limit: int
) -> Iterator[tuple[list[Any], Any, int]]:
    """Yield the micro-batches of at most `limit` updates through the hook, the items they hold, and the place after.

    The last update may be short. A hook that returns no micro-batch though it drew some skips these.

    Args:
        trainer: whose hook `get_batch_samples` draws.
        batches: what comes next in the epoch.
        count: the micro-batches before that.
        limit: of the updates that are left of the epoch.
    """
    args = trainer.run.args
    drawn = Drawn(batches, count)
    for _ in range(limit):
        before = drawn.count
        group, items = trainer.get_batch_samples(drawn, args.gradient_accumulation_steps, args.device)
        if group:
            yield group, items, drawn.count
        elif drawn.count == before:
            return


def as_many_as_every_process(batches: Iterator[Any], size: int, accelerator: Any) -> Iterator[Any]:
    """Draw `size` micro-batches at a time; end where the first process has none left.

    Streams of data may differ in length; a process that continued alone would wait for the others forever.
    """
    fewest = size
    while fewest == size:
        group = take(batches, size)
        count = torch.tensor(len(group), device=accelerator.device)
        torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MIN)
        fewest = int(count)
        yield from group[:fewest]


def close(batches: Iterator[Any]) -> None:
    """End an iteration that was cut short, as far as it can be ended."""
    if hasattr(batches, "close"):
        batches.close()
