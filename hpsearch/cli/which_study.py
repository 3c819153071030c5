"""Which study a command is about: the folder it names, or else the newest one here."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..errors import StudyError
from ..search.result.best_run import SearchSummary
from ..search.store.checked_json import printable
from ..search.store.study_folder import STUDY_FILE
from ..search.trial_record import TrialRecord
from ..search.wording import counted
from ..system.spelling import nearest_name

_DEPTH, _SHOWN = 3, 5


def study_folder(named: Path | None) -> Path:
    """Return the folder of the study that is meant.

    Args:
        named: the folder, or its `study.json`, or a folder that holds one study; None: the newest study in the current
            folder, or up to three folders below it.

    Raises:
        StudyError: there is none there, or several.
    """
    if named is None:
        found = _below(Path())
        if not found:
            raise StudyError("No study found in the current folder or below; name the folder of a study.")
        name = printable(str(found[0]))
        Console(stderr=True).print(f"study {name}", style="dim", markup=False, highlight=False, soft_wrap=True)
        return found[0]
    if named.name == STUDY_FILE and named.is_file():
        return named.parent
    if (named / STUDY_FILE).is_file():
        return named
    found = _below(named)
    if len(found) > 1:
        shown = ", ".join(str(each) for each in found[:_SHOWN])
        raise StudyError(f"There are {len(found)} studies in {str(named)!r}; name one of them: {shown}.")
    if found:
        return found[0]
    here = [str(each) for each in _below(Path())]
    more = f" and {len(here) - _SHOWN} more" if len(here) > _SHOWN else ""
    names = f"{nearest_name(str(named), here)} Found: {', '.join(here[:_SHOWN])}{more}." if here else ""
    raise StudyError(f"There is no study in {str(named)!r}: it has no {STUDY_FILE}.{names}")


def say_problems(summary: SearchSummary) -> None:
    """Say on stderr what is damaged in a study that was read from its folder, below what a command has printed."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for problem in summary.problems:
        console.print(f"damaged: {problem}", style="yellow", markup=False)


def trial_of(records: list[TrialRecord], number: int) -> TrialRecord:
    """Return the trial of a number.

    Raises:
        StudyError: there is none.
    """
    found = next((each for each in records if each.number == number), None)
    if found is None:
        there = f"{counted(len(records), 'trial')}, up to number {records[-1].number}" if records else "none yet"
        raise StudyError(f"The study has no trial {number}; it has {there}.")
    return found


def _below(folder: Path) -> list[Path]:
    """Return the folders of studies in a folder and below, the one that was written to last first."""
    patterns = ("/".join(["[!.]*"] * depth + [STUDY_FILE]) for depth in range(_DEPTH + 1))
    files = [file for pattern in patterns for file in folder.glob(pattern)]
    return [file.parent for file in sorted(files, key=lambda file: -file.parent.stat().st_mtime)]
