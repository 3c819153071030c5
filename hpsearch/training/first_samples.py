"""The beginning of a dataset, of whichever kind it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch


def first_samples(dataset: Any, count: int) -> object:
    """Return a dataset of at most the first `count` samples; of a dict of datasets, a dict of such.

    Of a stream, whose beginning is read again each time, and of one of the datasets library, a dataset of that kind.

    >>> len(first_samples([1, 2, 3], 2)), len(first_samples([1, 2, 3], 5))
    (2, 3)
    """
    if isinstance(dataset, dict):
        return {name: first_samples(each, count) for name, each in dataset.items()}
    if hasattr(dataset, "select"):
        return dataset.select(range(min(count, len(dataset))))
    if hasattr(dataset, "take"):
        return dataset.take(count)
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return _Beginning(dataset, count)
    return torch.utils.data.Subset(dataset, range(min(count, len(dataset))))


class _Beginning(torch.utils.data.IterableDataset[object]):
    def __init__(self, dataset: Any, count: int) -> None:
        self._dataset, self._count = dataset, count

    def __iter__(self) -> Iterator[object]:
        return itertools.islice(iter(self._dataset), self._count)
