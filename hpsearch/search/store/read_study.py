"""Read the files of a study and check them: its settings, its trials, and the damage.

A study that somebody else has sent, or that a disk has damaged, is read like any other: no content of a file makes
the reader look outside of the folder, and a part that no search writes is named in one line and left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import StudyError
from ...system.json_types import JsonObject
from ...system.scope_names import SCOPES
from ..decisions.ladder import Ladder
from ..space.search_space import SearchSpace
from ..study import DEFINE_BY_RUN, EPOCH, STEP, check_budget
from ..trial_record import TrialRecord
from .checked_json import (
    Check,
    Unreadable,
    fields,
    is_folder_name,
    items,
    mapping,
    number,
    one_of,
    optional,
    plain,
    printable,
    text,
    whole,
)
from .own_files import is_own_folder, links_out, read_own_text
from .provenance import NAMES, PROCESSES
from .stored_record import record_from_json

STUDY_FILE = "study.json"
TRIAL_FILE = "trial.json"
_REQUIRED = ("study_name", "objective", "direction", "constraints", "scope", "space", "n_trials", "session", "sessions")
_NUMBERED = re.compile(r"run-([0-9]{1,9})")
# Folders of a study that hold no trial.
_NOT_RUNS = ("replays", "sessions")
_NAMED = 5
_Version = tuple[int, int]
_NO_FILE = (0, 0)


class Trials(NamedTuple):
    """The trials of a study, as far as its folder can be read.

    Attributes:
        records: by number; `name` is the name that the folder of the run has now.
        problems: what is damaged, in one line each: what it is, what was done, and what to do.
        left_alone: numbers of trials that cannot be read, as far as the names of their folders say.
    """

    records: list[TrialRecord]
    problems: list[str]
    left_alone: frozenset[int]


# Settings.


def read_settings(folder: Path) -> JsonObject | None:
    """Return the contents of `study.json` in a folder; None if the file does not exist.

    Raises:
        StudyError: it is damaged, or was written by another version of hpsearch.
    """
    path = folder / STUDY_FILE
    try:
        return _checked_settings(read_own_json(path))
    except FileNotFoundError:
        return None
    except Unreadable as error:
        raise StudyError(
            f"{str(path)!r} is damaged, or from another version of hpsearch: {error}. Restore a copy of the file; "
            "or move it away, and repeat the call of the search: it keeps the trials and writes a new file."
        ) from error


def read_own_json(path: Path) -> Any:
    """Return the contents of a JSON file.

    Raises:
        FileNotFoundError: there is no such file.
        Unreadable: it cannot be read, or is no JSON.
    """
    try:
        return json.loads(read_own_text(path))
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON ({printable(str(error))})") from error


def _checked_settings(values: object) -> JsonObject:
    try:
        read = fields(values, _SETTINGS, _REQUIRED)
    except RecursionError as error:
        raise Unreadable("its values are nested too deeply") from error
    names, directions = read["objective"], read["direction"]
    if isinstance(names, list) != isinstance(directions, list) or (
        isinstance(names, list) and not 0 < len(names) == len(directions)
    ):
        raise Unreadable("'objective' and 'direction' do not fit together")
    if read["session"] >= len(read["sessions"]):
        raise Unreadable(f"'session': session {read['session']} does not exist")
    return {**read, "sessions": list(read["sessions"])}


def _folder_name(value: object) -> str:
    if not is_folder_name(value):
        raise Unreadable(f"{plain(value)!r} cannot be the name of a study")
    return str(value)


def _one_or_all(check: Check) -> Check:
    return lambda value: list(items(check)(value)) if isinstance(value, list) else check(value)


def _at_least_one(value: Any) -> int:
    if whole(value) == 0:
        raise Unreadable("it must be a whole number of at least 1, but is 0")
    return int(value)


def _constraint(value: object) -> str:
    metric, _, bound = text(value).rpartition(" <= " if " <= " in text(value) else " >= ")
    try:
        float(bound)
    except ValueError:
        metric = ""
    if not metric:
        raise Unreadable(f"{text(value)!r} is not a constraint")
    return text(value)


def _space(value: object) -> object:
    """Return a described space as it is written, if it describes one."""
    if value == DEFINE_BY_RUN:
        return value
    try:
        SearchSpace.from_description(mapping(plain)(value))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Unreadable(f"it describes no search space ({printable(str(error))})") from error
    return plain(value)


def _session(value: object) -> JsonObject:
    values = mapping(plain)
    checks = {"machine": optional(values), "versions": values, "arguments": values, "data": values}
    checks |= {"functions": mapping(text), "fingerprint_scheme": optional(text), PROCESSES: optional(_at_least_one)}
    checks |= {NAMES: mapping(text)}
    return {"versions": {}, "arguments": {}, "data": {}, **fields(value, checks, ())}


def _is_true_or_false(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unreadable(f"it must be true or false, but is {plain(value)!r}")
    return value


def _budget(value: object) -> float:
    try:
        check_budget(value)
    except StudyError as error:
        raise Unreadable(str(error)) from error
    return float(number(value))


def _ladder(value: object) -> JsonObject:
    checks = {"fractions": items(number), "reduction_factor": whole, "complete_first": whole, "complete_every": whole}
    later = {"probe_first": whole}  # studies that began earlier do not have it
    read = fields(value, checks | later, tuple(checks))
    try:
        return Ladder(**{name: read[name] for name in checks | later if name in read}).to_json()
    except StudyError as error:
        raise Unreadable(str(error)) from error


def _defaults(value: object) -> dict[str, object]:
    checks = {"ladder": _ladder, "at_random": optional(whole), "models_in_full": _is_true_or_false}
    return fields(value, {**checks, "pauses_several": _is_true_or_false}, tuple(checks))


_FIELDS_OF_FOLDS: dict[str, Check] = {"number": _at_least_one, "by": text, "indices": text}
_SETTINGS: dict[str, Check] = {
    "study_name": _folder_name,
    "objective": _one_or_all(text),
    "direction": _one_or_all(one_of(("minimize", "maximize"))),
    "constraints": lambda value: list(items(_constraint)(value)),
    "scope": one_of(SCOPES),
    "space": _space,
    "n_trials": optional(_at_least_one),
    "budget": _budget,
    "unit": one_of((EPOCH, STEP)),
    "repeats": _at_least_one,
    "folds": lambda value: fields(value, _FIELDS_OF_FOLDS, tuple(_FIELDS_OF_FOLDS)),
    "session": whole,
    "ended_before": whole,
    "uncounted_before": whole,
    "sessions": items(_session),
    "storage": optional(text),
    "defaults": optional(_defaults),
    **dict.fromkeys(("sampler", "pruner", "backend", "pruning_metric"), optional(text)),
}


# Trials.


def read_trials(folder: Path, objectives: int | None = None) -> Trials:
    """Return the trials of the study in a folder; `objectives`, if it is known, is how many values each has."""
    return TrialReader(folder, objectives).read()


def read_records(folder: Path) -> list[TrialRecord]:
    """Return the records of all trials of the study in a folder that can be read, by number."""
    return read_trials(folder).records


def read_run(folder: Path, run: str) -> TrialRecord | None:
    """Return the record in the folder of a run of a study; None if there is none that can be read."""
    with contextlib.suppress(OSError, Unreadable, RecursionError):
        return record_from_json(read_own_json(folder / run / TRIAL_FILE), folder / run)
    return None


class _Run(NamedTuple):
    """The content of a run's folder: its record, unless it cannot be read, and the damage, if there is any."""

    record: TrialRecord | None
    problem: str | None = None


class TrialReader:
    """Reads the trials of a study's folder; a file that has not changed is not read again.

    Args:
        folder: of the study.
        objectives: how many values each trial has; None if that is not known.
    """

    def __init__(self, folder: Path, objectives: int | None = None) -> None:
        self._folder, self._objectives = folder, objectives
        self._known: dict[str, tuple[_Version, _Run]] = {}

    def read(self) -> Trials:
        """Return the trials as they are now."""
        known: dict[str, tuple[_Version, _Run]] = {}
        for run in _runs(self._folder):
            version, before = version_of(os.path.join(self._folder, run, TRIAL_FILE)), self._known.get(run)
            is_known = before is not None and before[0] == version != _NO_FILE
            found = before[1] if before is not None and is_known else self._read(run)
            if found is not None:
                known[run] = version, found
        self._known = known
        records = {run: found.record for run, (_, found) in known.items() if found.record is not None}
        kept, others = _without_copies(records, self._folder)
        numbered = (_NUMBERED.fullmatch(run) for run in known.keys() - records.keys())
        left_alone = frozenset(int(each[1]) for each in numbered if each is not None)
        problems = [found.problem for _, found in known.values() if found.problem is not None]
        gaps = _gaps({each.number for each in kept} | left_alone)
        return Trials(sorted(kept, key=lambda each: each.number), [*problems, *others, *gaps], left_alone)

    def _read(self, run: str) -> _Run | None:
        """Return the record of a run, or its damage; None if it has just been deleted."""
        folder = self._folder / run
        try:
            if folder.is_symlink():
                raise Unreadable("the folder is a link, and links are not followed")
            record = record_from_json(read_own_json(folder / TRIAL_FILE), folder)
            counts = {len(each) for each in (record.values, *(each.values for each in record.reports)) if each}
            if self._objectives is not None and counts - {self._objectives}:
                raise Unreadable(f"its results are not of {self._objectives} objectives")
            links = links_out(folder)
            if links:
                raise Unreadable(f"{printable(links[0])!r} is a link that leads out of the folder")
            return _with_weights(record, folder)
        except FileNotFoundError:
            return _Run(None, _unreadable(run, "there is no such file")) if folder.is_dir() else None
        except RecursionError:
            return _Run(None, _unreadable(run, "its values are nested too deeply"))
        except (Unreadable, OSError) as error:
            return _Run(None, _unreadable(run, printable(str(error))))


def _with_weights(record: TrialRecord, folder: Path) -> _Run:
    """Return a record, without its checkpoint if that does not exist, or does not lie in the folder of the run."""
    path = record.checkpoint
    if path is None or is_own_folder(path, folder):
        return _Run(record)
    without = replace(record, checkpoint=None)
    if not path.is_dir():
        return _Run(without)
    return _Run(
        without,
        f"the weights of trial {record.number} are not read: {path.name!r} in {printable(folder.name)!r} is a link "
        "out of the folder, or holds one; replace the link by the files themselves",
    )


def version_of(path: str | Path) -> _Version:
    """Return a stamp that changes when the file is rewritten or deleted."""
    try:
        stamp = os.stat(path, follow_symlinks=False)
    except OSError:
        return _NO_FILE
    return (stamp.st_mtime_ns, stamp.st_ino)


def _runs(folder: Path) -> list[str]:
    """Return the names of what lies in a study's folder and holds a trial, or should."""
    try:
        with os.scandir(folder) as found:
            names = [each.name for each in found if not each.name.startswith(".") and _may_be_run(each)]
    except OSError:
        return []
    return sorted(names)


def _may_be_run(entry: os.DirEntry[str]) -> bool:
    if not entry.is_dir() or entry.name in _NOT_RUNS:
        return False
    return _NUMBERED.fullmatch(entry.name) is not None or os.path.lexists(os.path.join(entry.path, TRIAL_FILE))


def _without_copies(found: Mapping[str, TrialRecord], root: Path) -> tuple[list[TrialRecord], list[str]]:
    """Return one record for each number, under the name that its folder has now, and what was wrong."""
    kept: dict[int, TrialRecord] = {}
    problems = []
    in_order = sorted(found.items(), key=lambda pair: (pair[0] != pair[1].name, pair[0]))
    for run, record in in_order:
        if record.number in kept or (run != record.name and os.path.lexists(root / record.name)):
            original = kept[record.number].name if record.number in kept else record.name
            problems.append(
                f"{printable(run)!r} is a copy of the folder of trial {record.number} ({original!r}), and is ignored; "
                "move it out of the study's folder"
            )
        elif run != record.name and not is_folder_name(run):
            problems.append(
                f"{printable(run)!r} is the folder of trial {record.number}, but its name is not a valid name of a "
                f"run, so it is left untouched; rename it to {record.name!r}"
            )
        else:
            if run != record.name:
                problems.append(
                    f"the folder of trial {record.number} was renamed from {record.name!r} to {run!r}: the trial is "
                    "used under the new name"
                )
            kept[record.number] = record if run == record.name else replace(record, name=run)
    return list(kept.values()), problems


def _unreadable(run: str, reason: str) -> str:
    path = f"{printable(run)}/{TRIAL_FILE}"
    return (
        f"{path!r} cannot be read ({reason}), so its trial is left untouched; restore a copy of the file, or move "
        "the folder out of the study's folder"
    )


def _gaps(numbers: set[int]) -> list[str]:
    """Return which trials between the first and the last are missing; trials of another study come before the first."""
    missing = sorted(set(range(min(numbers), max(numbers))) - numbers) if numbers else []
    if not missing:
        return []
    some = ", ".join(map(str, missing[:_NAMED])) + (f" and {len(missing) - _NAMED} more" * (len(missing) > _NAMED))
    trials = f"trial {some} has" if len(missing) == 1 else f"trials {some} have"
    return [
        f"{trials} no folder: deleted, or the search was killed at the start; an ended trial still counts if the "
        "storage knows it, but is not shown and cannot be the best; restore a copy of the folder if you have one"
    ]
