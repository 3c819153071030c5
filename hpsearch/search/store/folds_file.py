"""The folds of a study, in its folder: a trial is trained again on the same samples, also from there alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StudyError
from ...system.files import write_json
from ..folds import Folds, Indices
from .checked_json import Check, Unreadable, fields, items, optional, text, whole
from .read_study import read_own_json

FOLDS_FILE = "folds.json"

# More samples than any memory has room for, as a damaged file may name.
_MOST_SAMPLES = 10**8


def _samples(value: object) -> int:
    if whole(value) > _MOST_SAMPLES:
        raise Unreadable(f"it names {value} samples")
    return whole(value)


_INDICES = items(whole)
_FIELDS_OF_A_FOLD: dict[str, Check] = {"evaluation": _INDICES, "train": optional(_INDICES)}
_FIELDS: dict[str, Check] = {
    "by": text,
    "samples": _samples,
    "folds": items(lambda each: fields(each, _FIELDS_OF_A_FOLD, tuple(_FIELDS_OF_A_FOLD))),
}


def write_folds(folder: Path, folds: Folds) -> None:
    """Write the folds of a study; training indices only where they are not all others, in their order."""
    samples = 1 + max(int(max(each.train.max(), each.evaluation.max())) for each in folds.splits)
    written = [
        {
            "evaluation": each.evaluation.tolist(),
            "train": None if np.array_equal(each.train, _others(each.evaluation, samples)) else each.train.tolist(),
        }
        for each in folds.splits
    ]
    write_json(folder / FOLDS_FILE, {"by": folds.by, "samples": samples, "folds": written})


def read_folds(folder: Path) -> Folds | None:
    """Return the folds of the study in a folder; None if it has none.

    Raises:
        StudyError: the file is damaged.
    """
    path = folder / FOLDS_FILE
    try:
        read = fields(read_own_json(path), _FIELDS, tuple(_FIELDS))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (Unreadable, RecursionError) as error:
        raise StudyError(f"{str(path)!r} is damaged: {error}. Restore a copy of it.") from error
    pairs = [
        (_others(each["evaluation"], read["samples"]) if each["train"] is None else each["train"], each["evaluation"])
        for each in read["folds"]
    ]
    return Folds.of_pairs(pairs, read["by"])


def _others(indices: Any, samples: int) -> Indices:
    return np.setdiff1d(np.arange(samples, dtype=np.int64), indices)
