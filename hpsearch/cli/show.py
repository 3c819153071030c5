"""`hpsearch show`: the trials of a study as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..errors import StudyError
from ..reports.tables import budget_in_words, count_states, held_out_in_words
from ..search.metrics.replicas import has_replicas
from ..search.requests.make_request import when_it_continues
from ..search.requests.request import Kind
from ..search.result.advice import advice
from ..search.result.best_run import SearchSummary
from ..search.result.dataframe import markdown_table
from ..search.result.rung_agreements import agreement_sentences
from ..search.result.trial_rows import TrialRow, run_rows, trial_rows
from ..search.store.live_sessions import sessions_at_work
from ..search.trial_record import TrialState
from ..search.wording import counted, format_value
from ..searching.opened_study import OpenedStudy, open_study
from .json_output import JsonOption, print_json
from .requests import pause_in_words
from .table_layout import layout
from .trial_table import VALUE, TrialTable, failures_in_words, notes_on_runs, sorted_rows, trial_table
from .which_study import say_problems, study_folder

_OF_MANY = 20

State = Enum("State", {each.name: each.value for each in TrialState}, type=str)  # type: ignore[misc]


def show(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    sort: Annotated[
        str, typer.Option(help="Sort by value (best first), trial, state, epochs (or steps), seconds or a parameter.")
    ] = VALUE,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    columns: Annotated[
        str | None, typer.Option(help="Names of columns, such as learning_rate,value,seed.", show_default="what varies")
    ] = None,
    state: Annotated[
        list[State] | None, typer.Option(help="Only trials in this state, without the findings about all; repeatable.")
    ] = None,
    runs: Annotated[
        bool, typer.Option("--runs", help="A row for each training run: with repeats or folds, a trial has several.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of rows.", show_default=f"{_OF_MANY}; of JSON: all")
    ] = None,
    as_json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table of the trials shown.")] = False,
) -> None:
    """Show the trials of a study; the value of one that was trained several times is the mean of its runs.

    \b
    hpsearch show runs/digits --sort seconds --limit 5
    hpsearch show --columns learning_rate,value,seconds
    hpsearch show --state failed
    hpsearch show --runs
    hpsearch show --json | jq '.[0].params'
    """
    if columns is not None and (as_json or markdown):
        raise StudyError("--columns chooses the columns of the table: leave --json and --markdown out.")
    summary = open_study(study_folder(study))
    wanted = {each.value for each in state or ()}
    rows = run_rows(summary.records) if runs else trial_rows(summary.records)
    filtered = [each for each in rows if not wanted or each.trial.state.value in wanted]
    chosen = sorted_rows(filtered, sort, summary, reverse)
    first = chosen[: limit or _OF_MANY]
    if as_json:
        has_folds = summary.study.fold_count > 0
        print_json([each.run_to_json(has_folds) if runs else each.to_json() for each in chosen[:limit]])
    elif markdown:
        is_as_it_is = sort == VALUE and not state and not reverse and not runs
        found = markdown_table(first, summary.study.objectives, summary.study.unit)
        print(summary.trials_markdown(limit or _OF_MANY) if is_as_it_is else found, end="")
    else:
        table = trial_table(summary, first, [each.strip() for each in columns.split(",")] if columns else ())
        _print(summary, table, first, len(chosen), "run" if runs else "trial", has_findings=not wanted)
    say_problems(summary)


def _print(
    summary: OpenedStudy, table: TrialTable, shown: Sequence[TrialRow], of: int, kind: str, has_findings: bool
) -> None:
    console = Console(highlight=False)
    console.soft_wrap = not console.is_terminal  # a terminal breaks sentences between words; a pipe gets them whole
    study = summary.study
    console.print(Text(f"{study.name}: {study.description}, scope {study.scope}"))
    console.print(Text(count_states(summary.records) + budget_in_words(study, summary.records)), style="dim")
    half_done = [str(each.number) for each in summary.records if each.state is TrialState.INTERRUPTED]
    if half_done and not sessions_at_work(Path(study.folder)):
        resumes = f"trial {half_done[0]} resumes" if len(half_done) == 1 else f"trials {', '.join(half_done)} resume"
        console.print(Text(f"{resumes} {when_it_continues(Path(study.folder))}"), style="yellow")
    pending = [str(each) for each in summary.requests if each.kind is not Kind.PAUSE]
    if pending:
        console.print(Text(f"requested: {', '.join(pending)}"), style="yellow")
    for sentence in pause_in_words(summary):
        console.print(Text(sentence), style="yellow")
    if table.constants:
        same = ", ".join(f"{name}={format_value(each)}" for name, each in table.constants.items())
        console.print(Text(f"in all trials: {same}"), style="dim")
    for line in _lines(table, shown, summary, console.width):
        console.print(line)
    if not shown:
        further = ", but --runs may list further runs" if kind == "trial" and has_replicas(summary.records) else ""
        console.print(f"no such {kind}{further}", style="dim")
    if of > len(shown):
        console.print(f"{counted(of - len(shown), f'more {kind}')}: --limit {of}", style="dim")
    numbers = {each.trial.number for each in shown}
    of_shown = [each for each in summary.records if {each.number, each.replica and each.replica.trial} & numbers]
    for sentence in failures_in_words(of_shown):
        console.print(Text(sentence), style="red")
    if not has_findings:
        return
    for about in (
        held_out_in_words(summary),
        *(each(study, summary.records) for each in (agreement_sentences, advice)),
    ):
        for sentence in about:
            console.print(Text(sentence))


def _lines(table: TrialTable, shown: Sequence[TrialRow], summary: SearchSummary, width: int) -> Iterator[Text]:
    """Return the headings, the rows, and what the headings do not say."""
    best = {each.number for each in summary.best()}
    found = layout(table.columns, width)
    for line in found.headings:
        yield Text(line, style="bold")
    for row, line in zip(shown, found.rows, strict=True):
        failed = row.trial.state in (TrialState.FAILED, TrialState.REFUSED)
        other = "dim" if row.repeats is not None else ""
        yield Text(line, style="bold green" if row.trial.number in best else "red" if failed else other)
    notes = [f"{short} is {name}" for short, name in found.short.items()]
    if any(each.trial.number in best for each in shown):
        notes.insert(0, "* best")
    if notes:
        yield Text("; ".join(notes), style="dim")
    for note in notes_on_runs(summary, shown):
        yield Text(note, style="dim")
    if found.omitted:
        names = ", ".join(found.omitted)
        yield Text(f"no room for {names}; choose with --columns", style="dim")
