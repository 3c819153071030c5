"""In what two trials, or two studies, differ: rows of values that their folders record."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..reports.curve_scale import CurveScale
from ..reports.tables import count_states, format_duration
from ..search.result.best_run import SearchSummary
from ..search.result.trial_rows import TrialRow
from ..search.store.checked_json import printable
from ..search.store.stored_study import StoredStudy
from ..search.study import flat
from ..search.trial_record import TrialRecord
from ..search.wording import format_value, metric_label
from ..system.json_types import JsonObject
from .aligned_numbers import is_number
from .trial_table import parameters

_POINTS_OF_CURVE = 20
_MOST_LACKING = 20
_CODE = re.compile(r"cpython-\d+:([0-9a-f]{8})[0-9a-f]*")
_RESULT, _PARAMETERS, _STUDY, _SPACE, _BEST = "result", "parameters", "study", "space", "best trial"
_SESSION = "session"
_THEN = " → "


class NotRecorded:
    """In place of a value that a folder does not have."""

    def __repr__(self) -> str:
        return "-"


NOT_RECORDED = NotRecorded()


@dataclass(frozen=True)
class Row:
    """A value of both sides.

    Attributes:
        group: what it is a part of, such as ``arguments``.
        name: the name of the value.
        values: of both sides, JSON-ready, or `NOT_RECORDED`.
        texts: the values for people.
    """

    group: str
    name: str
    values: tuple[object, object]
    texts: tuple[str, str]

    @property
    def differs(self) -> bool:
        """Whether the values differ; 1 and 1.0 are the same, 1 and True are not."""
        if all(map(is_number, self.values)) and self.values[0] == self.values[1]:
            return False
        return repr(self.values[0]) != repr(self.values[1])

    def to_json(self) -> JsonObject:
        """Return the row; a value that is not recorded is null, and `recorded` tells it from a null on disk."""
        return {
            "group": self.group,
            "name": self.name,
            "values": [None if each is NOT_RECORDED else each for each in self.values],
            "recorded": [each is not NOT_RECORDED for each in self.values],
            "differs": self.differs,
        }


def rows_of_trials(pair: Sequence[TrialRow], study: StoredStudy) -> list[Row]:
    """Return the results and the parameters of two trials of a study, and what else differs between them."""
    trials, records = [each.trial for each in pair], [each.record for each in pair]
    rows = [_row(_RESULT, "state", [each.state.value for each in trials])]
    for place, objective in enumerate(study.objectives):
        values = [each.values[place] if each.values else NOT_RECORDED for each in records]
        name = metric_label(objective.name, study.unit)
        rows.append(_row(_RESULT, name, values))
        deviations = [each.deviations[place] if each.deviations else NOT_RECORDED for each in pair]
        if any(each.deviations for each in pair):
            rows.append(_row(_RESULT, f"{name}_std", deviations))
    if any(each.runs > 1 for each in pair):
        rows.append(_row(_RESULT, "runs", [each.runs for each in pair]))
    if any(each.repeats is not None for each in pair):
        repeated = [NOT_RECORDED if each.repeats is None else each.repeats for each in pair]
        rows.append(_row(_RESULT, "repeats", repeated, lambda number: f"trial {number}"))
    curves = [[report.value for report in each.reports] for each in trials]
    scale = CurveScale.of([value for curve in curves for value in curve])
    rows.append(_row(_RESULT, "curve", curves, lambda values: scale.sparkline(values[-_POINTS_OF_CURVE:])))
    rows.append(_row(_RESULT, f"{study.unit}s", [each.epochs for each in records]))
    rows.append(_row(_RESULT, "seconds", [each.seconds for each in records], lambda seconds: f"{seconds:.1f}"))
    rows.append(_row(_RESULT, "seed", [each.seed for each in trials]))
    if any(each.reason for each in trials):
        rows.append(_row(_RESULT, "reason", [each.reason or NOT_RECORDED for each in trials]))
    given = [parameters(each) for each in trials]
    names = _names_in(given)
    recorded = [_recorded_of_trial(each, study) for each in trials]
    rows += [_row(_PARAMETERS, name, _used(name, given, recorded)) for name in names]
    return [*rows, *_further_differences(recorded, names)]


def rows_of_studies(pair: Sequence[SearchSummary]) -> list[Row]:
    """Return the results and the spaces of two studies, and what else differs between them."""
    stored = [StoredStudy.read(each.study.folder) for each in pair]
    units = " or ".join(dict.fromkeys(f"{each.unit}s" for each in stored))
    rows = [
        _row(_STUDY, "objective", [each.description for each in stored]),
        _row(_STUDY, "scope", [each.scope for each in stored]),
        _row(_STUDY, "trials", [count_states(each.records) for each in pair]),
        _row(_STUDY, "best", [_best(each) for each in pair]),
        _row(_STUDY, units, [sum(one.epochs for one in each.records) for each in pair]),
        _row(_STUDY, "training", [sum(one.seconds for one in each.records) for each in pair], format_duration),
    ]
    for name in ("n_trials", "budget", "repeats", "sampler", "pruner", "seed"):
        rows.append(_row(_STUDY, name, [each.settings.get(name, NOT_RECORDED) for each in stored]))
    recorded = [_recorded_of_study(each) for each in stored]
    spaces = [flat(each.described_space()) for each in stored]
    names = _names_in(spaces)
    for name in names:
        ranges = [_range(space.get(name), found, name) for space, found in zip(spaces, recorded, strict=True)]
        rows.append(_row(_SPACE, name, ranges))
    bests = [next(iter(each.best()), None) for each in pair]
    given = [{} if each is None else parameters(each) for each in bests]
    of_best = [{} if each is None else _recorded_of_trial(each, of) for each, of in zip(bests, stored, strict=True)]
    rows += [_row(_BEST, name, _used(name, given, of_best)) for name in _names_in(given)]
    rows = [each for each in rows if each.values not in ((None, None), (NOT_RECORDED, NOT_RECORDED))]
    return [*rows, *_further_differences(recorded, names)]


def in_short(rows: Sequence[Row]) -> list[Row]:
    """Return rows for a terminal: of each group, those that differ come first.

    If many values of a group are recorded on one side only, they become one row. So a study of a plain function, which
    has no training arguments, does not list all those of the other study.
    """
    short: list[Row] = []
    for _, members in groupby(rows, key=lambda each: each.group):
        group = list(members)
        for side in (0, 1):
            lacking = [each for each in group if each.values[side] is NOT_RECORDED]
            if len(lacking) > _MOST_LACKING:
                texts = ("-", "recorded") if side == 0 else ("recorded", "-")
                summed = Row(group[0].group, f"{len(lacking)} values", lacking[0].values, texts)
                group = [*(each for each in group if each not in lacking), summed]
        short += sorted(group, key=lambda each: not each.differs)
    return short


def _used(name: str, given: Sequence[Mapping[str, object]], recorded: Sequence[Mapping[str, object]]) -> list[object]:
    """Return the value of a parameter that each side trained with: suggested, or else a recorded argument.

    A parameter of one side may be fixed on the other one, or belong to a branch that was not chosen there.
    """
    return [
        params.get(name, arguments.get(f"arguments.{name}", NOT_RECORDED))
        for params, arguments in zip(given, recorded, strict=True)
    ]


def _further_differences(recorded: Sequence[Mapping[str, object]], known: Collection[str]) -> list[Row]:
    """Return what differs in the arguments, the data, the versions and so on, except what has a row already."""
    by_group: dict[str, list[Row]] = {}
    for name in _names_in(recorded):
        group, _, rest = name.partition(".") if "." in name else (_SESSION, "", name)
        row = _row(group, rest, [each.get(name, NOT_RECORDED) for each in recorded], _code_in_short)
        if row.differs and not (group == "arguments" and rest in known):
            by_group.setdefault(group, []).append(row)
    return [row for rows in by_group.values() for row in rows]


def _code_in_short(value: object) -> str:
    """Return a recorded value as a text: of a function whose name says nothing, a part of the hash of its code.

    >>> _code_in_short("cpython-311:b4b1cd22a0ecd8d6"), _code_in_short("transformers.default_data_collator")
    ('code b4b1cd22', 'transformers.default_data_collator')
    """
    return _CODE.sub(r"code \1", str(value))


def _recorded_of_trial(record: TrialRecord, study: StoredStudy) -> dict[str, object]:
    """Return with what a trial was trained: what its session records, with its own arguments in their place."""
    sessions = study.settings.get("sessions", [])
    session = sessions[record.session] if record.session < len(sessions) else {}
    given = {**session.get("arguments", {}), **record.arguments}
    for each in record.fallbacks:
        given.update(each["arguments"])
    return _flattened({**session, "arguments": given})


def _recorded_of_study(study: StoredStudy) -> dict[str, object]:
    """Return what the sessions of a study record; of a value that has changed, all in their order."""
    found: dict[str, list[object]] = {}
    for session in study.settings.get("sessions", []):
        for name, value in _flattened(session).items():
            values = found.setdefault(name, [])
            if not values or repr(values[-1]) != repr(value):
                values.append(value)
    return {name: each[0] if len(each) == 1 else _THEN.join(map(str, each)) for name, each in found.items()}


def _flattened(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values in mappings of mappings, by their names with dots.

    >>> _flattened({"arguments": {"bf16": True, "fsdp_config": {"min_num_params": 0}}})
    {'arguments.bf16': True, 'arguments.fsdp_config.min_num_params': 0}
    """
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found.update(_flattened(value, f"{prefix}{name}."))
        elif prefix or value != {}:  # a group without values says nothing
            found[f"{prefix}{name}"] = value
    return found


def _best(summary: SearchSummary) -> object:
    found = summary.best()
    if not found:
        return NOT_RECORDED
    if len(summary.study.objectives) > 1:
        return f"{len(found)} on the Pareto front"
    return f"{format_value(found[0].value)} (trial {found[0].number})"


def _range(described: JsonObject | None, recorded: Mapping[str, object], name: str) -> object:
    """Return the range of a parameter in words; of one that is not searched its value, if it is recorded."""
    if described is None:
        fixed = recorded.get(f"arguments.{name}", NOT_RECORDED)
        return NOT_RECORDED if fixed is NOT_RECORDED else f"{fixed}, not searched"
    if "choices" in described:
        return ", ".join(map(str, described["choices"]))
    return f"{described['low']} to {described['high']}{', log' if described.get('log') else ''}"


def _names_in(pair: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for each in pair for name in each))


def _row(group: str, name: str, values: Sequence[object], text: Callable[[Any], str] = format_value) -> Row:
    first, second = values
    texts = ["-" if each is NOT_RECORDED else text(each) for each in values]
    if text in (format_value, _code_in_short) and texts[0] == texts[1] and repr(first) != repr(second):
        texts = [repr(each) for each in values]  # they differ in digits, or types, that are not shown
    return Row(group, name, (first, second), (printable(texts[0]), printable(texts[1])))
