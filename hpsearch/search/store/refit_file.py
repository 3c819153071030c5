"""What is known of the model that was trained on all data after a cross-validation, in the study's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...system.files import write_json
from ..trial_record import TrialRecord
from .checked_json import Check, Unreadable, fields, items, number, text, whole
from .own_files import is_own_folder
from .read_study import read_own_json

# No trial has this name.
REFIT_FOLDER, REFIT_LOCK = "refit", "refit.lock"
_FILE = "refit.json"


@dataclass(frozen=True)
class Refit:
    """A model that was trained on all data.

    Attributes:
        trial: the number of the trial whose parameters it has.
        values: the means over its folds, by which it was chosen.
        fractions: for each fold, the fraction of the training run after which its weights were selected.
        fraction: their median, after which the training on all data ended.
        samples: that it was trained on.
        arguments: the fingerprint of the arguments, the data and the functions of the search.
    """

    trial: int
    values: tuple[float, ...]
    fractions: tuple[float, ...]
    fraction: float
    samples: int
    arguments: str


def folder_of_refit(study_folder: Path) -> Path:
    """Return the folder of the weights, with what is known of the model."""
    return study_folder / REFIT_FOLDER / "weights"


def read_refit(study_folder: Path) -> Refit | None:
    """Return what is known of the model that was trained on all data; None if there is none, or its file is damaged."""
    try:
        folder = folder_of_refit(study_folder)
        if not is_own_folder(folder, folder.parent):
            return None
        read = fields(read_own_json(folder / _FILE), _FIELDS, tuple(_FIELDS))
    except (OSError, Unreadable, RecursionError):
        return None
    return Refit(**{name: read[name] for name in _FIELDS})


def with_model_of_all_data(best: Sequence[TrialRecord], study_folder: Path) -> list[TrialRecord]:
    """Return the best trials of a cross-validation with the model that was trained on all data, or without any."""
    refit = read_refit(study_folder)

    def weights(record: TrialRecord) -> Path | None:
        is_its_own = refit is not None and (refit.trial, refit.values) == (record.number, record.values)
        return folder_of_refit(study_folder) if is_its_own else None

    return [replace(each, checkpoint=weights(each)) for each in best]


def write_refit(folder: Path, refit: Refit) -> None:
    """Write what is known of the model into its folder."""
    write_json(folder / _FILE, asdict(refit))


_FIELDS: dict[str, Check] = {
    "trial": whole,
    "values": items(number),
    "fractions": items(number),
    "fraction": number,
    "samples": whole,
    "arguments": text,
}
