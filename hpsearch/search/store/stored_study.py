"""A study as its folder knows it: what was searched, by what, and every trial."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import StudyError
from ...system.json_types import JsonObject
from ...system.spelling import nearest_name
from ..decisions.ladder import LADDER_OF_0_8_0, Ladder
from ..metrics.constraints import Constraint
from ..metrics.objective import Objective
from ..study import EPOCH, describe
from ..trial_record import TrialRecord, after_a_kill
from .last_checkpoint import with_last_checkpoints
from .live_sessions import sessions_at_work
from .read_study import Trials
from .study_folder import ADDED, STUDY_FILE, read_settings, read_trials

# In `study.json`: whether trials wait at rungs.
TRIALS_WAIT = "trials_wait"


@dataclass(frozen=True)
class StoredStudy:
    """The settings of a study that is on disk, without what only the program that searched has: functions.

    Attributes:
        folder: of the study; an absolute path.
        settings: what `study.json` holds.
        objectives: by name and direction; they cannot evaluate.
        constraints: by name and bound; they cannot evaluate.
    """

    folder: Path
    settings: JsonObject
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> StoredStudy:
        """Read the settings of the study in a folder.

        Raises:
            StudyError: there is none, it is damaged, or it was written by another version of hpsearch.
        """
        path = Path(folder).absolute()
        settings = read_settings(path)
        if settings is None:
            raise StudyError(f"There is no study in {str(folder)!r}: it has no {STUDY_FILE}.{_nearest(path)}")
        names, directions = settings["objective"], settings["direction"]
        pairs = zip(names, directions, strict=True) if isinstance(names, list) else [(names, directions)]
        return cls(
            path,
            settings,
            tuple(_objective(name, direction) for name, direction in pairs),
            tuple(_constraint(each) for each in settings["constraints"]),
        )

    def records(self) -> list[TrialRecord]:
        """Read the records of all trials, those that run at this moment too, by number."""
        return self.trials().records

    def trials(self) -> Trials:
        """Read all trials, those that run at this moment too, and what is damaged."""
        before = sessions_at_work(self.folder)
        found = read_trials(self.folder, len(self.objectives))
        found = found._replace(records=with_last_checkpoints(found.records, self))
        if before or sessions_at_work(self.folder):  # else one that ends, or begins, now would seem to be killed
            return found
        return found._replace(records=after_a_kill(found.records))

    @property
    def name(self) -> str:
        """The study's name."""
        return str(self.settings["study_name"])

    @property
    def objective(self) -> Objective:
        """The objective; of several, the first."""
        return self.objectives[0]

    @property
    def scope(self) -> str:
        """Which reports of a trial give its value and its checkpoint."""
        return str(self.settings["scope"])

    @property
    def n_trials(self) -> int | None:
        """How many trials the study is to have; None: as many as its other limits allow."""
        n_trials: int | None = self.settings["n_trials"]
        return n_trials

    @property
    def own_trials(self) -> int | None:
        """The total without the trials that the user has added by requests; None: as many as other limits allow."""
        return None if self.n_trials is None else self.n_trials - int(self.settings.get(ADDED, 0))

    @property
    def budget(self) -> float | None:
        """The budget of the study in full training runs; None: no limit."""
        budget: float | None = self.settings.get("budget")
        return budget

    @property
    def repeats(self) -> int:
        """The most training runs of a trial."""
        return int(self.settings.get("repeats", 1))

    @property
    def fold_count(self) -> int:
        """The number of folds of its cross-validation; 0: there is none."""
        return int(self.settings.get("folds", {"number": 0})["number"])

    @property
    def unit(self) -> str:
        """The unit of `TrialRecord.epochs`: ``epoch``, or ``step`` of a plain function."""
        return str(self.settings.get("unit", EPOCH))

    @property
    def ladder(self) -> Ladder | None:
        """The rungs of the last call of the search; None: trials did not pause."""
        if self.settings.get(TRIALS_WAIT) is not True:
            return None
        defaults = self.settings.get("defaults")
        return LADDER_OF_0_8_0 if defaults is None else Ladder.from_json(defaults["ladder"])

    def described_space(self) -> JsonObject | str:
        """Return the space as JSON-ready values, by parameter; ``"define-by-run"`` for a function."""
        described: JsonObject | str = self.settings["space"]
        return described

    @property
    def keep_checkpoints(self) -> str:
        """How many of the best trials keep their weights; the folder does not know."""
        return "unknown"

    @property
    def description(self) -> str:
        """What is optimised, and under which constraints, in words."""
        return describe(self.objectives, self.constraints, self.unit)


def _objective(name: str, direction: str) -> Objective:
    return Objective(_unknown(name), direction, f"{direction} {name}", name.removesuffix("(metrics)"))


def _constraint(name: str) -> Constraint:
    is_at_most = " <= " in name
    metric, _, bound = name.rpartition(" <= " if is_at_most else " >= ")
    try:
        number = float(bound)
    except ValueError:
        raise StudyError(f"The study has a constraint that cannot be read: {name!r}.") from None
    return Constraint(_unknown(metric), at_most=number) if is_at_most else Constraint(_unknown(metric), at_least=number)


def _unknown(name: str) -> Callable[[dict[str, float]], float]:
    """Return a function in place of one that only the program that searched has."""

    def not_here(metrics: dict[str, float]) -> float:
        raise StudyError(f"{name} is known only by name: the study was read from its folder.")

    not_here.__name__ = name
    return not_here


def _nearest(folder: Path) -> str:
    there = [path.parent.name for path in folder.parent.glob(f"*/{STUDY_FILE}")]
    return nearest_name(folder.name, there)
