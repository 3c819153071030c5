"""The micro-batches of an epoch: started, resumed, and grouped into updates.

In a single process, batches are loaded just before they are used, not ahead. So the random streams at a checkpoint are
those that the next batch is loaded with, and data that draws random numbers in this process (masking, augmentation)
resumes exactly too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import PartialState, skip_first_batches
from accelerate.data_loader import DataLoaderDispatcher
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_utils import has_length

from .hooks import Hooks
from .randomness import RandomStreams
from .resume import ResumePoint


def start_epoch(loader: Any, epoch: int) -> Iterator[object]:
    """Start iterating over an epoch."""
    _set_epoch(loader, epoch)
    return iter(loader)


def resume_epoch(loader: Any, epoch: int, seen: int, point: ResumePoint) -> Iterator[object]:
    """Continue an epoch after `seen` micro-batches: same order of samples, same seeds of the loader's workers.

    The random streams are put back to where they were at the checkpoint. A checkpoint by transformers does not hold the
    streams at the start of the epoch; then the workers' seeds are new.
    """
    if point.epoch_streams is not None:
        point.epoch_streams.restore()
    _set_epoch(loader, epoch)
    if type(loader) is not DataLoader:
        if has_length(loader) and seen >= len(loader):
            if point.streams is not None:
                point.streams.restore()
            return iter(())
        is_dispatched = isinstance(loader, DataLoaderDispatcher) and not isinstance(loader.dataset, IterableDataset)
        rest = skip_first_batches(loader, seen * PartialState().num_processes if is_dispatched else seen)
        _set_epoch(rest, epoch)
        return _restoring_after_first(iter(rest), point.streams)
    if isinstance(loader.dataset, IterableDataset):
        batches = iter(loader)
        for _ in itertools.islice(batches, seen):
            pass
    else:
        batches = iter(_past(loader, seen, point.epoch_streams))
    if point.streams is not None:
        point.streams.restore()
    return batches


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


def _past(loader: DataLoader[Any], seen: int, epoch_streams: RandomStreams | None) -> DataLoader[Any]:
    """Return a loader of what comes after `seen` batches, without loading those.

    The order of the samples may be drawn from the random streams, just after the seed of the workers: it is drawn here
    as it was then, and the streams are put back for the loader that follows.
    """
    rest = skip_first_batches(loader, seen)
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    rest.batch_sampler.batch_sampler = list(loader.batch_sampler or ())
    if epoch_streams is not None:
        epoch_streams.restore()
    return rest


def _restoring_after_first(batches: Iterator[Any], streams: RandomStreams | None) -> Iterator[object]:
    """Put the streams back once iteration has begun: accelerate's loaders draw the workers' seed only then."""
    place = -1
    for place, batch in enumerate(batches):
        if place == 0 and streams is not None:
            streams.restore()
        yield batch
    if place < 0 and streams is not None:
        streams.restore()


def _set_epoch(loader: object, epoch: int) -> None:
    """Set the epoch of every part of a loader that shuffles by epoch."""
    sampler = getattr(loader, "batch_sampler", None)
    parts: tuple[Any, ...] = (loader, sampler, getattr(sampler, "sampler", None), getattr(loader, "dataset", None))
    for part in parts:
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
