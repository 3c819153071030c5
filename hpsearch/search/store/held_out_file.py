"""The evaluations on the test set of a study: one file in its folder, which remembers all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import StudyError
from ...system.files import write_json
from .checked_json import Check, Unreadable, amount, fields, items, mapping, number, optional, text, whole
from .read_study import read_own_json

HELD_OUT_FILE, HELD_OUT_LOCK = "test_set.json", "test_set.lock"
# The run of the defaults, which is no trial.
DEFAULTS_FOLDER = "defaults"


@dataclass(frozen=True)
class HeldOutEvaluation:
    """One evaluation on the test set.

    Attributes:
        trial: the number of the trial that was the best then; None: of the defaults.
        values: the objective on the evaluation data, by scope.
        metrics: on the test set; the names begin with ``test_``.
        data: the fingerprint of the test set.
        arguments: the fingerprint of the arguments, the data and the functions of the search.
        time: of the evaluation, in seconds since 1970.
        epochs, seconds: the cost of training the defaults; 0 for a trial, whose record has them.
    """

    trial: int | None
    values: tuple[float, ...]
    metrics: dict[str, float]
    data: str
    arguments: str
    time: float
    epochs: float = 0.0
    seconds: float = 0.0

    def is_of_same(self, other: HeldOutEvaluation) -> bool:
        """Return whether the other evaluation is of the same weights on the same data, so that one of them is enough.

        Two streams are taken for the same data: they cannot be compared.
        """
        return self._identity == other._identity

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.trial, self.values, self.data, self.arguments


_FIELDS: dict[str, Check] = {
    "trial": optional(whole),
    "values": items(number),
    "metrics": mapping(number),
    "data": text,
    "arguments": text,
    "time": amount,
    "epochs": amount,
    "seconds": amount,
}


def read_held_out(folder: Path) -> tuple[HeldOutEvaluation, ...]:
    """Return all evaluations on the test set of the study in a folder, in their order.

    Raises:
        StudyError: the file is damaged.
    """
    path = folder / HELD_OUT_FILE
    try:
        read = fields(
            read_own_json(path), {"evaluations": items(lambda each: fields(each, _FIELDS, tuple(_FIELDS)))}, ()
        )
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (Unreadable, RecursionError) as error:
        raise StudyError(
            f"{str(path)!r} is damaged: {error}. Restore a copy of the file, or move it away: then the number of "
            "evaluations on the test set begins at 1 again."
        ) from error
    return tuple(
        HeldOutEvaluation(**{name: each[name] for name in _FIELDS})  # a later version may write more
        for each in read.get("evaluations", ())
    )


def write_held_out(folder: Path, evaluations: Sequence[HeldOutEvaluation]) -> None:
    """Write all evaluations on the test set, whole or not at all."""
    write_json(folder / HELD_OUT_FILE, {"evaluations": [asdict(each) for each in evaluations]})
