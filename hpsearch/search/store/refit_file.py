"""What is known of the model that was trained on all data after a cross-validation, in the study's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...system.files import write_json
from ..trial import TrialRecord
from .checked_json import Check, Unreadable, fields, is_folder_name, items, number, text, whole
from .own_files import is_own_folder
from .read_study import read_own_json

# No trial has this name.
REFIT_FOLDER = "refit"
_FILE = "refit.json"


@dataclass(frozen=True)
class Refit:
    """A model that was trained on all data.

    Attributes:
        trial: the number of the trial whose parameters it has.
        values: the means over its folds, by which it was chosen.
        shares: for each fold, the share of the training run after which its weights were selected.
        share: their median, after which the training on all data ended.
        samples: that it was trained on.
        arguments: the fingerprint of the arguments, the data and the functions of the search.
        checkpoint: the name of the folder of its weights.
    """

    trial: int
    values: tuple[float, ...]
    shares: tuple[float, ...]
    share: float
    samples: int
    arguments: str
    checkpoint: str = "weights"

    def folder(self, study_folder: Path) -> Path | None:
        """Return the folder of its weights; None if it is not there."""
        root = study_folder / REFIT_FOLDER
        return root / self.checkpoint if is_own_folder(root / self.checkpoint, root) else None


def read_refit(study_folder: Path) -> Refit | None:
    """Return what is known of the model that was trained on all data; None if there is none, or its file is damaged."""
    try:
        read = fields(read_own_json(study_folder / REFIT_FOLDER / _FILE), _FIELDS, tuple(_FIELDS))
    except (OSError, Unreadable, RecursionError):
        return None
    return Refit(**{name: read[name] for name in _FIELDS})


def with_model_of_all_data(best: Sequence[TrialRecord], study_folder: Path) -> list[TrialRecord]:
    """Return the best trials of a cross-validation with the model that was trained on all data, or without any."""
    refit = read_refit(study_folder)

    def weights(record: TrialRecord) -> Path | None:
        is_its_own = refit is not None and (refit.trial, refit.values) == (record.number, record.values)
        return refit.folder(study_folder) if refit is not None and is_its_own else None

    return [replace(each, checkpoint=weights(each)) for each in best]


def write_refit(study_folder: Path, refit: Refit) -> None:
    """Write what is known of the model."""
    write_json(study_folder / REFIT_FOLDER / _FILE, asdict(refit))


def _folder_name(value: object) -> str:
    if not is_folder_name(value):
        raise Unreadable("it is not the name of a folder")
    return str(value)


_FIELDS: dict[str, Check] = {
    "trial": whole,
    "values": items(number),
    "shares": items(number),
    "share": number,
    "samples": whole,
    "arguments": text,
    "checkpoint": _folder_name,
}
