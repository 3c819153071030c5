"""`hpsearch compare`: what two trials, or two studies, have in common, and in what they differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import StudyError
from ..search.result.known_study import known_noise
from ..search.result.trial_rows import run_rows, trial_rows
from ..search.store.stored_study import StoredStudy
from ..search.trial_record import TrialRecord
from ..searching.opened_study import open_study
from ..system.files import short_path
from .differences import NOT_RECORDED, Row, in_short, rows_of_studies, rows_of_trials
from .json_output import JsonOption, print_json
from .verdict import verdict
from .which_study import study_folder, trial_of

_WIDTH_OF_NAMES = 34


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Number of a trial, or folder of a study.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    study: Annotated[Path | None, typer.Option(help="Folder of the study of the trials.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two trials of a study, or two studies, and mark the differences.

    Every training argument, version or data set that is recorded and differs is listed, also if it was not searched.

    \b
    hpsearch compare 3 17 --study runs/digits
    hpsearch compare runs/digits runs/digits-wide
    """
    numbers = [each for each in (first, second) if each.isdecimal()]
    if len(numbers) == 1:
        raise StudyError(f"compare {first} {second}: name two trials by number, or two studies by folder.")
    if study is not None and not numbers:
        raise StudyError("--study names the study of two trials, but here two studies are compared.")
    if numbers:
        summary = open_study(study_folder(study))
        kind, of = "trials", f" of {summary.study.name}"
        names = [f"trial {int(each)}" for each in numbers]
        records = [trial_of(summary.records, int(each)) for each in numbers]
        rows_of = {each.trial.number: each for each in [*run_rows(records), *trial_rows(summary.records)]}
        pair = [rows_of[each.number] for each in records]
        stored = StoredStudy.read(summary.study.folder)
        rows = rows_of_trials(pair, stored)
        said = _verdict(names, [stored] * 2, [each.record for each in pair], [summary.records] * 2)
    else:
        summaries = [open_study(study_folder(Path(each))) for each in (first, second)]
        kind, of = "studies", ""
        names = [short_path(each.study.folder) for each in summaries]
        rows = rows_of_studies(summaries)
        both = [StoredStudy.read(each.study.folder) for each in summaries]
        best = [next(iter(each.best()), None) for each in summaries]
        said = _verdict(names, both, best, [each.records for each in summaries])
    if as_json:
        print_json({"kind": kind, "names": names, "rows": [each.to_json() for each in rows]})
    else:
        _print(f"two {kind}{of}", names, in_short(rows), said)


def _verdict(
    names: Sequence[str],
    studies: Sequence[StoredStudy],
    pair: Sequence[TrialRecord | None],
    records: Sequence[Sequence[TrialRecord]],
) -> str | None:
    """Return which of two results is better, or why that cannot be said; None for two trials of several objectives."""
    values = [each.values[0] for each in pair if each is not None and each.is_eligible]
    kinds = {
        "objectives": {each.description for each in studies},
        "scopes": {each.scope for each in studies},
        "evaluation data": {_evaluation_data(each) for each in studies},
    }
    differing = next((name for name, found in kinds.items() if len(found) > 1), None)
    if differing is not None:
        return f"not comparable: their {differing} differ"
    if len(studies[0].objectives) > 1:
        return None
    for name, each in zip(names, pair, strict=True):
        if each is None or not each.is_eligible:
            broken = each is not None and each.state.has_result and any(by > 0 for by in each.violations.values())
            return f"not comparable: {name} {'breaks a constraint' if broken else 'has no result'}"
    noises = [known_noise(study, of) for study, of in zip(studies, records, strict=True)]
    return verdict(names, values, studies[0].objective, noises)


def _evaluation_data(study: StoredStudy) -> str:
    sessions = study.settings.get("sessions") or [{}]
    return str(sessions[-1].get("data", {}).get("eval_dataset"))


def _print(title: str, names: list[str], rows: Sequence[Row], said: str | None = None) -> None:
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    table.add_column("", no_wrap=True)  # with a min_width, rich crops the last column
    for name in names:
        table.add_column(Text(name), overflow="fold")
    for group, members in groupby(rows, key=lambda each: each.group):
        table.add_section()
        table.add_row("", Text(group, style="bold"))
        for each in members:
            mark = "≠" if each.differs else ""
            table.add_row(mark, Text(_folded(each.name)), *map(Text, each.texts), style="" if each.differs else "dim")
    console = Console(highlight=False)
    console.print(table)
    notes = ["≠ differs"] if any(each.differs for each in rows) else ["nothing differs"]
    if any(NOT_RECORDED in each.values for each in rows):
        notes.append("- not recorded")
    console.print("; ".join(notes), style="dim")
    if said is not None:
        console.print(Text(said), soft_wrap=not console.is_terminal)


def _folded(name: str) -> str:
    """Return a name on as many lines as it needs."""
    return "\n".join(name[start : start + _WIDTH_OF_NAMES] for start in range(0, len(name), _WIDTH_OF_NAMES))
