"""The trials of a study as a table of pandas, and as one for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..metrics.objective import Objective
from ..metrics.replicas import has_replicas
from ..metrics.selection import ranking
from ..study import EPOCH
from ..trial import TrialRecord
from ..wording import format_value

if TYPE_CHECKING:
    import pandas


def trials_dataframe(records: Sequence[TrialRecord], objectives: Sequence[Objective]) -> pandas.DataFrame:
    """Return one row a trial, by number: how it ended, its objectives, its parameters, and what it cost.

    Args:
        records: of the trials.
        objectives: of the study; each is a column of its name.

    Returns:
        A `pandas.DataFrame` indexed by the trial's number, with the columns `state`, one for each objective (NaN for
        trials that did not train to their end), `last_report` (of the first objective, of any trial), one for each
        parameter, ``params.<name>``, `repeats` (the number of the trial that it repeats with another seed; only if
        there are such), `holds` (whether it holds the constraints), `epochs` (of a plain function: steps),
        `seconds`, `evaluations`, `seed`, `checkpoint` and `reason`.
    """
    import pandas

    names = list(dict.fromkeys(name for record in records for name in record.params))
    rows = [_row(record, objectives, names) for record in records]
    table = pandas.DataFrame(rows, columns=_columns(objectives, names)).set_index("number")
    if has_replicas(records):
        of = [None if each.replica is None else each.replica.trial for each in records]
        table.insert(list(table.columns).index("holds"), "repeats", pandas.array(of, dtype="Int64"))
    return table


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
    return markdown_table(ranking(records, objectives, limit), objectives, unit)


def markdown_table(shown: Sequence[TrialRecord], objectives: Sequence[Objective], unit: str = EPOCH) -> str:
    """Return these trials, in this order, as a table in Markdown, four significant digits each."""
    head, *rows = short_rows(shown, objectives, unit)
    lines = [head, ["---:"] * len(head), *([each.replace("|", "\\|") for each in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def short_rows(shown: Sequence[TrialRecord], objectives: Sequence[Objective], unit: str = EPOCH) -> list[list[str]]:
    """Return a row of headings, and one for each trial: its number, objectives, parameters, epochs and seconds."""
    names = list(dict.fromkeys(name for record in shown for name in record.params))
    head = ["trial", *(each.name for each in objectives), *names, f"{unit}s", "seconds"]
    rows: list[list[object]] = [
        [
            record.number,
            *(record.values or [""] * len(objectives)),
            *(record.params.get(name, "") for name in names),
            record.epochs,
            record.seconds,
        ]
        for record in shown
    ]
    return [head, *([format_value(each) for each in row] for row in rows)]


def _columns(objectives: Sequence[Objective], names: Sequence[str]) -> list[str]:
    parameters = [f"params.{name}" for name in names]
    values = [each.name for each in objectives]
    figures = ["holds", "epochs", "seconds", "evaluations", "seed", "checkpoint", "reason"]
    return ["number", "state", *values, "last_report", *parameters, *figures]


def _row(record: TrialRecord, objectives: Sequence[Objective], names: Sequence[str]) -> list[object]:
    nothing = float("nan")
    values = record.values if record.state.has_result and record.values else (nothing,) * len(objectives)
    last = record.reports[-1].value if record.reports else nothing
    parameters = [record.params.get(name) for name in names]
    checkpoint = None if record.checkpoint is None else str(record.checkpoint)
    cost = [record.epochs, record.seconds, len(record.reports)]
    holds = all(each <= 0 for each in record.violations.values())
    figures = [holds, *cost, record.seed, checkpoint, record.reason]
    return [record.number, record.state.value, *values, last, *parameters, *figures]
