"""Plots of what the parameters do: how much each matters, one at a time, two together, all together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.interpolate import griddata

from ..search.best_run import SearchSummary
from ..search.objective import MINIMIZE
from ..search.study import flat
from .figure import COLORS, Plot, axis_titled, by_state, hover_text, points, with_value
from .tables import format_value

_MOST_SLICES, _GRID = 6, 40


def importance_plot(importances: Mapping[str, float], summary: SearchSummary) -> Plot | None:
    """Return the plot of how much each parameter matters; None if that is not known."""
    if not importances:
        return None
    names, shares = list(importances)[::-1], [round(each, 4) for each in importances.values()][::-1]
    shown = ", ".join(f"{name} {share:.0%}" for name, share in list(importances.items())[:3])
    told = f"Share of the variation of {summary.objective.name} that each parameter explains: {shown}."
    bar: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": shares,
        "y": names,
        "marker": {"color": COLORS["complete"]},
    }
    bar |= {"text": [f"{each:.0%}" for each in shares], "hoverinfo": "none", "cliponaxis": False}
    layout = {"xaxis": axis_titled("share", tickformat=".0%", rangemode="tozero"), "yaxis": {"automargin": True}}
    return Plot("importances", "Which parameters matter", told, [bar], layout, 120 + 34 * len(names))


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def parameters_of(summary: SearchSummary) -> dict[str, Mapping[str, Any]]:
    """Return every parameter of the space as it is described, by name; none of a function."""
    return flat(summary.study.described_space())


def _scale(summary: SearchSummary, name: str, values: Sequence[Any]) -> str:
    """Return the kind of axis that a parameter has: that of its range, or of its values if they span decades."""
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
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "grid": {"rows": (len(names) + 2) // 3, "columns": min(3, len(names)), "pattern": "independent"}
    }
    for place, name in enumerate(names, start=1):
        at = "" if place == 1 else str(place)
        having = [(each, value) for each, value in pairs if name in each.params]
        if not having:
            continue
        kind = _scale(summary, name, [each.params[name] for each, _ in having])
        for state, some in by_state(having).items():
            x = [str(each.params[name]) if kind == "category" else each.params[name] for each, _ in some]
            texts = [hover_text(each) for each, _ in some]
            more = {"xaxis": f"x{at}", "yaxis": f"y{at}", "legendgroup": state, "showlegend": place == 1}
            data.append(points(state, x, [value for _, value in some], texts, **more))
        layout[f"xaxis{at}"] = axis_titled(
            name, type=kind, **_in_order([each.params[name] for each, _ in having], kind)
        )
        layout[f"yaxis{at}"] = axis_titled(summary.objective.name if place % 3 == 1 else "")
    told = f"{summary.objective.name} by the value of {', '.join(names)}; open circles had not trained to their end."
    return Plot("slices", "One parameter at a time", told, data, layout, 60 + 280 * ((len(names) + 2) // 3))


def _in_order(values: Sequence[Any], kind: str) -> dict[str, Any]:
    """Return the order of the choices on an axis: by size, or by the alphabet."""
    if kind != "category":
        return {}
    by_text = {str(each): each for each in values}
    ordered = sorted(by_text, key=lambda text: (0, by_text[text], "") if _is_numeric([by_text[text]]) else (1, 0, text))
    return {"categoryorder": "array", "categoryarray": ordered}


def contour_plot(summary: SearchSummary, names: Sequence[str]) -> Plot | None:
    """Return the plot of the two most important numbers."""
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
    surface = {
        "type": "contour",
        "x": _short(axes[0]),
        "y": _short(axes[1]),
        "z": [[None if math.isnan(one) else float(f"{one:.5g}") for one in row] for row in heights],
        "colorscale": "Viridis",
        "reversescale": summary.objective.direction == MINIMIZE,
        "contours": {"coloring": "heatmap"},
        "line": {"width": 0.5},
        "colorbar": {"title": {"text": summary.objective.name, "side": "right"}, "thickness": 12},
        "hoverinfo": "skip",
    }
    marks = points("complete", columns[0], columns[1], [hover_text(each) for each, _ in having], name="trials")
    marks["marker"] = {"color": "white", "size": 6, "line": {"color": "#111827", "width": 1}}
    marks |= {"showlegend": False, "customdata": [format_value(value) for _, value in having]}
    marks["hovertemplate"] = "%{customdata}<br>%{text}<extra></extra>"
    layout = {
        name: axis_titled(of, type=kind) for name, of, kind in zip(("xaxis", "yaxis"), numeric, kinds, strict=True)
    }
    told = f"{summary.objective.name} by {numeric[0]} and {numeric[1]}, between the trials, which are the points."
    return Plot("contour", "Two parameters together", told, [surface, marks], layout, 440)


def _varies(values: Sequence[Any]) -> bool:
    known = [each for each in values if each is not None]
    return bool(known) and _is_numeric(known) and min(known) < max(known)


def _short(values: Any) -> list[float]:
    return [float(f"{each:.6g}") for each in values]


def parallel_plot(summary: SearchSummary, names: Sequence[str]) -> Plot | None:
    """Return the plot of a line for each trial through all parameters; None if there is too little to show."""
    pairs = with_value(summary)
    complete = [name for name in names if all(name in each.params for each, _ in pairs)][:7]
    if len(pairs) < 2 or not complete:
        return None
    dimensions = [_dimension(name, [each.params[name] for each, _ in pairs], summary) for name in complete]
    values = [value for _, value in pairs]
    best_first = summary.objective.direction == MINIMIZE
    dimensions.append({"label": summary.objective.name, "values": values})
    line = {"color": values, "colorscale": "Viridis", "reversescale": best_first, "showscale": True}
    line |= {"colorbar": {"thickness": 12}}
    told = (
        f"Each line is a trial: its parameters, and at the right its {summary.objective.name}. Drag along an axis to "
        "see only the lines that go through there."
    )
    figure = {"type": "parcoords", "dimensions": dimensions, "line": line, "labelangle": -12}
    return Plot(
        "parallel", "All parameters together", told, [figure], {"margin": {"l": 80, "r": 60, "t": 70, "b": 30}}, 440
    )


def _dimension(name: str, values: list[Any], summary: SearchSummary) -> dict[str, Any]:
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
