"""The plots of a study, in the order of the report: its trials over time, and the effect of the parameters.

They are made from the records of the trials alone: a report needs no storage, and shows trials in every state, also of
searches on Ray. `optuna.visualization` needs a study of Optuna, and leaves out all trials that are not complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from ..search.result.best_run import SearchSummary
from ..search.trial import TrialRecord, TrialState
from .figure import COLORS, Plot, by_state, figure_of, hover_text, markers, with_value
from .machines_used import lines_of
from .parameter_plots import contour_plot, importance_plot, parallel_plot, slice_plot
from .tables import format_value


def plots(summary: SearchSummary, importances: Mapping[str, float]) -> list[Plot]:
    """Return the plots that have something to show, in the order of the page.

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
    first, second = summary.study.objectives[:2]
    with_result = [each for each in summary.records if each.state.has_result and len(each.values) > 1]
    if not with_result:
        return None
    best = {each.number for each in summary.best()}
    front = sorted((each for each in with_result if each.number in best), key=lambda each: each.values[0])
    behind = [each for each in with_result if each.number not in best]
    traces = [
        markers(
            TrialState.COMPLETE.value,
            [each.values[0] for each in some],
            [each.values[1] for each in some],
            some,
            name=name,
            mode=mode,
            marker={"color": color, "size": 9},
            line={"color": color, "dash": "dot", "width": 1},
            hovertemplate="%{x:.4g}, %{y:.4g}<br>%{text}<extra></extra>",
        )
        for name, mode, color, some in (
            ("not on the front", "markers", COLORS["pruned"], behind),
            ("Pareto front", "lines+markers", COLORS["best"], front),
        )
    ]
    description = (
        f"{len(best)} of {len(with_result)} trials are on the Pareto front: no other trial is better in every "
        "objective."
    )
    figure = figure_of(
        traces,
        xaxis_title=f"{first.name} ({first.direction})",
        yaxis_title=f"{second.name} ({second.direction})",
    )
    return Plot("front", "Pareto front", description, figure, 420)


def _history(summary: SearchSummary) -> Plot | None:
    pairs = with_value(summary)
    if not pairs:
        return None
    objective = summary.objective
    traces = [
        markers(state, [each.number for each, _ in some], [value for _, value in some], [each for each, _ in some])
        for state, some in by_state(pairs).items()
    ]
    description = f"{objective.name} of each trial, by number; open circles had not trained to completion. "
    x, y = _best_so_far(summary)
    if x:
        line = {"color": COLORS["best"], "width": 2, "shape": "hv"}
        traces.append(go.Scatter(mode="lines", name="best so far", x=x, y=y, line=line))
        description += f"The best is {format_value(y[-1])}, since trial {x[-2]}."
    figure = figure_of(traces, xaxis_title="trial", yaxis_title=objective.name)
    return Plot("history", "History", description, figure)


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
    traces = [_lines(name, groups[name]) for name in sorted(groups, key=lambda name: name == "best")]
    pruned = [each for each in shown if each.state is TrialState.PRUNED]
    if pruned:
        ends = [each.reports[-1] for each in pruned]
        marker = {"color": "#6b7280", "size": 7, "symbol": "x-thin", "line": {"width": 1.5, "color": "#6b7280"}}
        x, y = [each.resource for each in ends], [each.value for each in ends]
        traces.append(markers(TrialState.PRUNED.value, x, y, pruned, name="pruned here", marker=marker))
    description = (
        f"{summary.objective.name} of {len(shown)} trials during training; {len(pruned)} of them ended early, at "
        "the crosses."
    )
    by_samples = any(each.reports[-1].resource > 4 * max(each.reports[-1].epoch, 1.0) for each in shown)
    unit = "sample" if by_samples else summary.study.unit
    figure = figure_of(traces, xaxis_title=f"{unit}s", yaxis_title=summary.objective.name)
    return Plot("curves", "Learning curves", description, figure, 420)


def _lines(name: str, records: Sequence[TrialRecord]) -> go.Scatter:
    """Return the curves of trials as one line with gaps, because hundreds of lines are slow to draw."""
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[str] = []
    for record in records:
        text = f"trial {record.number}, {record.state.value}"
        for report in record.reports:
            x.append(report.resource)
            y.append(report.value if math.isfinite(report.value) else None)
            texts.append(text)
        x.append(None)
        y.append(None)
        texts.append("")
    is_best = name == "best"
    return go.Scatter(
        mode="lines+markers",
        name=name,
        x=x,
        y=y,
        text=texts,
        hovertemplate="%{y:.4g} after %{x:.4g}<br>%{text}<extra></extra>",
        line={"color": COLORS[name], "width": 3 if is_best else 1},
        marker={"size": 5 if is_best else 3},
        opacity=1.0 if is_best else 0.6,
    )


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
    traces = [
        go.Bar(
            orientation="h",
            name=state,
            base=[round((spans[each].begin - first) / unit, 4) for each in places],
            x=[round((spans[each].end - spans[each].begin) / unit, 4) for each in places],
            y=[lines[each] + 1 for each in places],
            text=[str(trained[each][1].number) for each in places],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertext=[hover_text(trained[each][1], spans[each].where) for each in places],
            hovertemplate="%{x:.3g} " + name + "<br>%{hovertext}<extra></extra>",
            marker={"color": COLORS[state], "line": {"color": "white", "width": 1}},
        )
        for state, places in groups.items()
    ]
    figure = figure_of(
        traces,
        barmode="overlay",
        uniformtext={"mode": "hide", "minsize": 10},
        xaxis_title=f"{name} since the first trial began",
        yaxis={"title": "line", "dtick": 1, "autorange": "reversed"},
    )
    description = (
        f"Segments of training: {len(spans)}. A line is a worker, or one of several parallel trials on one device."
    )
    return Plot("timeline", "Timeline of the training", description, figure, 170 + 40 * min(max(lines) + 1, 16))


def _unit(seconds: float) -> tuple[float, str]:
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return unit, name
    return 1.0, "seconds"
