"""The trials of a study as columns of texts: what is the same in all of them, what varies, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import StudyError, one_of
from ..reports.curve_scale import CurveScale
from ..search.metrics.objective import MINIMIZE
from ..search.result.best_run import SearchSummary
from ..search.result.trial_rows import TrialRow, below_their_trials, offset_of
from ..search.study import EPOCH, flat
from ..search.trial_record import FOLD, TrialRecord, TrialState
from ..system.spelling import nearest_name
from .aligned_numbers import aligned, is_number
from .table_layout import Column, short_names

TRIAL, VALUE, RUNS, STD, REPEATS = "trial", "value", "runs", "std", "repeats"
_POINTS_OF_CURVE = 12
_MISSING = object()


@dataclass(frozen=True)
class TrialTable:
    """The trials of a study, as far as they are shown.

    Attributes:
        constants: the parameters that have the same value in all trials of the study.
        columns: a text for each row that is shown.
    """

    constants: dict[str, object]
    columns: list[Column]


def trial_table(summary: SearchSummary, shown: Sequence[TrialRow], wanted: Sequence[str] = ()) -> TrialTable:
    """Return the columns of these trials, or training runs.

    Args:
        summary: all trials of the study.
        shown: the rows.
        wanted: the names of the columns, in their order; the trial is always the first. Empty: what varies.

    Raises:
        StudyError: there is no such column.
    """
    study = summary.study
    constants = constant_parameters(summary.records)
    figures = _figures(summary, shown)

    def parameter(name: str) -> Column:
        given = [parameters(each.trial) for each in shown]
        return _parameter_column(
            name, ["None" if each.get(name, _MISSING) is None else each.get(name) for each in given]
        )

    columns = [_number_column(shown, {each.number for each in summary.best()})]
    if wanted:
        names = dict.fromkeys(each for name in wanted for each in _columns_named("--columns", name, summary))
        columns += [figures[name]() if name in figures else parameter(name) for name in names if name != TRIAL]
        constants = {name: each for name, each in constants.items() if name not in names}
    else:
        columns += [figures[name]() for name in _first_columns(summary, shown)]
        columns += [parameter(name) for name in _parameter_names(summary) if name not in constants]
        columns += [figures[name]() for name in (f"{study.unit}s", "seconds", "curve")]
    return TrialTable(constants, columns)


def parameters(record: TrialRecord) -> dict[str, Any]:
    """Return what a trial's search has suggested, and what its space sets for all."""
    return {
        **record.params,
        **{name: each for name, each in record.hyperparameters.items() if name not in record.params},
    }


def _parameter_names(summary: SearchSummary) -> list[str]:
    """Return the names of the parameters that trials have, in the order of the space."""
    found = dict.fromkeys(name for each in summary.records for name in parameters(each))
    return list(dict.fromkeys([*(name for name in flat(summary.study.described_space()) if name in found), *found]))


def constant_parameters(records: Sequence[TrialRecord]) -> dict[str, object]:
    """Return the parameters that all trials have with the same value; trials without any parameter do not count."""
    found = [each for each in map(parameters, records) if each]
    constants = {}
    for name in found[0] if found else ():
        values = [each.get(name, _MISSING) for each in found]
        if all(type(each) is type(values[0]) and each == values[0] for each in values):
            constants[name] = values[0]
    return constants


def sorted_rows(rows: Sequence[TrialRow], by: str, summary: SearchSummary, is_reversed: bool = False) -> list[TrialRow]:
    """Return rows by a column, the value and the objectives best first; those that have none come last.

    By the value, a further run of a trial is below the trial.

    Raises:
        StudyError: there is no such column.
    """
    key = _key(by, summary)
    known = [each for each in rows if key(each) is not None]
    unknown = [each for each in rows if key(each) is None]
    ordered = sorted(known, key=lambda each: _comparable(key(each)))
    found = [*(reversed(ordered) if is_reversed else ordered), *unknown]
    return below_their_trials(found, lambda row: row.trial) if by == VALUE else found


def _key(by: str, summary: SearchSummary) -> Callable[[TrialRow], object]:
    """Return the function that gives a row's place; None: it has none.

    Raises:
        StudyError: there is no such column.
    """
    study = summary.study
    if by == VALUE:
        places = {each.number: place for place, each in enumerate(summary.best_first())}
        return lambda row: places[row.trial.number]
    name = _columns_named("--sort", by, summary)[0]
    objectives = [each.name for each in study.objectives]
    if name in objectives:
        place = objectives.index(name)
        sign = 1 if study.objectives[place].direction == MINIMIZE else -1
        return lambda row: sign * row.record.values[place] if row.record.values else None
    figures: dict[str, Callable[[TrialRow], object]] = {
        TRIAL: lambda row: row.trial.number,
        "state": lambda row: row.trial.state.value,
        f"{study.unit}s": lambda row: row.record.epochs,
        "seconds": lambda row: row.record.seconds,
        "seed": lambda row: row.trial.seed,
        FOLD: lambda row: offset_of(row.trial),
        RUNS: lambda row: row.runs,
        REPEATS: lambda row: row.repeats,
        **{
            name: lambda row, place=place: row.deviations[place] if row.deviations else None  # type: ignore[misc]
            for place, name in enumerate(_names_of_deviations(summary))
        },
    }
    return figures.get(name, lambda row: parameters(row.trial).get(name))


def _comparable(value: Any) -> tuple[int, Any, str]:
    return (0, value, "") if is_number(value) else (1, 0, str(value))


def _columns_named(option: str, name: str, summary: SearchSummary) -> list[str]:
    """Return the columns of a name: all objectives for ``value``; of the others, a short heading will do too.

    Raises:
        StudyError: there is none.
    """
    study = summary.study
    objectives = [each.name for each in study.objectives]
    if name == VALUE:
        return objectives
    fields = [TRIAL, "state", *objectives, f"{study.unit}s", "seconds", "seed"]
    fields += [*_names_of_deviations(summary), RUNS, REPEATS, *([FOLD] if study.fold_count else [])]
    fields += [] if option == "--sort" else ["curve", *(each.name for each in study.constraints)]
    names = list(dict.fromkeys([*fields, *_parameter_names(summary)]))
    aliases = {short: whole for whole, short in short_names(names).items()}
    aliases |= {each.removeprefix("eval_"): each for each in objectives}
    aliases |= {"number": TRIAL, f"{EPOCH}s": f"{study.unit}s"}
    if name in names or name in aliases:
        return [name if name in names else aliases[name]]
    allowed = [VALUE, *names]
    raise StudyError(f"{option} {name}: no such column; allowed: {one_of(allowed)}.{nearest_name(name, allowed)}")


def _first_columns(summary: SearchSummary, shown: Sequence[TrialRow]) -> list[str]:
    names = ["state", *(each.name for each in summary.study.objectives)]
    if any(each.repeats is not None for each in shown):
        names = [REPEATS, FOLD if summary.study.fold_count else "seed", *names]
    if any(each.runs > 1 for each in shown):
        names += [*_names_of_deviations(summary), RUNS]
    return [*names, *(each.name for each in summary.study.constraints)]


def _names_of_deviations(summary: SearchSummary) -> list[str]:
    """Return the names of the columns with the standard deviation of each objective."""
    objectives = summary.study.objectives
    return [STD] if len(objectives) == 1 else [f"{each.name}_{STD}" for each in objectives]


def _figures(summary: SearchSummary, shown: Sequence[TrialRow]) -> Mapping[str, Callable[[], Column]]:
    """Return what makes the columns that are no parameters, by name."""
    study = summary.study
    records = [each.record for each in shown]
    scale = CurveScale.of(report.value for each in summary.records for report in each.reports)

    def column(name: str, texts: Sequence[str], is_text: bool = False) -> Callable[[], Column]:
        return lambda: Column(name.removeprefix("eval_"), tuple(texts), is_text)

    figures = {
        REPEATS: column(REPEATS, aligned([each.repeats for each in shown])),
        FOLD: column(FOLD, aligned([offset_of(each.trial) for each in shown])),
        RUNS: column(RUNS, aligned([each.runs for each in shown])),
        "state": column("state", [each.state.value for each in records], True),
        f"{study.unit}s": column(f"{study.unit}s", aligned([float(each.epochs) for each in records])),
        "seconds": column("seconds", [f"{each.seconds:.1f}" for each in records]),
        "seed": column("seed", aligned([each.seed for each in records])),
        "curve": column("curve", [_curve(each, scale) for each in records], True),
    }
    for place, name in enumerate(_names_of_deviations(summary)):
        deviations = [each.deviations[place] if each.deviations else None for each in shown]
        figures[name] = column(name, aligned(deviations, digits=2))
    for place, objective in enumerate(study.objectives):
        figures[objective.name] = column(objective.name, _values(records, place))
    for constraint in study.constraints:
        figures[constraint.name] = column(constraint.name, [_holds(each, constraint.name) for each in records], True)
    return figures


def _number_column(shown: Sequence[TrialRow], best: set[int]) -> Column:
    """Return the numbers of the trials, the best of them marked where there is no colour."""
    numbers = [each.trial.number for each in shown]
    has_marks = not best.isdisjoint(numbers)
    return Column(TRIAL, tuple(f"{each}{('*' if each in best else ' ') if has_marks else ''}" for each in numbers))


def _parameter_column(name: str, values: Sequence[object]) -> Column:
    return Column(name, tuple(aligned(values)), not all(is_number(each) for each in values if each is not None))


def _values(shown: Sequence[TrialRecord], place: int) -> list[str]:
    """Return an objective; of a trial without a result in brackets what it had come to."""
    values = [each.values[place] if place < len(each.values) else None for each in shown]
    texts = aligned([None if each is None else float(each) for each in values], digits=4)
    are_results = [each.state.has_result for each in shown]
    if all(is_result or not text for is_result, text in zip(are_results, texts, strict=True)):
        return texts
    return [
        f"{text} " if is_result or not text else f"({text.strip()}){' ' * (len(text) - len(text.rstrip()))}"
        for is_result, text in zip(are_results, texts, strict=True)
    ]


def _holds(record: TrialRecord, constraint: str) -> str:
    return "" if constraint not in record.violations else "holds" if record.violations[constraint] <= 0 else "broken"


def _curve(record: TrialRecord, scale: CurveScale) -> str:
    return scale.sparkline([report.value for report in record.reports][-_POINTS_OF_CURVE:])


def failures_in_words(records: Sequence[TrialRecord]) -> list[str]:
    """Return why trials, and further runs of them, failed, in one line for each reason.

    >>> out_of_memory = [TrialRecord(n, f"run-{n}", TrialState.FAILED, {}, reason="out of memory") for n in (2, 5)]
    >>> failures_in_words(out_of_memory)
    ['trials 2, 5 failed: out of memory']
    """
    by_reason: dict[str, list[TrialRecord]] = {}
    for each in sorted(records, key=lambda each: each.number):
        if each.state in (TrialState.FAILED, TrialState.REFUSED):
            reason = f"{each.state.value}: {' '.join((each.reason or 'no reason').split())}"
            by_reason.setdefault(reason, []).append(each)
    return [
        f"{'trial' if len(failed) == 1 else 'trials'} {', '.join(map(_named, failed))} {reason}"
        for reason, failed in by_reason.items()
    ]


def _named(record: TrialRecord) -> str:
    return str(record.number) if record.replica is None else f"{record.number} ({record.replica})"


def notes_on_runs(summary: SearchSummary, shown: Sequence[TrialRow]) -> list[str]:
    """Return how the rows of trials that were trained several times are made; empty if there is none of them."""
    if not any(each.runs > 1 for each in shown):
        return []
    names = ", ".join(each.name.removeprefix("eval_") for each in summary.study.objectives)
    unit = summary.study.unit
    order = "; the order shrinks means of few runs" if len(summary.study.objectives) == 1 else ""
    return [f"{names}: mean of a trial's runs, with std{order}; {unit}s, seconds: of all runs; --runs lists them"]
