"""The plots of a study, in the order of its report: its trials over time, and what their parameters do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..search.best_run import SearchSummary
from ..search.trial import TrialRecord, TrialState
from .figure import COLORS, Plot, axis_titled, by_state, hover_text, points, with_value
from .parameter_plots import contour_plot, importance_plot, parallel_plot, slice_plot
from .places import lines_of
from .tables import format_value


def plots(summary: SearchSummary, importances: Mapping[str, float]) -> list[Plot]:
    """Return the plots that there is something to show in, in the order of the page.

    Args:
        summary: of the study.
        importances: of the parameters, largest first.
    """
    several = len(summary.study.objectives) > 1
    names = list(importances) or list(dict.fromkeys(name for each in summary.records for name in each.params))
    found = [
        _front(summary) if several else None,
        _history(summary),
        _curves(summary),
        importance_plot(importances, summary),
        slice_plot(summary, names),
        contour_plot(summary, names),
        parallel_plot(summary, names),
        _timeline(summary),
    ]
    return [each for each in found if each is not None]


def _front(summary: SearchSummary) -> Plot | None:
    objectives = summary.study.objectives[:2]
    with_result = [each for each in summary.records if each.state.has_result and len(each.values) > 1]
    if not with_result:
        return None
    best = {each.number for each in summary.best()}
    data = []
    for name, some in (
        ("not on the front", [each for each in with_result if each.number not in best]),
        (
            "Pareto front",
            sorted((each for each in with_result if each.number in best), key=lambda each: each.values[0]),
        ),
    ):
        is_front = name == "Pareto front"
        marks = points(
            "complete",
            [each.values[0] for each in some],
            [each.values[1] for each in some],
            [hover_text(each) for each in some],
        )
        color = COLORS["best"] if is_front else COLORS["pruned"]
        marks |= {"name": name, "mode": "lines+markers" if is_front else "markers"}
        marks |= {"marker": {"color": color, "size": 9}, "line": {"color": color, "dash": "dot", "width": 1}}
        marks["hovertemplate"] = "%{x:.4g}, %{y:.4g}<br>%{text}<extra></extra>"
        data.append(marks)
    told = (
        f"{len(best)} of {len(with_result)} trials are on the Pareto front: no other one is better in every objective."
    )
    layout = {
        name: axis_titled(f"{each.name} ({each.direction})")
        for name, each in zip(("xaxis", "yaxis"), objectives, strict=True)
    }
    return Plot("front", "Pareto front", told, data, layout, 420)


def _history(summary: SearchSummary) -> Plot | None:
    pairs = with_value(summary)
    if not pairs:
        return None
    objective = summary.objective
    data = [
        points(
            state,
            [each.number for each, _ in some],
            [value for _, value in some],
            [hover_text(each) for each, _ in some],
        )
        for state, some in by_state(pairs).items()
    ]
    x, y = _best_so_far(summary)
    if x:
        line = {"color": COLORS["best"], "width": 2, "shape": "hv"}
        data.append({"type": "scatter", "mode": "lines", "name": "best so far", "x": x, "y": y, "line": line})
    told = f"{objective.name} of each trial, by number; open circles had not trained to their end. "
    if x:
        told += f"The best is {format_value(y[-1])}, since trial {x[-2]}."
    layout = {"xaxis": axis_titled("trial"), "yaxis": axis_titled(objective.name)}
    return Plot("history", "History", told, data, layout)


def _best_so_far(summary: SearchSummary) -> tuple[list[int], list[float]]:
    x: list[int] = []
    y: list[float] = []
    for record in summary.records:
        if record.is_eligible and (not y or summary.objective.is_better(record.values[0], y[-1])):
            x.append(record.number)
            y.append(record.values[0])
    if x:
        x.append(summary.records[-1].number)
        y.append(y[-1])
    return x, y


def _curves(summary: SearchSummary) -> Plot | None:
    shown = [each for each in summary.records if sum(math.isfinite(one.value) for one in each.reports) > 0]
    if not any(len(each.reports) > 1 for each in shown):
        return None
    best = {each.number for each in summary.best()}
    groups: dict[str, list[TrialRecord]] = {}
    for record in shown:
        groups.setdefault("best" if record.number in best else record.state.value, []).append(record)
    data = [_lines(name, groups[name]) for name in sorted(groups, key=lambda name: name == "best")]
    pruned = [each for each in shown if each.state is TrialState.PRUNED]
    if pruned:
        ends = [each.reports[-1] for each in pruned]
        marker = {"color": "#6b7280", "size": 7, "symbol": "x-thin", "line": {"width": 1.5, "color": "#6b7280"}}
        data.append(
            points(
                TrialState.PRUNED.value,
                [each.resource for each in ends],
                [each.value for each in ends],
                [hover_text(each) for each in pruned],
                name="pruned here",
                marker=marker,
            )
        )
    early = len(pruned)
    told = (
        f"{summary.objective.name} of {len(shown)} trials as they trained; {early} of them ended early, at the crosses."
    )
    by_samples = any(each.reports[-1].resource > 4 * max(each.reports[-1].epoch, 1.0) for each in shown)
    layout = {"xaxis": axis_titled("samples" if by_samples else "epochs"), "yaxis": axis_titled(summary.objective.name)}
    return Plot("curves", "Learning curves", told, data, layout, 420)


def _lines(name: str, records: Sequence[TrialRecord]) -> dict[str, Any]:
    """Return curves as one line with gaps: hundreds of lines would take their time to draw."""
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[str] = []
    for record in records:
        told = f"trial {record.number}, {record.state.value}"
        for report in record.reports:
            x.append(report.resource)
            y.append(report.value if math.isfinite(report.value) else None)
            texts.append(told)
        x.append(None)
        y.append(None)
        texts.append("")
    is_best = name == "best"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": x,
        "y": y,
        "text": texts,
        "hovertemplate": "%{y:.4g} after %{x:.4g}<br>%{text}<extra></extra>",
        "line": {"color": COLORS[name], "width": 3 if is_best else 1},
        "marker": {"size": 5 if is_best else 3},
        "opacity": 1.0 if is_best else 0.6,
    }


def _timeline(summary: SearchSummary) -> Plot | None:
    unsorted = ((span, each) for each in summary.records for span in each.spans)
    trained = sorted(unsorted, key=lambda pair: (pair[0], pair[1].number))
    if not trained:
        return None
    spans = [span for span, _ in trained]
    first = spans[0].begin
    lines = lines_of(spans)
    best = {each.number for each in summary.best()}
    groups: dict[str, list[int]] = {}
    for place, (_, record) in enumerate(trained):
        groups.setdefault("best" if record.number in best else record.state.value, []).append(place)
    unit, name = _unit(max(each.end for each in spans) - first)
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": state,
            "base": [round((spans[each].begin - first) / unit, 4) for each in places],
            "x": [round((spans[each].end - spans[each].begin) / unit, 4) for each in places],
            "y": [lines[each] + 1 for each in places],
            "text": [str(trained[each][1].number) for each in places],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "hovertext": [hover_text(trained[each][1], spans[each].where) for each in places],
            "hovertemplate": "%{x:.3g} " + name + "<br>%{hovertext}<extra></extra>",
            "marker": {"color": COLORS[state], "line": {"color": "white", "width": 1}},
        }
        for state, places in groups.items()
    ]
    count = max(lines) + 1
    told = f"Stretches of training: {len(spans)}. A line is a worker, or one of several trials at once in one place."
    layout = {
        "barmode": "overlay",
        "uniformtext": {"mode": "hide", "minsize": 10},
        "xaxis": axis_titled(f"{name} since the first trial began"),
        "yaxis": axis_titled("line", dtick=1, autorange="reversed"),
    }
    return Plot("timeline", "What trained when", told, data, layout, 170 + 40 * min(count, 16))


def _unit(seconds: float) -> tuple[float, str]:
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return unit, name
    return 1.0, "seconds"
