"""The plots of a study, in the order of the report: its trials over time, and the effect of the parameters.

They are made from the records of the trials alone: a report needs no storage, and shows trials in every state, also of
searches on Ray. `optuna.visualization` needs a study of Optuna, and leaves out all trials that are not complete.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from ..search.metrics.replicas import has_replicas
from ..search.result.best_run import SearchSummary
from ..search.result.trial_rows import trial_rows
from ..search.trial_record import TrialRecord, TrialState
from ..search.wording import counted, format_value
from .best_by_cost import best_by_cost, label, resource_unit
from .figure import (
    COLORS,
    Plot,
    ValueAxis,
    best_of,
    by_state,
    escaped,
    figure_of,
    markers,
    value_axis,
    with_value,
)
from .machines_used import lines_of
from .parameter_plots import contour_plot, importance_plot, parallel_plot, slice_plot
from .tables import format_duration


def plots(summary: SearchSummary, importances: Mapping[str, float], defaults: float | None = None) -> list[Plot]:
    """Return the plots that have something to show, in the order of the page.

    Args:
        summary: of the study.
        importances: of the parameters, largest first.
        defaults: the objective with the default parameters; None: unknown.
    """
    several = len(summary.study.objectives) > 1
    names = list(importances) or list(dict.fromkeys(name for each in summary.records for name in each.params))
    found = [
        _front(summary) if several else None,
        _progress(summary, defaults),
        _curves(summary),
        _history(summary),
        importance_plot(importances, summary),
        slice_plot(summary, names),
        contour_plot(summary, names),
        parallel_plot(summary, names),
        _timeline(summary),
    ]
    return [each for each in found if each is not None]


def _front(summary: SearchSummary) -> Plot | None:
    first, second = summary.study.objectives[:2]
    trials = [each.record for each in trial_rows(summary.records)]  # with the means of their runs
    with_result = [each for each in trials if each.state.has_result and len(each.values) > 1]
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
            hovertemplate="%{x:.4g}, %{y:.4g}<br>%{hovertext}<extra></extra>",
        )
        for name, mode, color, some in (
            ("not on the front", "markers", COLORS["pruned"], behind),
            ("Pareto front", "lines+markers", COLORS["best"], front),
        )
    ]
    count = f"{len(best)} of {counted(len(with_result), 'trial')} {'is' if len(best) == 1 else 'are'}"
    description = f"{count} on the Pareto front: no other trial is better in every objective."
    figure = figure_of(
        traces,
        xaxis_title=f"{first.name} ({first.direction})",
        yaxis_title=f"{second.name} ({second.direction})",
    )
    return Plot("front", "Pareto front", description, figure, 420)


def _progress(summary: SearchSummary, defaults: float | None) -> Plot | None:
    found = best_by_cost(summary)
    if not found.steps:
        return None
    unit = summary.study.unit
    axes = [(f"{unit}s of all trials", [each.epochs for each in found.steps], found.epochs)]
    if found.seconds is not None:
        length, name = _unit(found.seconds)
        times = [(each.seconds or 0.0) / length for each in found.steps]
        axes.append((f"{name} of the search", times, found.seconds / length))
    figure = figure_of([], grid={"rows": 1, "columns": len(axes), "pattern": "independent"})
    values, numbers = [each.value for each in found.steps], [each.trial for each in found.steps]
    shown = values if defaults is None else [*values, defaults]
    levels = value_axis(enumerate(shown)) if len(set(shown)) == 1 else ValueAxis()
    for place, (title, x, end) in enumerate(axes, start=1):
        on_axes = {"xaxis": f"x{place}", "yaxis": f"y{place}", "showlegend": place == 1}
        line = {"color": COLORS["best"], "width": 2, "shape": "hv"}
        so_far = go.Scatter(mode="lines", name="best so far", x=[*x, end], y=[*values, values[-1]], line=line)
        figure.add_trace(so_far.update(hoverinfo="skip", legendgroup="best", **on_axes))
        points = go.Scatter(mode="markers", name="better than all before", x=x, y=values, customdata=numbers)
        marker = {"color": COLORS["best"], "size": 8}
        template = "%{y:.4g} after %{x:.4g}<br>%{hovertext}<extra></extra>"
        figure.add_trace(points.update(marker=marker, hovertemplate=template, legendgroup="points", **on_axes))
        if defaults is not None:
            line = {"color": COLORS["stopped"], "width": 2, "dash": "dash"}
            level = go.Scatter(mode="lines", name="default parameters", x=[0, end], y=[defaults] * 2, line=line)
            figure.add_trace(level.update(hoverinfo="skip", legendgroup="defaults", **on_axes))
        head = {"title": label(summary)} if place == 1 else {}
        axis = {"title": title, "rangemode": "tozero"}
        figure.update_layout({f"xaxis{place}": axis, f"yaxis{place}": {**head, **levels.layout}})
    last = found.steps[-1]
    description = (
        f"Best {label(summary)} of the trials that had ended, by the cost until then. The best, "
        f"{format_value(last.value)} of trial {last.trial}, was there after {format_value(last.epochs)} of "
        f"{counted(found.epochs, unit)}"
    )
    if found.seconds is not None and last.seconds is not None:
        description += f" and {format_duration(last.seconds)} of {format_duration(found.seconds)}"
    description += "; time in which no trial was trained is left out." if found.seconds is not None else "."
    if has_replicas(summary.records):
        description += " Here each training run counts alone, also where the result of a trial is the mean of several."
    return Plot("progress", "Best so far", description, figure)


def _history(summary: SearchSummary) -> Plot | None:
    pairs = with_value(summary)
    if not pairs:
        return None
    axis = value_axis([(each.number, value) for each, value in pairs], best_of(summary))
    traces = [
        markers(state, [each.number for each, _ in some], [value for _, value in some], [each for each, _ in some])
        for state, some in by_state(pairs).items()
    ]
    name = label(summary)
    description = f"{name} of each trial, by number; open circles had not trained to completion.{axis.description}"
    figure = figure_of(traces, xaxis_title="trial", yaxis={"title": name, **axis.layout})
    return Plot("history", "All trials by number", description, figure)


def _curves(summary: SearchSummary) -> Plot | None:
    shown = [each for each in summary.records if sum(math.isfinite(one.value) for one in each.reports) > 0]
    if not any(len(each.reports) > 1 for each in shown):
        return None
    best = {each.number for each in summary.best()}
    groups: dict[str, list[TrialRecord]] = {}
    for record in shown:
        groups.setdefault("best" if record.number in best else record.state.value, []).append(record)
    ordered = sorted(groups, key=lambda name: name == "best")
    rungs = _rungs(summary, shown)
    axis = value_axis([(each.number, one.value) for each in shown for one in each.reports], best_of(summary))
    traces = [_lines(name, groups[name]) for name in ordered] + [_ends(name, groups[name]) for name in ordered]
    pruned = sum(each.state is TrialState.PRUNED for each in shown)
    kind = "training run" if has_replicas(shown) else "trial"
    description = (
        f"{label(summary)} of {counted(len(shown), kind)} during training; {pruned} of them ended early, at "
        f"the crosses.{rungs.description}{axis.description}"
    )
    figure = figure_of(
        traces,
        xaxis_title=f"{resource_unit(summary)}s",
        yaxis={"title": label(summary), **axis.layout},
        shapes=[_rung_line(each) for each in rungs.resources],
        annotations=[_rung_label(each, place) for place, each in enumerate(rungs.resources, start=1)],
    )
    return Plot("curves", "Learning curves", description, figure, 420)


class _Rungs(NamedTuple):
    """Where the rungs are in the plot, if that is the same for all trials, and a sentence about them."""

    resources: tuple[float, ...] = ()
    description: str = ""


def _rungs(summary: SearchSummary, shown: Sequence[TrialRecord]) -> _Rungs:
    ladder = getattr(summary.study, "ladder", None)
    if ladder is None:
        return _Rungs()
    promoted = f"{ladder.part} of the trials that pause there is promoted"
    horizons = {report.horizon for each in shown for report in each.reports}
    if len(horizons) != 1 or not all(math.isfinite(each) and each > 0 for each in horizons):
        where = ", ".join(f"{each:.0%}" for each in ladder.fractions)
        return _Rungs((), f" Trials pause at the first evaluation after {where} of their training: {promoted}.")
    resources = tuple(each * next(iter(horizons)) for each in ladder.fractions)
    return _Rungs(resources, f" Dotted lines are the rungs: {promoted}.")


def _rung_line(resource: float) -> dict[str, object]:
    line = {"color": COLORS["pruned"], "width": 1.5, "dash": "dot"}
    return {"type": "line", "x0": resource, "x1": resource, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _rung_label(resource: float, place: int) -> dict[str, object]:
    at = {"x": resource, "yref": "paper", "y": 0, "xanchor": "left", "yanchor": "bottom"}
    return {**at, "text": f"rung {place}", "showarrow": False, "font": {"size": 11}}


def _lines(name: str, records: Sequence[TrialRecord]) -> go.Scatter:
    """Return the curves of trials as one line with gaps, because hundreds of lines are slow to draw."""
    x: list[float | None] = []
    y: list[float | None] = []
    numbers: list[int | None] = []
    for record in records:
        for report in record.reports:
            x.append(report.resource)
            y.append(report.value if math.isfinite(report.value) else None)
            numbers.append(record.number)
        x.append(None)
        y.append(None)
        numbers.append(None)
    is_best = name == "best"
    return go.Scatter(
        mode="lines",
        name=name,
        x=x,
        y=y,
        customdata=numbers,
        legendgroup=name,
        hovertemplate="%{y:.4g} after %{x:.4g}<br>%{hovertext}<extra></extra>",
        line={"color": COLORS[name], "width": 3 if is_best else 1},
        opacity=1.0 if is_best else 0.6,
    )


def _ends(name: str, records: Sequence[TrialRecord]) -> go.Scatter:
    """Return a marker at the last finite report of each trial: a cross if it was pruned."""
    ends = [[report for report in each.reports if math.isfinite(report.value)][-1] for each in records]
    color, is_pruned = COLORS[name], name == TrialState.PRUNED.value
    marker = {"color": color, "size": 7, "symbol": "x-thin", "line": {"width": 1.5, "color": color}}
    x, y = [each.resource for each in ends], [each.value for each in ends]
    return go.Scatter(
        mode="markers",
        name="pruned here" if is_pruned else name,
        x=x,
        y=y,
        customdata=[each.number for each in records],
        legendgroup=name,
        showlegend=is_pruned,
        hovertemplate="%{y:.4g} after %{x:.4g}<br>%{hovertext}<extra></extra>",
        marker=marker if is_pruned else {"color": color, "size": 5},
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
            customdata=[trained[each][1].number for each in places],
            hovertext=[escaped(spans[each].where) for each in places],
            hovertemplate="%{x:.3g} " + name + "<br>%{hovertext}<extra></extra>",
            marker={"color": COLORS[state], "line": {"color": "#ffffff", "width": 1}},
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
