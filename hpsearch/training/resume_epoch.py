"""The micro-batches of an epoch, from its start or from the middle of it, exactly as if it had not been interrupted.

In a single process, batches are loaded just before they are used, not ahead. So the random streams at a checkpoint are
those that the next batch is loaded with, and data that draws random numbers in this process (masking, augmentation)
resumes exactly too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from accelerate import PartialState, skip_first_batches
from accelerate.data_loader import DataLoaderDispatcher
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_utils import has_length

from .hooks import Batch
from .randomness import RandomStreams
from .resume import ResumePoint


def start_epoch(loader: DataLoader[object], epoch: int) -> Iterator[Batch]:
    """Start iterating over an epoch."""
    _set_epoch(loader, epoch)
    return iter(loader)


def resume_epoch(loader: DataLoader[object], epoch: int, seen: int, point: ResumePoint) -> Iterator[Batch]:
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


def _past(loader: DataLoader[object], seen: int, epoch_streams: RandomStreams | None) -> DataLoader[object]:
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


def _restoring_after_first(batches: Iterator[Batch], streams: RandomStreams | None) -> Iterator[Batch]:
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
    parts: tuple[object, ...] = (loader, sampler, getattr(sampler, "sampler", None), getattr(loader, "dataset", None))
    for part in parts:
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
