"""The micro-batches of an epoch: counted as they are drawn, and grouped into updates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from .hooks import Batch, Hooks

if TYPE_CHECKING:
    from accelerate import Accelerator


class Drawn(Iterator[Batch]):
    """Micro-batches of an epoch, counted as they are drawn: `count` is where in the epoch the run is.

    Args:
        batches: what comes next in the epoch.
        count: the micro-batches before that.
    """

    def __init__(self, batches: Iterator[Batch], count: int) -> None:
        self._batches = batches
        self.count = count

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self.count += 1
        return batch


def take(batches: Iterator[Batch], size: int) -> list[Batch]:
    """Return the next `size` micro-batches, or as many as are left."""
    return list(itertools.islice(batches, size))


def group_into_updates(
    trainer: Hooks, batches: Iterator[Batch], count: int, limit: int
) -> Iterator[tuple[list[Batch], torch.Tensor | int | None, int]]:
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


def as_many_as_every_process(batches: Iterator[Batch], size: int, accelerator: Accelerator) -> Iterator[Batch]:
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


def close(batches: Iterator[object]) -> None:
    """End an iteration that was cut short, as far as it can be ended."""
    if hasattr(batches, "close"):
        batches.close()
