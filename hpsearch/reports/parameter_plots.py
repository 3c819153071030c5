"""Plots of the effect of the parameters: their importances, one at a time, two together, all together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from scipy.interpolate import griddata

from ..search.metrics.objective import MINIMIZE
from ..search.result.best_run import SearchSummary
from ..search.result.parameter_importances import Importances
from ..search.study import flat
from ..search.trial_record import TrialRecord
from ..search.wording import format_value
from ..system.json_types import JsonObject
from .best_by_cost import label, resource_unit
from .figure import (
    COLORS,
    Plot,
    ValueAxis,
    best_of,
    by_state,
    figure_of,
    markers,
    value_axis,
    with_value,
)

_MOST_SLICES, _GRID = 6, 40


def importance_plot(importances: Mapping[str, float], summary: SearchSummary) -> Plot | None:
    """Return the plot of the importances; None if there are none."""
    if not importances:
        return None
    names, shares = list(importances)[::-1], [round(each, 4) for each in importances.values()][::-1]
    shown = ", ".join(f"{name} {share:.0%}" for name, share in list(importances.items())[:3])
    description = f"Fraction of the variation of {label(summary)} that each parameter explains: {shown}."
    if isinstance(importances, Importances):
        description += f" It rests on {importances.basis(resource_unit(summary))}."
    bar = go.Bar(
        orientation="h",
        x=shares,
        y=names,
        marker={"color": COLORS["complete"]},
        text=[f"{each:.0%}" for each in shares],
        hoverinfo="none",
        cliponaxis=False,
    )
    figure = figure_of([bar], xaxis={"title": "share", "tickformat": ".0%", "rangemode": "tozero"})
    return Plot("importances", "Which parameters matter", description, figure, 120 + 34 * len(names))


def _is_numeric(values: Sequence[object]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def parameters_of(summary: SearchSummary) -> dict[str, JsonObject]:
    """Return the descriptions of all parameters of the space, by name; empty if the space is a function."""
    return flat(summary.study.described_space())


def _scale(summary: SearchSummary, name: str, values: Sequence[Any]) -> str:
    """Return the type of a parameter's axis: by its range, or, if that is unknown, by the span of its values."""
    if not _is_numeric(values):
        return "category"
    known = parameters_of(summary).get(name)
    if known is not None:
        return "category" if "choices" in known else "log" if known.get("log") else "linear"
    return "log" if min(values) > 0 and max(values) / min(values) >= 50 else "linear"


def slice_plot(summary: SearchSummary, names: Sequence[str]) -> Plot | None:
    """Return the plots of the value by each of the first parameters; None if there are none."""
    names = names[:_MOST_SLICES]
    pairs = with_value(summary)
    if len(pairs) < 2 or not names:
        return None
    rows, axis = (len(names) + 2) // 3, value_axis(((each.number, value) for each, value in pairs), best_of(summary))
    figure = figure_of([], grid={"rows": rows, "columns": min(3, len(names)), "pattern": "independent"})
    for place, name in enumerate(names, start=1):
        having = [(each, value) for each, value in pairs if name in each.params]
        if having:
            _add_slice(figure, place, name, having, summary, axis)
    description = (
        f"{label(summary)} by the value of {', '.join(names)}; open circles had not trained to completion."
        f"{axis.description}"
    )
    return Plot("slices", "One parameter at a time", description, figure, 60 + 280 * rows)


def _add_slice(
    figure: go.Figure,
    place: int,
    name: str,
    pairs: Sequence[tuple[TrialRecord, float]],
    summary: SearchSummary,
    axis: ValueAxis,
) -> None:
    values = [each.params[name] for each, _ in pairs]
    kind = _scale(summary, name, values)
    in_legend = {each.name for each in figure.data}
    for state, some in by_state(pairs).items():
        x = [str(each.params[name]) if kind == "category" else each.params[name] for each, _ in some]
        trace = markers(state, x, [value for _, value in some], [each for each, _ in some], legendgroup=state)
        figure.add_trace(trace.update(xaxis=f"x{place}", yaxis=f"y{place}", showlegend=state not in in_legend))
    figure.update_layout({f"xaxis{place}": {"title": name, "type": kind, **_in_order(values, kind)}})
    title = {"title": label(summary)} if place % 3 == 1 else {}
    figure.update_layout({f"yaxis{place}": {**title, **axis.layout}})


def _in_order(values: Sequence[object], kind: str) -> JsonObject:
    """Return the order of the choices on an axis: numbers by value, then others by the alphabet."""
    if kind != "category":
        return {}
    by_text = {str(each): each for each in values}
    ordered = sorted(by_text, key=lambda text: (0, by_text[text], "") if _is_numeric([by_text[text]]) else (1, 0, text))
    return {"categoryorder": "array", "categoryarray": ordered}


def contour_plot(summary: SearchSummary, names: Sequence[str]) -> Plot | None:
    """Return the plot of the two most important numeric parameters; None if there are too few trials with both."""
    pairs = with_value(summary)
    varied = (name for name in names if _varies([each.params.get(name) for each, _ in pairs]))
    numeric = [name for name in varied if "choices" not in parameters_of(summary).get(name, {})][:2]
    having = [(each, value) for each, value in pairs if all(name in each.params for name in numeric)]
    if len(numeric) < 2 or len(having) < 6:
        return None
    columns = [[each.params[name] for each, _ in having] for name in numeric]
    kinds = [_scale(summary, name, column) for name, column in zip(numeric, columns, strict=True)]
    places = [
        np.log10(column) if kind == "log" else np.array(column, float)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    grid = [np.linspace(each.min(), each.max(), _GRID) for each in places]
    spans = [float(np.ptp(each)) for each in places]
    scaled = np.column_stack([each / span for each, span in zip(places, spans, strict=True)])
    mesh = np.meshgrid(*(each / span for each, span in zip(grid, spans, strict=True)))
    values = np.array([value for _, value in having])
    try:
        heights = griddata(scaled, values, tuple(mesh), method="linear")
    except Exception:  # all of them on a line
        return None
    axes = [10**each if kind == "log" else each for each, kind in zip(grid, kinds, strict=True)]
    surface = go.Contour(
        x=axes[0],
        y=axes[1],
        z=heights,
        colorscale="Viridis",
        reversescale=summary.objective.direction == MINIMIZE,
        contours={"coloring": "heatmap"},
        line={"width": 0.5},
        colorbar={"title": {"text": label(summary), "side": "right"}, "thickness": 12},
        hoverinfo="skip",
    )
    trials = markers(
        "complete",
        columns[0],
        columns[1],
        [each for each, _ in having],
        name="trials",
        marker={"color": "#ffffff", "size": 6, "line": {"color": "#111827", "width": 1}},
        showlegend=False,
        text=[format_value(value) for _, value in having],
        hovertemplate="%{text}<br>%{hovertext}<extra></extra>",
    )
    figure = figure_of(
        [surface, trials],
        xaxis={"title": numeric[0], "type": kinds[0]},
        yaxis={"title": numeric[1], "type": kinds[1]},
    )
    description = f"{label(summary)} by {numeric[0]} and {numeric[1]}, interpolated between the trials (points)."
    return Plot("contour", "Two parameters together", description, figure, 440)


def _varies(values: Sequence[Any]) -> bool:
    known = [each for each in values if each is not None]
    return bool(known) and _is_numeric(known) and min(known) < max(known)


def parallel_plot(summary: SearchSummary, names: Sequence[str]) -> Plot | None:
    """Return the plot of a line for each trial through all parameters; None if there is too little to show."""
    pairs = with_value(summary)
    complete = [name for name in names if all(name in each.params for each, _ in pairs)][:7]
    if len(pairs) < 2 or not complete:
        return None
    values = [value for _, value in pairs]
    dimensions = [_dimension(name, [each.params[name] for each, _ in pairs], summary) for name in complete]
    lines = go.Parcoords(
        dimensions=[*dimensions, {"label": label(summary), "values": values}],
        labelangle=-12,
        line={
            "color": values,
            "colorscale": "Viridis",
            "reversescale": summary.objective.direction == MINIMIZE,
            "showscale": True,
            "colorbar": {"thickness": 12},
        },
    )
    description = (
        f"Each line is a trial: its parameters, and on the right its {label(summary)}. Drag along an axis "
        "to see only the lines that pass through the selection."
    )
    figure = figure_of([lines], margin={"l": 80, "r": 60, "t": 70, "b": 30})
    return Plot("parallel", "All parameters together", description, figure, 440)


def _dimension(name: str, values: list[Any], summary: SearchSummary) -> JsonObject:
    kind = _scale(summary, name, values)
    if kind == "category":
        choices = _in_order(values, kind)["categoryarray"]
        at = [choices.index(str(each)) for each in values]
        return {
            "label": name,
            "values": at,
            "tickvals": list(range(len(choices))),
            "ticktext": [_cut(each) for each in choices],
        }
    if kind == "log":
        logs = [math.log10(each) for each in values]
        decades = range(math.floor(min(logs)) + 1, math.ceil(max(logs)))
        ticks = [
            min(logs),
            *(each for each in decades if min(abs(each - min(logs)), abs(each - max(logs))) > 0.1),
            max(logs),
        ]
        shown = [format_value(float(10**each)) for each in ticks]
        return {"label": name, "values": logs, "tickvals": ticks, "ticktext": shown}
    return {"label": name, "values": values}


def _cut(text: str) -> str:
    return text if len(text) <= 16 else f"{text[:15]}…"
