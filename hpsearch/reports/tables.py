"""Readable tables of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from ..search.best_run import BestRun
from ..search.selection import ranking
from ..search.study import Study
from ..search.trial import TrialRecord, TrialState

_BARS = "▁▂▃▄▅▆▇█"
_MARKS = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "[yellow]pruned[/]",
    TrialState.STOPPED: "[yellow]stopped[/]",
    TrialState.FAILED: "[red]failed[/]",
    TrialState.INTERRUPTED: "[dim]interrupted[/]",
    TrialState.RUNNING: "running",
}


def format_value(value: Any) -> str:
    """Return a parameter's or objective's value in at most about eight characters.

    >>> format_value(0.00012345), format_value(0.97512), format_value(16), format_value("adamw")
    ('0.0001234', '0.9751', '16', 'adamw')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def sparkline(values: Sequence[float]) -> str:
    """Return a curve of values in one line of text.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int((value - low) / span * 7 + 0.5))] for value in finite)


def trials_table(study: Study, records: Sequence[TrialRecord], limit: int | None = None) -> Table:
    """Return a table of the trials: those with a result first, best first, then the others.

    Args:
        limit: show at most so many rows.
    """
    ranked = ranking(records, study.objective)
    others = [record for record in records if record not in ranked]
    rows = [*ranked, *others][:limit]
    names = list(dict.fromkeys(name for record in rows for name in record.params))
    table = Table(title=f"{study.name}: {study.objective.description}, scope {study.scope}", title_justify="left")
    table.add_column("trial", justify="right")
    table.add_column("state")
    table.add_column(study.objective.name, justify="right")
    table.add_column("curve")
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("s", justify="right")
    for record in rows:
        is_best = bool(ranked) and record is ranked[0]
        table.add_row(
            str(record.number),
            _MARKS[record.state],
            "" if record.value is None else format_value(record.value),
            sparkline([report.value for report in record.reports]),
            *(format_value(record.params[name]) if name in record.params else "[dim]-[/]" for name in names),
            f"{record.seconds:.1f}",
            style="bold green" if is_best else None,
        )
    if limit is not None and len(records) > limit:
        table.caption = f"{len(records) - limit} more trials not shown"
    return table


def importance_table(importances: Mapping[str, float]) -> Table:
    """Return a table of how much of the objective's variation each parameter explains."""
    table = Table(title="importance of each parameter", title_justify="left")
    table.add_column("parameter")
    table.add_column("share", justify="right")
    table.add_column("")
    for name, share in importances.items():
        table.add_row(name, f"{share:.0%}", "█" * round(share * 30))
    return table


def failures(records: Sequence[TrialRecord]) -> list[str]:
    """Return one line per failed trial with its reason."""
    return [f"trial {each.number} failed: {each.reason}" for each in records if each.state is TrialState.FAILED]


def describe_best(best: BestRun) -> str:
    """Return one paragraph about the best run, or about why there is none."""
    if best.run_id is None:
        return str(best.run_summary.explain_absence())
    where = f"weights in {best.checkpoint}" if best.checkpoint is not None else "weights not kept"
    parameters = ", ".join(f"{name}={format_value(value)}" for name, value in best.hyperparameters.items())
    return f"best trial {best.run_id}: {format_value(best.objective)} (scope {best.scope}) with {parameters}; {where}"
