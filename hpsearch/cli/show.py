"""`hpsearch show`: the trials of a study as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ..errors import StudyError, one_of
from ..reports.tables import budget_in_words, count_states, format_value, held_out_in_words, sparkline
from ..search.result.advice import advice
from ..search.result.best_run import SearchSummary
from ..search.result.dataframe import markdown_table
from ..search.result.rung_agreements import agreement_sentences
from ..search.trial import TrialRecord, TrialState
from ..searching.opened_study import open_study
from ..system.files import finite
from ..system.spelling import nearest_name
from .which_study import say_problems, study_folder

_FIELDS = ("number", "value", "seconds", "epochs", "state")
_OF_MANY = 20

State = Enum("State", {each.name: each.value for each in TrialState}, type=str)  # type: ignore[misc]


def show(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    sort: Annotated[
        str,
        typer.Option(help="Sort key: value (best first), number, seconds, epochs (or steps), state, or a parameter."),
    ] = "value",
    state: Annotated[list[State] | None, typer.Option(help="Only trials in this state; repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of trials.")] = _OF_MANY,
    as_json: Annotated[bool, typer.Option("--json", help="All trials as JSON, for scripts.")] = False,
    markdown: Annotated[bool, typer.Option(help="A Markdown table of the trials shown.")] = False,
) -> None:
    """Show the trials of a study.

    \b
    hpsearch show runs/digits --sort seconds --limit 5
    hpsearch show --state failed
    hpsearch show --json | jq '.[0].params'
    """
    summary = open_study(study_folder(study))
    chosen = _sorted(_filtered(summary.records, state), sort, summary)
    if as_json:
        print(json.dumps(finite([each.to_json() for each in chosen]), indent=2, allow_nan=False))
    elif markdown:
        is_as_it_is = sort == "value" and not state
        table = markdown_table(chosen[:limit], summary.study.objectives, summary.study.unit)
        print(summary.trials_markdown(limit) if is_as_it_is else table, end="")
    else:
        console = Console(highlight=False)
        console.print(Text(f"{summary.study.name}: {summary.study.description}, scope {summary.study.scope}"))
        console.print(
            Text(count_states(summary.records) + budget_in_words(summary.study, summary.records)), style="dim"
        )
        if summary.requested:
            console.print(Text(f"requested: {', '.join(summary.requested)}"), style="yellow", soft_wrap=True)
        for line in _lines(chosen[:limit], summary):
            console.print(line, soft_wrap=True)
        if len(chosen) > limit:
            console.print(f"{len(chosen) - limit} more: --limit {len(chosen)}", style="dim")
        for sentence in held_out_in_words(summary):
            console.print(Text(sentence), soft_wrap=True)
        for about in (agreement_sentences, advice):
            for sentence in about(summary.study, summary.records):
                console.print(Text(sentence), soft_wrap=True)
    say_problems(summary)


def _filtered(records: Sequence[TrialRecord], states: Sequence[State] | None) -> list[TrialRecord]:
    wanted = {each.value for each in states or ()}
    return [each for each in records if not wanted or each.state.value in wanted]


def _sorted(records: list[TrialRecord], by: str, summary: SearchSummary) -> list[TrialRecord]:
    """Return trials by a field or a parameter; those that have none come last.

    Raises:
        StudyError: there is no such field or parameter.
    """
    if by == "value":
        wanted = {each.number for each in records}
        return [each for each in summary.best_first() if each.number in wanted]
    if by in (*_FIELDS, _trained(summary)):
        field = by if by in _FIELDS else "epochs"
        return sorted(records, key=lambda each: (getattr(each, field), each.number))
    names = dict.fromkeys(name for each in summary.records for name in each.params)
    if by not in names:
        raise StudyError(
            f"--sort {by}: no such parameter; allowed: {one_of([*_FIELDS, *names])}."
            f"{nearest_name(by, [*_FIELDS, *names])}"
        )
    return sorted(records, key=lambda each: _place(each.params.get(by)))


def _trained(summary: SearchSummary) -> str:
    """Return what counts how long a trial was trained: ``epochs``, or ``steps`` of a plain function."""
    return f"{summary.study.unit}s"


def _place(value: Any) -> tuple[int, float, str]:
    if value is None:
        return (2, 0.0, "")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, float(value), "") if is_number else (1, 0.0, str(value))


def _lines(records: Sequence[TrialRecord], summary: SearchSummary) -> Iterator[Text]:
    """Return a heading, and for each trial its figures with its parameters below, which may be long."""
    best = {each.number for each in summary.best()}
    names = [objective.name.removeprefix("eval_") for objective in summary.study.objectives]
    heading = ["trial", "state", *names, _trained(summary), "seconds", "curve"]
    rows = [_figures(record, summary) for record in records]
    widths = [max(len(row[place]) for row in [heading, *rows]) for place in range(len(heading))]
    yield Text(_aligned(heading, widths), style="bold")
    for record, row in zip(records, rows, strict=True):
        failed = record.state is TrialState.FAILED
        yield Text(_aligned(row, widths), style="bold green" if record.number in best else "red" if failed else "")
        told = record.reason or "" if failed else ", ".join(f"{k}={format_value(v)}" for k, v in record.params.items())
        if record.replica is not None:
            told = f"{record.replica}{': ' if told else ''}{told}"
        yield Text(f"{' ' * widths[0]}  {' '.join(told.split())}", style="dim")


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = (1, len(cells) - 1)  # the state and the curve are texts
    return "  ".join(
        cell.ljust(width) if place in left else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def _figures(record: TrialRecord, summary: SearchSummary) -> list[str]:
    return [
        str(record.number),
        record.state.value,
        *_values(record, summary),
        f"{record.epochs:.3g}",
        f"{record.seconds:.1f}",
        sparkline([report.value for report in record.reports][-12:]),
    ]


def _values(record: TrialRecord, summary: SearchSummary) -> list[str]:
    """Return the objectives; of a trial without a result in brackets what it had come to."""
    if record.values:
        shown = [format_value(each) for each in record.values]
        return shown if record.state.has_result else [f"({each})" for each in shown]
    return ["-"] * len(summary.study.objectives)
