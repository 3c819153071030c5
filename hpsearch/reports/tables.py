"""Readable tables of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ..search.decisions.training_budget import full_runs_of
from ..search.metrics.replicas import without_replicas
from ..search.metrics.selection import best_records, closest, ranking
from ..search.result.best_run import BestRun, SearchSummary
from ..search.result.parameter_importances import Importances
from ..search.result.trial_rows import trial_rows
from ..search.store.checked_json import printable
from ..search.store.stored_study import StoredStudy
from ..search.study import Study
from ..search.trial_record import FOLD, TrialRecord, TrialState
from ..search.wording import counted, format_value, metric_label
from ..system.files import short_path
from .curve_scale import CurveScale


def sparkline(values: Sequence[float]) -> str:
    """Return a curve of values in one line of text, on a scale of its own.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    finite = [value for value in values if math.isfinite(value)]
    return CurveScale(min(finite), max(finite)).sparkline(finite) if finite else ""


def format_clock(seconds: float) -> str:
    """Return how long something has taken, as a clock shows it.

    >>> format_clock(7.9), format_clock(3723)
    ('0:07', '1:02:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_duration(seconds: float) -> str:
    """Return how long something will take, as exactly as that is known.

    >>> [format_duration(seconds) for seconds in (42.3, 723, 12345, 234567)]
    ['42 s', '12 min', '3.4 h', '2.7 days']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 36 * 3600 else f"{seconds / 86400:.1f} days"


def trials_table(
    study: Study | StoredStudy, records: Sequence[TrialRecord], limit: int = 4, has_heading: bool = True
) -> Table:
    """Return a table of the best trials, one column each: value, curve, time and parameters.

    Args:
        limit: how many trials to show; four fit into 80 characters.
        has_heading: whether the study and the number of trials are above it; the end of a search has just told them.
    """
    ranked = ranking(records, study.objectives)
    by_number = {each.trial.number: each for each in trial_rows(records)}
    in_order = ranked or closest([each.record for each in by_number.values()], study.constraints)
    rows = [by_number[each.number] for each in in_order[:limit]]
    shown = [each.record for each in rows]
    best = {each.number for each in best_records(records, study.objectives)}
    names = list(dict.fromkeys(name for record in shown for name in record.params))
    title = Text(_heading(study, records)) if has_heading else None
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("trial", no_wrap=True)
    for record in shown:
        table.add_column(
            str(record.number), justify="right", no_wrap=True, style="bold green" if record.number in best else None
        )
    for place, objective in enumerate(study.objectives):
        row = Text(metric_label(objective.name, study.unit))
        table.add_row(row, *(format_value(record.values[place]) for record in shown))
        if any(each.runs > 1 for each in rows):
            deviations = (f"{each.deviations[place]:.2g}" if each.deviations else "-" for each in rows)
            table.add_row("standard deviation", *deviations)
    if any(each.runs > 1 for each in rows):
        table.add_row("runs", *(str(each.runs) for each in rows))
    for constraint in study.constraints:
        slacks = [-record.violations.get(constraint.name, 0.0) for record in shown]
        table.add_row(
            Text(constraint.name),
            *(f"{'holds' if each >= 0 else 'broken'} by {format_value(abs(each))}" for each in slacks),
        )
    scale = CurveScale.of(report.value for record in records for report in record.reports)
    curve = "curve" if len(study.objectives) == 1 else f"curve of {study.objective.name}"
    table.add_row(Text(curve), *(scale.sparkline([report.value for report in record.reports][-9:]) for record in shown))
    table.add_row("seconds", *(f"{each.record.seconds:.1f}" for each in rows), end_section=True)
    for name in names:
        table.add_row(Text(name), *(Text(format_value(record.params.get(name, "-"))) for record in shown))
    return table


def count_states(records: Sequence[TrialRecord]) -> str:
    """Return how the trials ended, in words: ``30 trials: 12 complete, 18 pruned``."""
    trials = without_replicas(records)
    counts = [(sum(record.state is state for record in trials), state.value) for state in TrialState]
    kinds = [each.replica.kind for each in records if each.replica is not None]
    further = [f"and {counted(len(kinds), f'further {FOLD}' if FOLD in kinds else kinds[0])}"] if kinds else []
    return f"{counted(len(trials), 'trial')}: " + ", ".join([*(f"{n} {name}" for n, name in counts if n), *further])


def budget_in_words(study: Study | StoredStudy, records: Sequence[TrialRecord]) -> str:
    """Return, to follow on `count_states`, how much of the budget in full training runs is used; empty without one."""
    if study.budget is None:
        return ""
    return f"; {full_runs_of(records):.3g} of {study.budget:g} full training runs"


def effort_in_words(study: Study | StoredStudy, records: Sequence[TrialRecord]) -> list[str]:
    """Return, in sentences, for how long all trials were trained, and what it saved that not all trained to the end."""
    epochs, seconds = sum(each.epochs for each in records), sum(each.seconds for each in records)
    if not epochs or not seconds:
        return []
    lines = [f"All trials together trained {counted(epochs, study.unit)} in {format_duration(seconds)} of training."]
    saved = saved_fraction(records)
    if saved is not None:
        in_full = counted(epochs / (1 - saved), study.unit)
        lines.append(f"Run to completion, they would have trained {in_full}; {saved:.0%} was saved.")
    return lines


def saved_fraction(records: Sequence[TrialRecord]) -> float | None:
    """Return the fraction of the epochs that pruning saved, compared to training the pruned trials to completion.

    None if that is less than a twentieth, or nothing was trained.
    """
    epochs = sum(each.epochs for each in records)
    in_full = sum(_epochs_in_full(each) for each in records if each.reports)
    return 1 - epochs / in_full if epochs and in_full > 1.05 * epochs else None


def _epochs_in_full(record: TrialRecord) -> float:
    """Return how many epochs a trial would have been if pruned ones had continued; of others, those trained."""
    last = record.reports[-1]
    if record.state is not TrialState.PRUNED:
        return record.epochs
    return last.epoch / last.fraction if last.fraction else record.epochs


def _heading(study: Study | StoredStudy, records: Sequence[TrialRecord]) -> str:
    counts = f"{count_states(records)}{budget_in_words(study, records)}"
    return f"{study.name}: {study.description}, scope {study.scope}\n{counts}"


def importance_table(importances: Importances, unit: str) -> Table:
    """Return a table of how much of the objective's variation each parameter explains, and what that rests on."""
    title = Text(f"importance of each parameter, by {importances.basis(unit)}")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("parameter")
    table.add_column("fraction", justify="right")
    table.add_column("")
    for name, share in importances.items():
        table.add_row(Text(name), f"{share:.0%}", "█" * round(share * 30))
    return table


def failures(records: Sequence[TrialRecord]) -> list[str]:
    """Return one line per failed trial with its reason."""
    return [f"trial {each.number} failed: {each.reason}" for each in records if each.state is TrialState.FAILED]


def describe_best(best: BestRun, has_test_set: bool = True) -> str:
    """Return one paragraph about the best run, or about why there is none.

    Args:
        has_test_set: whether the metrics on the test set follow; the end of a search has just told them.
    """
    if best.run_id is None:
        return str(best.run_summary.explain_absence())
    where = f"weights in {short_path(best.checkpoint)}" if best.checkpoint is not None else "weights not kept"
    parameters = ", ".join(f"{name}={format_value(value)}" for name, value in best.hyperparameters.items())
    if isinstance(best.objective, list):
        named = zip(best.run_summary.study.objectives, best.objective, strict=True)
        unit = best.run_summary.study.unit
        value = ", ".join(f"{metric_label(objective.name, unit)} {format_value(each)}" for objective, each in named)
    else:
        value = format_value(best.objective)
        if best.objective_std is not None:
            runs = counted(len(best.values or {}), "fold" if best.run_summary.study.fold_count else "seed")
            value += f" (mean of {runs}, standard deviation {best.objective_std:.2g})"
    held_out = "".join(f"\n{each}" for each in held_out_in_words(best.run_summary) if has_test_set)
    return f"best trial {best.run_id}: {value} (scope {best.scope}) with {parameters}; {where}{held_out}"


def held_out_in_words(summary: SearchSummary) -> list[str]:
    """Return a sentence about the metrics on the test set; none if there is no evaluation on one."""
    result = summary.held_out
    return [] if result is None else [printable(result.describe(summary.objective.name))]
