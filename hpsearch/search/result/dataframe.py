"""The trials of a study as a table of pandas, and as one for a paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..metrics.objective import Objective
from ..metrics.replicas import are_folds, has_replicas
from ..metrics.selection import ranking
from ..study import EPOCH
from ..trial_record import FOLD, TrialRecord
from ..wording import format_mean, format_value, metric_label
from .trial_rows import TrialRow, offset_of, run_rows, trial_rows

if TYPE_CHECKING:
    import pandas


def trials_dataframe(
    records: Sequence[TrialRecord], objectives: Sequence[Objective], runs: bool = False
) -> pandas.DataFrame:
    """Return one row a trial, by number: how it ended, its objectives, its parameters, and what it cost.

    Args:
        records: of the trials.
        objectives: of the study; each is a column of its name.
        runs: return a row for each training run instead: with `repeats=` or `folds=`, a trial has several.

    Returns:
        A `pandas.DataFrame` indexed by the trial's number, with the columns `state`, one for each objective (NaN for
        trials that did not train to their end), `last_report` (of the first objective, of any trial), one for each
        parameter, ``params.<name>``, `holds` (whether it holds the constraints), `epochs` (of a plain function: steps),
        `seconds`, `evaluations`, `seed`, `checkpoint` and `reason`.

        If trials were trained several times, an objective is the mean of the trial's runs, beside its standard
        deviation (``<objective>_std``) and the number of `runs`; `epochs`, `seconds` and `evaluations` are those of all
        its runs, and `checkpoint` is that of the run which is nearest to the mean. With ``runs=True``, the columns
        `repeats` (the number of the trial that a training run repeats; missing of a trial) and, of a cross-validation,
        `fold` are there instead.
    """
    import pandas

    names = list(dict.fromkeys(name for record in records for name in record.params))
    rows = run_rows(records) if runs else trial_rows(records)
    table = pandas.DataFrame([_row(each, objectives, names) for each in rows], columns=_columns(objectives, names))
    if has_replicas(records) and runs:
        place = list(table.columns).index("holds")
        table.insert(place, "repeats", pandas.array([each.repeats for each in rows], dtype="Int64"))
        if are_folds(records):
            table.insert(place + 1, FOLD, [offset_of(each.trial) for each in rows])
    elif has_replicas(records):
        for place, objective in enumerate(objectives):
            deviations = [each.deviations[place] if each.deviations else math.nan for each in rows]
            name = f"{objective.name}_std"
            name = f"{name}_of_runs" if name in table.columns else name  # there may be an objective of this name
            table.insert(list(table.columns).index(objective.name) + 1, name, deviations)
        table.insert(list(table.columns).index("last_report"), "runs", [each.runs for each in rows])
    return table.set_index("number")


def trials_markdown(
    records: Sequence[TrialRecord], objectives: Sequence[Objective], limit: int = 10, unit: str = EPOCH
) -> str:
    """Return the best trials as a table in Markdown, four significant digits each.

    Args:
        records: of the trials.
        objectives: of the study.
        limit: how many trials.
        unit: of the column after the parameters.
    """
    return markdown_table(ranked_rows(records, objectives)[:limit], objectives, unit)


def ranked_rows(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> list[TrialRow]:
    """Return the rows of the trials that may be the best, best first."""
    rows = {each.trial.number: each for each in trial_rows(records)}
    return [rows[each.number] for each in ranking(records, objectives)]


def markdown_table(shown: Sequence[TrialRow], objectives: Sequence[Objective], unit: str = EPOCH) -> str:
    """Return these trials, in this order, as a table in Markdown, four significant digits each."""
    head, *rows = short_rows(shown, objectives, unit)
    lines = [head, ["---:"] * len(head), *([each.replace("|", "\\|") for each in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def short_rows(shown: Sequence[TrialRow], objectives: Sequence[Objective], unit: str = EPOCH) -> list[list[str]]:
    """Return a row of headings, and one for each trial: its number, objectives, parameters, epochs and seconds.

    An objective of several training runs is their mean, with the standard deviation and their number. The number of a
    training run is followed by that of the trial that it repeats.
    """
    names = list(dict.fromkeys(name for row in shown for name in row.trial.params))
    head = ["trial", *(metric_label(each.name, unit) for each in objectives), *names, f"{unit}s", "seconds"]
    rows: list[list[object]] = [
        [
            row.trial.number if row.repeats is None else f"{row.trial.number} (repeats {row.repeats})",
            *(_values(row) or [""] * len(objectives)),
            *(row.trial.params.get(name, "") for name in names),
            row.record.epochs,
            row.record.seconds,
        ]
        for row in shown
    ]
    return [head, *([format_value(each) for each in row] for row in rows)]


def _values(row: TrialRow) -> list[object]:
    """Return the objectives of a row; in brackets if they are no result, as of a pruned trial."""
    if not row.record.state.has_result:
        return [f"({format_value(each)})" for each in row.record.values]
    if not row.deviations:
        return list(row.record.values)
    return [format_mean(*each, row.runs) for each in zip(row.record.values, row.deviations, strict=True)]


def _columns(objectives: Sequence[Objective], names: Sequence[str]) -> list[str]:
    parameters = [f"params.{name}" for name in names]
    values = [each.name for each in objectives]
    figures = ["holds", "epochs", "seconds", "evaluations", "seed", "checkpoint", "reason"]
    return ["number", "state", *values, "last_report", *parameters, *figures]


def _row(row: TrialRow, objectives: Sequence[Objective], names: Sequence[str]) -> list[object]:
    record, nothing = row.record, math.nan
    values = record.values if record.state.has_result and record.values else (nothing,) * len(objectives)
    last = record.reports[-1].value if record.reports else nothing
    parameters = [record.params.get(name) for name in names]
    checkpoint = None if record.checkpoint is None else str(record.checkpoint)
    cost = [record.epochs, record.seconds, row.evaluations]
    holds = all(each <= 0 for each in record.violations.values())
    figures = [holds, *cost, record.seed, checkpoint, record.reason]
    return [record.number, record.state.value, *values, last, *parameters, *figures]
