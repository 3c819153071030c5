"""The folds of a search as its user asks for them: a number, a splitter of scikit-learn, or pairs of indices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset
from transformers.trainer_utils import has_length

from ..errors import MissingPackageError, StudyError
from ..search.folds import Folds
from ..search.study import check_whole
from ..system.spelling import nearest_name


def make_folds(
    folds: Any, groups: object, stratify: object, data: Any, seed: int, user_code: str | None = None
) -> Folds | None:
    """Return the folds that the arguments of a search ask for; None if they ask for none.

    Args:
        folds: the number of folds, a splitter of scikit-learn, or pairs of training and evaluation indices; or None.
        groups: the column of the data whose equal values stay together; None: there is none.
        stratify: the column of the data whose values are to be as frequent in each fold; None: there is none.
        data: to split; None: there are none, or only the user's code has them.
        seed: shuffles the samples.
        user_code: the name of the code that alone has the data; None: a trainer has them.

    Raises:
        StudyError: an argument cannot be right.
        MissingPackageError: scikit-learn is not installed.
    """
    names = {name: each for name, each in (("groups", groups), ("stratify", stratify)) if each is not None}
    if folds is None:
        for name, given in names.items():
            raise StudyError(f"{name}={given!r} says how folds are made; pass folds too, such as folds=5.")
        return None
    folds = int(folds) if isinstance(folds, Integral) and not isinstance(folds, bool) else folds
    is_known = isinstance(folds, int) or hasattr(folds, "split") or isinstance(folds, Iterable)
    if isinstance(folds, (str, type)) or not is_known:
        raise StudyError(f"folds must be a number, a splitter of scikit-learn or pairs of indices, but got {folds!r}.")
    if not isinstance(folds, int) and not hasattr(folds, "split"):
        for name, given in names.items():
            raise StudyError(f"{name}={given!r} has no effect on folds that are pairs of indices.")
        return Folds.of_pairs(folds, "pairs of indices", None if data is None else _length(data))
    if data is None and user_code is None:
        raise StudyError("A search needs a train_dataset; the Trainer has none.")
    if data is None:
        raise StudyError(
            f"Only {user_code} has the data, so folds must be pairs of indices, such as "
            "folds=list(KFold(5, shuffle=True, random_state=0).split(labels))."
        )
    samples = _length(data)
    columns = {name: _column(data, name, given) for name, given in names.items()}
    if isinstance(folds, int):
        check_whole("folds", folds, 2)
        splitter = _splitter(folds, groups is not None, stratify is not None, seed)
    else:
        splitter = folds
    by = [" ".join(repr(splitter).split()), *(f"{name}={given!r}" for name, given in names.items())]

    def split(by_columns: Mapping[str, Any] = columns) -> Folds:
        pairs = splitter.split(np.zeros(samples), by_columns.get("stratify"), by_columns.get("groups"))
        return Folds.of_pairs(pairs, ", ".join(by), samples)

    try:
        found, again = split(), split()
    except (TypeError, ValueError) as error:
        lacks_values = isinstance(error, TypeError) and stratify is None
        needs = " (stratify= names the column that a stratified splitter needs)" if lacks_values else ""
        raise StudyError(f"folds={folds!r} cannot split the train_dataset: {error}{needs}") from error
    if found.identity != again.identity:
        raise StudyError(
            f"folds={folds!r} makes other folds each time, so the study could not be continued: give it a random_state."
        )
    for name, given in names.items():
        without = None
        with contextlib.suppress(TypeError, ValueError):  # the splitter needs the column
            without = split({other: each for other, each in columns.items() if other != name})
        if without is not None and without.identity == found.identity:
            raise StudyError(f"{name}={given!r} has no effect on folds={folds!r}, which makes the same without it.")
    return found


def _splitter(folds: int, has_groups: bool, is_stratified: bool, seed: int) -> Any:
    try:
        from sklearn import model_selection
    except ImportError as error:
        raise MissingPackageError(f"folds={folds} needs scikit-learn: pip install scikit-learn") from error
    if has_groups and is_stratified:
        return model_selection.StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    if has_groups:
        return model_selection.GroupKFold(folds)
    kind = model_selection.StratifiedKFold if is_stratified else model_selection.KFold
    return kind(folds, shuffle=True, random_state=seed)


def _length(data: Any) -> int:
    """Return the number of samples.

    Raises:
        StudyError: they cannot be chosen by index.
    """
    is_stream = isinstance(data, IterableDataset) or not hasattr(data, "__getitem__")
    if is_stream or isinstance(data, Mapping) or not has_length(data):
        raise StudyError(
            f"folds need a map-style train_dataset, whose samples can be chosen by index, but it is a "
            f"{type(data).__name__}."
        )
    return len(data)


def _column(data: Any, argument: str, name: object) -> Any:
    """Return a column of the data.

    Raises:
        StudyError: there is none of this name, or it has no single value for each sample.
    """
    names = getattr(data, "column_names", None)
    if names is None:
        first = data[0]
        names = list(first) if isinstance(first, Mapping) else []
    if name not in names:
        has = f"it has {', '.join(map(repr, names))}" if names else "its samples are no mappings"
        raise StudyError(
            f"{argument}={name!r} is no column of the train_dataset: {has}.{nearest_name(str(name), names)}"
        )
    if hasattr(data, "column_names"):
        values = list((data.with_format(None) if hasattr(data, "with_format") else data)[name])
    else:
        values = [_plain(data[index][name]) for index in range(len(data))]
    try:
        found = np.asarray(values)
    except ValueError:
        found = np.empty((0, 0))
    if found.ndim != 1:
        raise StudyError(f"{argument}={name!r} must be a column with one value for each sample.")
    return found


def _plain(value: Any) -> Any:
    """Return a number of torch or numpy as Python's; everything else as it is."""
    return value.item() if hasattr(value, "item") and np.prod(np.shape(value)) == 1 else value
