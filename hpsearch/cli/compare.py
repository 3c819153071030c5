"""`hpsearch compare`: what two trials, or two studies, have in common, and in what they differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import StudyError
from ..reports.tables import count_states, format_clock, format_value, sparkline
from ..search.result.best_run import SearchSummary
from ..search.store.stored_study import StoredStudy
from ..search.study import flat
from ..search.trial import TrialRecord
from ..searching.opened_study import open_study
from ..system.json_types import JsonObject
from .which_study import study_folder, trial_of


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Number of a trial, or folder of a study.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    study: Annotated[Path | None, typer.Option(help="Folder of the study of the trials.")] = None,
) -> None:
    """Compare two trials of a study, or two studies. What differs is in bold.

    \b
    hpsearch compare 3 17 --study runs/digits
    hpsearch compare runs/digits runs/digits-wide
    """
    numbers = [each for each in (first, second) if each.isdecimal()]
    if len(numbers) == 1:
        raise StudyError(f"compare {first} {second}: name two trials by number, or two studies by folder.")
    if numbers:
        summary = open_study(study_folder(study))
        pair = [trial_of(summary.records, int(each)) for each in numbers]
        _print(f"two trials of {summary.study.name}", [str(each.number) for each in pair], _of_trials(pair, summary))
        return
    if study is not None:
        raise StudyError("--study names the study of two trials, but here two studies are compared.")
    summaries: list[SearchSummary] = [open_study(study_folder(Path(each))) for each in (first, second)]
    _print("two studies", [str(each.study.folder) for each in summaries], _of_studies(summaries))


def _print(title: str, names: list[str], rows: list[tuple[str, list[str]]]) -> None:
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for name in names:
        table.add_column(Text(name), overflow="fold")
    for label, values in rows:
        table.add_row(Text(label), *map(Text, values), style="bold" if len(set(values)) > 1 else "dim")
    Console(highlight=False).print(table)


def _of_trials(pair: list[TrialRecord], summary: SearchSummary) -> list[tuple[str, list[str]]]:
    def row(label: str, shown: Callable[[TrialRecord], object]) -> tuple[str, list[str]]:
        return label, [str(shown(each)) for each in pair]

    rows = [row("state", lambda each: each.state.value)]
    for place, objective in enumerate(summary.study.objectives):
        rows.append((objective.name, [format_value(_at(each.values, place)) for each in pair]))
    rows.append(row("curve", lambda each: sparkline([report.value for report in each.reports][-20:])))
    rows.append(row(f"{summary.study.unit}s", lambda each: f"{each.epochs:.3g}"))
    rows.append(row("seconds", lambda each: f"{each.seconds:.1f}"))
    for name in dict.fromkeys(name for each in pair for name in each.hyperparameters):
        rows.append((name, [format_value(each.hyperparameters.get(name, "-")) for each in pair]))
    rows.append(row("seed", lambda each: each.seed))
    if any(each.reason for each in pair):
        rows.append(row("reason", lambda each: each.reason or "-"))
    return rows


def _of_studies(pair: list[SearchSummary]) -> list[tuple[str, list[str]]]:
    def row(label: str, shown: Callable[[SearchSummary], object]) -> tuple[str, list[str]]:
        return label, [str(shown(each)) for each in pair]

    def best(summary: SearchSummary) -> str:
        found = summary.best()
        if not found:
            return "-"
        if len(summary.study.objectives) > 1:
            return f"{len(found)} on the Pareto front"
        return f"{format_value(found[0].value)} (trial {found[0].number})"

    rows = [
        row("objective", lambda each: each.study.description),
        row("scope", lambda each: each.study.scope),
        row("trials", lambda each: count_states(each.records)),
        row("best", best),
        row(
            " or ".join(dict.fromkeys(f"{each.study.unit}s" for each in pair)),
            lambda each: f"{sum(one.epochs for one in each.records):.4g}",
        ),
        row("training", lambda each: format_clock(sum(one.seconds for one in each.records))),
    ]
    settings = [StoredStudy.read(each.study.folder).settings for each in pair]
    rows += [(name, [str(each.get(name, "-")) for each in settings]) for name in ("sampler", "pruner", "seed")]
    spaces = [flat(each["space"]) for each in settings]
    if all(spaces):
        for name in dict.fromkeys(name for each in spaces for name in each):
            rows.append((f"space of {name}", [_range(each.get(name)) for each in spaces]))
    bests = [each.best()[0].hyperparameters if each.best() else {} for each in pair]
    for name in dict.fromkeys(name for each in bests for name in each):
        rows.append((f"best {name}", [format_value(each.get(name, "-")) for each in bests]))
    return rows


def _range(described: JsonObject | None) -> str:
    if described is None:
        return "-"
    if "choices" in described:
        return ", ".join(map(str, described["choices"]))
    return f"{described['low']} to {described['high']}{', log' if described.get('log') else ''}"


def _at(values: tuple[float, ...], place: int) -> object:
    return values[place] if place < len(values) else "-"
