"""The folds of a cross-validation: which samples each training run of a trial sees, and which evaluate it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError
from ..system.json_types import JsonObject

Indices = NDArray[np.int64]


class Fold(NamedTuple):
    """One split of the data.

    Attributes:
        number: from 0.
        train: the indices of the samples to train on, in the order of the splitter.
        evaluation: the indices of those that evaluate.
    """

    number: int
    train: Indices
    evaluation: Indices


@dataclass(frozen=True, eq=False)
class Folds:
    """All splits of a cross-validation.

    Attributes:
        splits: at least two.
        by: what made them, in words.

    Examples:
        >>> folds = Folds.of_pairs([([0, 1], [2]), ([1, 2], [0])], "pairs of indices")
        >>> len(folds), folds[1].train, folds[1].evaluation
        (2, array([1, 2]), array([0]))
    """

    splits: tuple[Fold, ...]
    by: str

    @classmethod
    def of_pairs(cls, pairs: Iterable[Any], by: str, samples: int | None = None) -> Folds:
        """Return the folds that pairs of training and evaluation indices make.

        Args:
            pairs: one for each fold.
            by: what made them, in words.
            samples: the number of samples that there are; None: not known.

        Raises:
            StudyError: there are fewer than two, or one of them is empty, not of indices, or trains on what evaluates.
        """
        splits = []
        for number, pair in enumerate(pairs):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise StudyError(
                    f"folds must be pairs of training and evaluation indices, but fold {number} is "
                    f"{type(pair).__name__}: {str(pair)[:60]}."
                )
            train, evaluation = (
                _indices(each, f"the {name} indices of fold {number}", samples)
                for name, each in zip(("training", "evaluation"), pair, strict=True)
            )
            if np.unique(evaluation).size < evaluation.size:
                raise StudyError(f"Fold {number} is evaluated on a sample more than once.")
            shared = np.intersect1d(train, evaluation)
            if shared.size:
                raise StudyError(
                    f"Fold {number} trains on samples that evaluate it: {shared.size} of {evaluation.size}, the first "
                    f"is {shared[0]}."
                )
            splits.append(Fold(number, train, evaluation))
        if len(splits) < 2:
            raise StudyError(f"A cross-validation needs at least 2 folds, but folds has {len(splits)}.")
        return cls(tuple(splits), by)

    def __len__(self) -> int:
        return len(self.splits)

    def __getitem__(self, number: int) -> Fold:
        return self.splits[number]

    def __repr__(self) -> str:
        return f"{len(self)} folds by {self.by}"

    @cached_property
    def identity(self) -> JsonObject:
        """What they are, as JSON-ready values: their number, what made them, and a fingerprint of all indices."""
        digest = hashlib.sha256()
        for each in self.splits:
            digest.update(f"{each.train.size} {each.evaluation.size} ".encode())
            digest.update(each.train.astype("<i8").tobytes() + each.evaluation.astype("<i8").tobytes())
        return {"number": len(self), "by": self.by, "indices": digest.hexdigest()[:16]}


def _indices(given: Any, what: str, samples: int | None) -> Indices:
    """Return indices as an array.

    Raises:
        StudyError: they are none, or not among the samples.
    """
    try:
        found = np.asarray(given)
    except ValueError:
        found = np.empty((0, 0))
    if found.ndim != 1 or found.dtype.kind not in "iu" or not found.size:
        raise StudyError(f"{what[0].upper()}{what[1:]} must be whole numbers, at least one, but are {str(given)[:60]}.")
    last = None if samples is None else samples - 1
    if found.min() < 0 or (last is not None and found.max() > last):
        allowed = "at least 0" if last is None else f"from 0 to {last}"
        raise StudyError(f"{what[0].upper()}{what[1:]} must be {allowed}, but go from {found.min()} to {found.max()}.")
    return found.astype(np.int64)
