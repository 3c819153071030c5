"""A study: what to search, how long and with what; and its folder on disk."""

from __future__ import annotations

import contextlib
import itertools
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from filelock import FileLock, Timeout

from ..errors import SpaceError, StudyError
from ..files import read_json, remove_folder, remove_partial, write_json
from .objective import Objective
from .parameters import Parameter
from .selection import best_record, check_scope
from .space import SearchSpace, default_space
from .trial import Trial, TrialRecord, TrialState

SpaceLike = Union[SearchSpace, Mapping[str, Parameter], Callable[[Trial], Any], None]

STUDY_FILE = "study.json"
TRIAL_FILE = "trial.json"
BEST_FILE = "best.json"
SET_BY_THE_SEARCH = ("output_dir", "run_name")

LOCK_FILE = "study.lock"
_RESERVED_NAMES = {STUDY_FILE, BEST_FILE, LOCK_FILE, "study.db", "study.db-wal", "study.db-shm"}
_LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Study:
    """The settings of a search, checked when it is made.

    Args:
        name: names the folder, and the study in its storage.
        folder: ``<output_dir>/<name>``.
        space: a `SearchSpace`, or a function of a trial (define-by-run).
        objective: what to optimise.
        n_trials: trials in total, over all sessions of this study.
        scope: which reports of a trial give its value and its checkpoint.
        keep_checkpoints: how many of the best trials keep their scoped weights; 0 none, None: every trial.
        timeout: seconds for this session; a running trial is stopped when they are over. None: no limit.
        trial_timeout: seconds for one trial. None: no limit.
        seed: seed of the sampler.
        hp_name: a function from a trial to the name of its run; None: ``run-<number>``.

    Raises:
        StudyError: a setting is out of range.
    """

    name: str
    folder: Path
    space: SearchSpace | Callable[[Trial], Any]
    objective: Objective
    n_trials: int
    scope: str = "last"
    keep_checkpoints: int | None = 1
    timeout: float | None = None
    trial_timeout: float | None = None
    seed: int = 42
    hp_name: Callable[[Trial], str] | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "study_name")
        check_scope(self.scope)
        if isinstance(self.n_trials, bool) or not isinstance(self.n_trials, int) or self.n_trials < 1:
            raise StudyError(f"n_trials must be a whole number of at least 1, but got {self.n_trials!r}.")
        keep = self.keep_checkpoints
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 0):
            raise StudyError(f"keep_checkpoints must be None or a whole number of at least 0, but got {keep!r}.")
        for name in ("timeout", "trial_timeout"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (is_number and value > 0):
                raise StudyError(f"{name} must be None or a number of seconds above 0, but got {value!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed <= _LARGEST_SEED:
            raise StudyError(f"seed must be a whole number from 0 to {_LARGEST_SEED}, but got {self.seed!r}.")
        if self.hp_name is not None and not callable(self.hp_name):
            raise StudyError(f"hp_name must be a function of a trial or None, but got {self.hp_name!r}.")

    def open(self) -> list[TrialRecord]:
        """Make the folder, or go on in one this study made earlier; return the trials that ended in it.

        Raises:
            StudyError: the folder holds a study whose space, objective, direction or scope differ.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_partial(self.folder)
        earlier, records = self.read_settings(), self.read_records()
        if earlier is not None and any(record.state.is_counted for record in records):
            self._check_same(earlier)
        elif earlier is not None and not self._is_same(earlier):
            self._discard(records)
            return []
        return [record for record in records if record.state is not TrialState.RUNNING]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the study to this process while the block runs.

        Raises:
            StudyError: another process is at it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / LOCK_FILE)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise StudyError(
                f"Another process is running the study {self.name!r} in {str(self.folder)!r}. Wait for it, or pass "
                "another study_name."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def read_settings(self) -> dict[str, Any] | None:
        """Return what `study.json` holds; None if the study is new."""
        settings: dict[str, Any] | None = read_json(self.folder / STUDY_FILE)
        return settings

    def write_settings(self, about: Mapping[str, Any]) -> None:
        """Write `study.json`; `about` are further settings: arguments, versions, sampler."""
        write_json(self.folder / STUDY_FILE, {**self._identity(), "n_trials": self.n_trials, **about})

    def read_records(self) -> list[TrialRecord]:
        """Return the records of all trials on disk, by number; one whose process died is still RUNNING there."""
        records = []
        for path in self.folder.glob(f"*/{TRIAL_FILE}"):
            remove_partial(path.parent)
            records.append(TrialRecord.from_json(read_json(path), path.parent))
        return sorted(records, key=lambda record: record.number)

    def write_record(self, record: TrialRecord) -> None:
        """Write `trial.json` of an ended trial."""
        folder = self.folder / record.name
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / TRIAL_FILE, record.to_json())

    def write_best(self, records: list[TrialRecord]) -> None:
        """Write `best.json`: which trial, which checkpoint, which value, under which scope."""
        best = best_record(records, self.objective)
        if best is not None:
            checkpoint = None if best.checkpoint is None else str(best.checkpoint.relative_to(self.folder))
            described = {"trial": best.number, "value": best.value, "scope": self.scope, "checkpoint": checkpoint}
            write_json(self.folder / BEST_FILE, {**described, "hyperparameters": best.hyperparameters})

    def run_name(self, trial: Trial, taken: set[str]) -> str:
        """Return the name of a trial's run: from `hp_name`, made unique by the number if it is taken.

        Raises:
            StudyError: `hp_name` raised, or gave something that cannot name a folder.
        """
        if self.hp_name is None:
            return f"run-{trial.number}"
        try:
            given = self.hp_name(trial)
        except Exception as error:
            raise StudyError(f"hp_name(trial) raised {type(error).__name__}: {error}") from error
        name = check_name(given, "hp_name(trial)")
        if name.lower() in _RESERVED_NAMES:
            raise StudyError(f"hp_name(trial) is {name!r}, the name of a file of the study; use another one.")
        numbered = (f"{name}-{trial.number}{'x' * extra}" for extra in itertools.count())
        return name if name not in taken else next(each for each in numbered if each not in taken)

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Ask the space for the trial's parameters and return those that the run is configured with.

        Raises:
            SpaceError: a define-by-run function raised, or returned something else than None or a mapping.
        """
        arguments = {name: _plain(value) for name, value in self._ask_space(trial).items()}
        for name in SET_BY_THE_SEARCH:
            if name in arguments:
                raise SpaceError(f"The search space asks for {name}={arguments[name]!r}, but the search sets it.")
        trial.params.read.clear()
        return arguments

    def _ask_space(self, trial: Trial) -> dict[str, Any]:
        if isinstance(self.space, SearchSpace):
            return self.space.suggest(trial)
        try:
            returned = self.space(trial)
        except SpaceError:
            raise
        except Exception as error:
            raise SpaceError(f"hp_space(trial) raised {type(error).__name__}: {error}") from error
        if returned is None:
            return dict(trial.params)
        if not isinstance(returned, Mapping):
            raise SpaceError(
                f"hp_space(trial) returned {returned!r}; it must return a mapping of parameters to values, or None to "
                "use what it suggested."
            )
        return {
            name: trial.suggest(name, value) if isinstance(value, Parameter) else value  # type: ignore[arg-type]
            for name, value in returned.items()
        }

    def _identity(self) -> dict[str, Any]:
        space = self.space.describe() if isinstance(self.space, SearchSpace) else "define-by-run"
        return {
            "study_name": self.name,
            "space": space,
            "objective": self.objective.name,
            "direction": self.objective.direction,
            "scope": self.scope,
        }

    def _is_same(self, earlier: Mapping[str, Any]) -> bool:
        return all(earlier.get(key) == value for key, value in self._identity().items())

    def _discard(self, records: Sequence[TrialRecord]) -> None:
        """Delete a study of which no trial counts, such as one that was refused in its first trial."""
        for record in records:
            remove_folder(self.folder / record.name)
        for name in _RESERVED_NAMES - {LOCK_FILE}:
            (self.folder / name).unlink(missing_ok=True)

    def _check_same(self, earlier: Mapping[str, Any]) -> None:
        for key, value in self._identity().items():
            if earlier.get(key) != value:
                raise StudyError(
                    f"The study {self.name!r} in {str(self.folder)!r} was made with another {key}: "
                    f"{earlier.get(key)!r}, now {value!r}. Pass another study_name, or delete that folder."
                )


def _plain(value: Any) -> Any:
    """Return a number of numpy as Python's; everything else as it is."""
    return value.item() if isinstance(value, numbers.Number) and hasattr(value, "item") else value


def check_name(name: Any, what: str) -> str:
    """Return `name` if it can name a folder and stays inside its parent.

    Raises:
        StudyError: it cannot.
    """
    is_plain = isinstance(name, str) and re.fullmatch(r"[^\W_][\w .=,+@-]*", name) and not name.endswith((" ", "."))
    if not is_plain or len(name.encode()) > 200:
        raise StudyError(
            f"{what} is {name!r}; it names a folder, so it must be text of letters, digits and any of ' .=,+@_-', "
            "start with a letter or digit, not end in a space or a dot, and be at most 200 bytes long."
        )
    return str(name)


def as_space(hp_space: SpaceLike) -> SearchSpace | Callable[[Trial], Any]:
    """Return `hp_space` as a SearchSpace or a function of a trial; None gives the default space.

    Raises:
        SpaceError: it is neither.
    """
    if hp_space is None:
        return default_space()
    if isinstance(hp_space, SearchSpace) or (callable(hp_space) and not isinstance(hp_space, type)):
        return hp_space
    return SearchSpace(hp_space)  # type: ignore[arg-type]
