"""The folder of a study on disk: its settings, the records of its trials, its best; and the lock around them.

Whatever lies directly in the folder is written under the lock; whatever lies in the folder of a run, by the session
that runs the trial, or, once it has ended, under the lock.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from ...errors import StudyError
from ...system.files import disk_problem, file_lock, remove_folder, remove_partial, whole_folder, write_json
from ...system.json_types import JsonObject
from ..metrics.selection import best_records
from ..study import EPOCH, Study
from ..trial_record import TrialRecord, TrialState
from .folds_file import FOLDS_FILE, write_folds
from .forgiven_failures import UNCOUNTED_BEFORE, uncounted_before
from .held_out_file import DEFAULTS_FOLDER, HELD_OUT_FILE, HELD_OUT_LOCK
from .live_sessions import SESSIONS_FOLDER
from .provenance import differences_in_results, is_known
from .read_study import (
    STUDY_FILE,
    TRIAL_FILE,
    TrialReader,
    read_records,
    read_run,
    read_settings,
    read_trials,
    version_of,
)
from .refit_file import REFIT_FOLDER, REFIT_LOCK, with_model_of_all_data
from .storage_files import STORAGE_FILES

__all__ = ["STUDY_FILE", "TRIAL_FILE", "read_records", "read_settings", "read_trials"]

BEST_FILE = "best.json"
LOCK_FILE = "study.lock"
REPLAYS_FOLDER = "replays"
REQUESTS_FILE, REQUESTS_LOCK = "requests.json", "requests.lock"
_MOST_SESSIONS = 10_000
_ENDED_BEFORE = "ended_before"  # in `study.json`
ADDED = "added"  # there too: how many of its `n_trials` the user has added by requests
CANNOT_EXTEND = "cannot_extend"  # there too: why its trials cannot continue to another length
_WILL_RESUME = (TrialState.RUNNING, TrialState.PAUSED, TrialState.INTERRUPTED)
# What the command line leaves in a study's folder.
COMMAND_FILE, REPORT_FILE = "command.json", "report.html"
_RESERVED_NAMES = {
    COMMAND_FILE,
    REPORT_FILE,
    STUDY_FILE,
    BEST_FILE,
    LOCK_FILE,
    SESSIONS_FOLDER,
    REPLAYS_FOLDER,
    REQUESTS_FILE,
    REQUESTS_LOCK,
    HELD_OUT_FILE,
    HELD_OUT_LOCK,
    DEFAULTS_FOLDER,
    FOLDS_FILE,
    REFIT_FOLDER,
    REFIT_LOCK,
    *STORAGE_FILES,
}


class StudyFolder:
    """Reads and writes the files of a study.

    Several processes may be at work in one folder: `locked()` keeps the others away for as long as a block runs.

    Attributes:
        session: which of the `sessions` in `study.json` is this one.
        problems: what was damaged when the study was opened, in one line each.
        left_alone: numbers of trials that could not be read then, as far as they are known.
        same_sessions: those whose trials have the results that trials of this one would have.
        ended_before: the number of the first trial that began after a search of the study ended the last time; one that
            was interrupted, or killed, has not ended.
    """

    def __init__(self, study: Study) -> None:
        self.path = study.folder
        self._study = study
        self.session = 0
        self.problems: list[str] = []
        self.left_alone: frozenset[int] = frozenset()
        self.same_sessions: Collection[int] = (0,)
        self.ended_before = 0
        self._lock = file_lock(self.path / LOCK_FILE)
        self._trials = TrialReader(self.path, len(study.objectives))
        self._has_been_checked = False
        self._best: tuple[list[JsonObject], tuple[int, int]] | None = None  # what was written last

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from deciding anything about the study while the block runs; may be nested."""
        if self._lock.is_locked:
            yield
            return
        try:
            if not self.path.is_dir():
                make_place(self.path)
            if not self._has_been_checked:
                check_own_files(self.path)
                self._has_been_checked = True
            self._lock.acquire()
        except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise StudyError(f"The study's folder {str(self.path)!r} cannot be written: {error}.") from error
        try:
            yield
        finally:
            self._lock.release()

    def open(self) -> list[TrialRecord]:
        """Make the folder, or open the one that this study made earlier; return its trials, running ones included.

        What killed processes have left half-written is deleted. The caller holds the lock.

        Raises:
            StudyError: the folder holds a study whose objective, direction, scope or space differ.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        remove_partial(self.path)
        earlier, (records, self.problems, self.left_alone) = self.read_settings(), self._trials.read()
        for record in records:
            if record.state.is_counted:
                remove_leftovers(self.path / record.name)
        if earlier is None:
            return records
        try:
            self._study.check_same(earlier)
        except StudyError:
            if self.problems or any(record.state is not TrialState.REFUSED for record in records):
                raise
            self._discard(records)
            return []
        return records

    def read_settings(self) -> JsonObject | None:
        """Return the contents of `study.json`; None if the study is new.

        Raises:
            StudyError: it was written by another version of hpsearch.
        """
        return read_settings(self.path)

    def write_settings(
        self, environment: Mapping[str, object], about: Mapping[str, object], records: Sequence[TrialRecord] = ()
    ) -> None:
        """Write `study.json`; the caller holds the lock.

        Args:
            environment: the arguments, versions and data of this session; those of earlier ones stay there, in
                ``sessions``, as records of trials refer to them.
            about: further settings: sampler, pruner, storage.
            records: the trials on disk; the sessions that they name keep their places, also where the file is lost.
        """
        study, earlier = self._study, self.read_settings()
        sessions = _unknown_sessions(records) if earlier is None else list(earlier["sessions"])
        known = [{**each, "machine": None} for each in sessions]  # where a trial was trained its record says
        now = {**environment, "machine": None}
        if now not in known:
            known.append(now)
            sessions.append(dict(environment))
        self.session = known.index(now)
        self.same_sessions = {
            place
            for place, each in enumerate(known)
            if place == self.session or (is_known(each) and not differences_in_results(each, now))
        }
        self.ended_before = 0 if earlier is None else earlier.get(_ENDED_BEFORE, 0)
        own = {**study.identity(), "space": study.described_space(), "n_trials": study.n_trials}
        own |= {} if study.budget is None else {"budget": study.budget}
        own |= {} if study.unit == EPOCH else {"unit": study.unit}
        own |= {} if study.repeats == 1 else {"repeats": study.repeats}
        if study.folds is not None:
            own["folds"] = study.folds.identity
            if earlier is None or not (self.path / FOLDS_FILE).exists():  # they stay the same
                write_folds(self.path, study.folds)
        write_json(
            self.path / STUDY_FILE,
            {
                **own,
                **study.about_choosing(),
                **about,
                **({_ENDED_BEFORE: self.ended_before} if self.ended_before else {}),
                **{name: earlier[name] for name in (UNCOUNTED_BEFORE,) if earlier is not None and name in earlier},
                "session": self.session,
                "sessions": sessions,
            },
        )

    def note_total(self, n_trials: int | None, added: int) -> None:
        """Write another total of trials, of which the user has added some by requests."""
        with self.locked():
            settings = self.read_settings()
            if settings is not None:
                write_json(self.path / STUDY_FILE, {**settings, "n_trials": n_trials, ADDED: added})

    def note_end(self, records: Sequence[TrialRecord]) -> None:
        """Write that a search of the study has ended, with these trials; see `ended_before` and `mended.py`.

        A search that ends with no trial that failed has nothing to write.
        """
        ended_before = max((each.number + 1 for each in records if each.state is TrialState.FAILED), default=0)
        with self.locked():
            settings = self.read_settings()
            if settings is not None and settings.get(_ENDED_BEFORE, 0) < ended_before:
                bound = max(settings.get(UNCOUNTED_BEFORE, 0), uncounted_before(records))
                noted = {UNCOUNTED_BEFORE: bound} if bound else {}
                write_json(self.path / STUDY_FILE, {**settings, _ENDED_BEFORE: ended_before, **noted})

    def read_records(self) -> list[TrialRecord]:
        """Return the records of all trials on disk, by number; files that have not changed are not read again."""
        return self._trials.read().records

    def begin_run(self, record: TrialRecord, name: str) -> str:
        """Make the folder of a run with its first record in it; return the name it got.

        It is `name`, made unique by the trial's number if another run has it. The caller holds the lock.

        Raises:
            StudyError: `name` is that of a file of the study.
        """
        if name.lower() in _RESERVED_NAMES:
            raise StudyError(f"hp_name(trial) is {name!r}, the name of a file of the study; use another one.")
        numbered = (f"{name}-{record.number}{'x' * extra}" for extra in itertools.count())
        free = next(each for each in itertools.chain([name], numbered) if not (self.path / each).exists())
        with whole_folder(self.path / free, sync=False) as partial:
            write_json(partial / TRIAL_FILE, {**record.to_json(), "name": free})
        return free

    def write_record(self, record: TrialRecord) -> None:
        """Write `trial.json` of a trial into the folder of its run."""
        write_record(self.path, record)

    def write_best(self, records: Sequence[TrialRecord]) -> None:
        """Write `best.json`: which trial, which checkpoint, which value, under which scope; the caller holds the lock.

        Of several objectives, a list: the Pareto front. Nothing is written while no trial may be the best.
        """
        found = best_records(records, self._study.objectives)
        if self._study.folds is not None:
            found = with_model_of_all_data(found, self.path)
        best = [self._described(each) for each in found]
        path = self.path / BEST_FILE
        if best and self._best != (best, version_of(path)):
            write_json(path, best if len(self._study.objectives) > 1 else best[0])
            self._best = best, version_of(path)

    def _described(self, record: TrialRecord) -> dict[str, object]:
        is_single = len(self._study.objectives) == 1
        return {
            "trial": record.number,
            "value": record.value if is_single else list(record.values),
            "scope": self._study.scope,
            "checkpoint": None if record.checkpoint is None else str(record.checkpoint.relative_to(self.path)),
            "hyperparameters": record.hyperparameters,
        }

    def _discard(self, records: Sequence[TrialRecord]) -> None:
        """Delete a study that was refused in its first trial."""
        for record in records:
            remove_folder(self.path / record.name)
        for name in (STUDY_FILE, BEST_FILE, REQUESTS_FILE, REQUESTS_LOCK, COMMAND_FILE, REPORT_FILE, *STORAGE_FILES):
            remove_folder(self.path / name)


def _unknown_sessions(records: Sequence[TrialRecord]) -> list[JsonObject]:
    """Return empty places for the sessions that records name; a number beyond all sense gets none."""
    named = [each.session for each in records if each.session < _MOST_SESSIONS]
    return [{} for _ in range(max(named, default=-1) + 1)]


def check_place(folder: Path) -> None:
    """Check that there can be a folder of a study where it is wanted; it is not made yet.

    Raises:
        StudyError: a file is in its place or above it, its name is too long, or it may not be read.
    """
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # a ValueError: no file can have the name
        raise _no_place(folder, error) from error
    if not is_folder:
        raise _no_place(folder, "a file of this name exists")


def make_place(folder: Path) -> None:
    """Make the folder of a study, and those above it.

    Raises:
        StudyError: that is impossible.
        OSError: the disk is full or read-only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if disk_problem(error) is not None:
            raise
        raise _no_place(folder, error) from error


def _no_place(folder: Path, reason: object) -> StudyError:
    said = getattr(reason, "strerror", None) or reason
    return StudyError(
        f"The study's folder {str(folder)!r} cannot be made: {said}. Use another output_dir or study_name."
    )


def check_own_files(folder: Path) -> None:
    """Check that what every search writes to is in the folder of the study itself: a link would lead elsewhere.

    Raises:
        StudyError: it is a link, or a folder in place of a file.
    """
    folders = (SESSIONS_FOLDER, REPLAYS_FOLDER, DEFAULTS_FOLDER)
    files = (LOCK_FILE, STUDY_FILE, BEST_FILE, REQUESTS_FILE, REQUESTS_LOCK, HELD_OUT_FILE, HELD_OUT_LOCK)
    for name in (*files, *folders):
        path, is_folder = folder / name, name in folders
        wanted = "folder" if is_folder else "file"
        if os.path.lexists(path) and (path.is_symlink() or not (path.is_dir() if is_folder else path.is_file())):
            found = "a link, and links are not followed" if path.is_symlink() else f"not a {wanted}"
            raise StudyError(f"{str(path)!r} is {found}. Move it away: the search makes a {wanted} of this name.")


def has_ended(study_folder: Path, run: str) -> bool:
    """Return whether the trial of a run has ended, and will not resume."""
    record = read_run(study_folder, run)
    return record is not None and record.state not in _WILL_RESUME


def write_record(study_folder: Path, record: TrialRecord) -> None:
    """Write `trial.json` of a trial into the folder of its run."""
    folder = study_folder / record.name
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / TRIAL_FILE, record.to_json())


def remove_leftovers(run_folder: Path) -> None:
    """Delete what a killed process left half-written in the folder of a run, and in its checkpoints."""
    remove_partial(run_folder)
    for entry in os.scandir(run_folder):
        if entry.is_dir(follow_symlinks=False):
            remove_partial(entry.path)
