"""The plots of a study, as figures of Plotly: mappings of `data` and `layout`, with what they show in words."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.interpolate import griddata

from ..search.best_run import SearchSummary
from ..search.objective import MINIMIZE
from ..search.study import flat
from ..search.trial import TrialRecord, TrialState
from .tables import format_value

COLORS = {
    "best": "#047857",
    TrialState.COMPLETE.value: "#2563eb",
    TrialState.STOPPED.value: "#b45309",
    TrialState.PRUNED.value: "#9ca3af",
    TrialState.PAUSED.value: "#7c3aed",
    TrialState.RUNNING.value: "#0891b2",
    TrialState.FAILED.value: "#dc2626",
    TrialState.INTERRUPTED.value: "#a16207",
    TrialState.REFUSED.value: "#dc2626",
}
_MOST_SLICES, _GRID = 6, 40


@dataclass(frozen=True)
class Plot:
    """A plot of the report.

    Attributes:
        name: names its place in the page.
        title: what it shows, in a few words.
        told: what can be seen in it, in a sentence or two, for those who do not see it.
        data, layout: of Plotly.
        height: in pixels.
    """

    name: str
    title: str
    told: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 360


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
        _importances(importances, summary),
        _slices(summary, names[:_MOST_SLICES]),
        _contour(summary, names),
        _parallel(summary, names),
        _timeline(summary),
    ]
    return [each for each in found if each is not None]


def reached(record: TrialRecord) -> float | None:
    """Return what stands for a trial in plots: its value, or what it came to; None if there is none that is finite."""
    value = record.value if record.state.has_result else record.reports[-1].value if record.reports else None
    return value if value is not None and math.isfinite(value) else None


def _with_value(summary: SearchSummary) -> list[tuple[TrialRecord, float]]:
    pairs = ((each, reached(each)) for each in summary.records)
    return [(record, value) for record, value in pairs if value is not None]


def _told(record: TrialRecord) -> str:
    """Return what a pointer at a trial shows."""
    parameters = "<br>".join(f"{_safe(name)}={_safe(format_value(value))}" for name, value in record.params.items())
    return f"trial {record.number}, {record.state.value}<br>{parameters}"


def _safe(text: str) -> str:
    return text[:80].replace("&", "&amp;").replace("<", "&lt;")


def _by_state(pairs: Sequence[tuple[TrialRecord, float]]) -> dict[str, list[tuple[TrialRecord, float]]]:
    found: dict[str, list[tuple[TrialRecord, float]]] = {}
    for record, value in pairs:
        found.setdefault(record.state.value, []).append((record, value))
    return found


def _points(state: str, x: list[Any], y: list[Any], texts: list[str], **more: Any) -> dict[str, Any]:
    symbol = "circle" if state in (TrialState.COMPLETE.value, TrialState.STOPPED.value) else "circle-open"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": state,
        "x": x,
        "y": y,
        "text": texts,
        "hovertemplate": "%{y:.4g}<br>%{text}<extra></extra>",
        "marker": {"color": COLORS[state], "size": 8, "symbol": symbol},
        **more,
    }


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def _history(summary: SearchSummary) -> Plot | None:
    pairs = _with_value(summary)
    if not pairs:
        return None
    objective = summary.objective
    data = [
        _points(
            state, [each.number for each, _ in some], [value for _, value in some], [_told(each) for each, _ in some]
        )
        for state, some in _by_state(pairs).items()
    ]
    x, y = _best_so_far(summary)
    if x:
        line = {"color": COLORS["best"], "width": 2, "shape": "hv"}
        data.append({"type": "scatter", "mode": "lines", "name": "best so far", "x": x, "y": y, "line": line})
    told = f"{objective.name} of each trial, by number; open circles had not trained to their end. "
    if x:
        told += f"The best is {format_value(y[-1])}, since trial {x[-2]}."
    layout = {"xaxis": _axis("trial"), "yaxis": _axis(objective.name)}
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
            _points(
                TrialState.PRUNED.value,
                [each.resource for each in ends],
                [each.value for each in ends],
                [_told(each) for each in pruned],
                name="pruned here",
                marker=marker,
            )
        )
    early = len(pruned)
    told = (
        f"{summary.objective.name} of {len(shown)} trials as they trained; {early} of them ended early, at the crosses."
    )
    by_samples = any(each.reports[-1].resource > 4 * max(each.reports[-1].epoch, 1.0) for each in shown)
    layout = {"xaxis": _axis("samples" if by_samples else "epochs"), "yaxis": _axis(summary.objective.name)}
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


def _importances(importances: Mapping[str, float], summary: SearchSummary) -> Plot | None:
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
    layout = {"xaxis": _axis("share", tickformat=".0%", rangemode="tozero"), "yaxis": {"automargin": True}}
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


def _slices(summary: SearchSummary, names: Sequence[str]) -> Plot | None:
    pairs = _with_value(summary)
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
        for state, some in _by_state(having).items():
            x = [str(each.params[name]) if kind == "category" else each.params[name] for each, _ in some]
            texts = [_told(each) for each, _ in some]
            more = {"xaxis": f"x{at}", "yaxis": f"y{at}", "legendgroup": state, "showlegend": place == 1}
            data.append(_points(state, x, [value for _, value in some], texts, **more))
        layout[f"xaxis{at}"] = _axis(name, type=kind, **_in_order([each.params[name] for each, _ in having], kind))
        layout[f"yaxis{at}"] = _axis(summary.objective.name if place % 3 == 1 else "")
    told = f"{summary.objective.name} by the value of {', '.join(names)}; open circles had not trained to their end."
    return Plot("slices", "One parameter at a time", told, data, layout, 60 + 280 * ((len(names) + 2) // 3))


def _in_order(values: Sequence[Any], kind: str) -> dict[str, Any]:
    """Return the order of the choices on an axis: by size, or by the alphabet."""
    if kind != "category":
        return {}
    by_text = {str(each): each for each in values}
    ordered = sorted(by_text, key=lambda text: (0, by_text[text], "") if _is_numeric([by_text[text]]) else (1, 0, text))
    return {"categoryorder": "array", "categoryarray": ordered}


def _contour(summary: SearchSummary, names: Sequence[str]) -> Plot | None:
    """Return the plot of the two most important numbers."""
    pairs = _with_value(summary)
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
    points = _points("complete", columns[0], columns[1], [_told(each) for each, _ in having], name="trials")
    points["marker"] = {"color": "white", "size": 6, "line": {"color": "#111827", "width": 1}}
    points |= {"showlegend": False, "customdata": [format_value(value) for _, value in having]}
    points["hovertemplate"] = "%{customdata}<br>%{text}<extra></extra>"
    layout = {name: _axis(of, type=kind) for name, of, kind in zip(("xaxis", "yaxis"), numeric, kinds, strict=True)}
    told = f"{summary.objective.name} by {numeric[0]} and {numeric[1]}, between the trials, which are the points."
    return Plot("contour", "Two parameters together", told, [surface, points], layout, 440)


def _varies(values: Sequence[Any]) -> bool:
    known = [each for each in values if each is not None]
    return bool(known) and _is_numeric(known) and min(known) < max(known)


def _short(values: Any) -> list[float]:
    return [float(f"{each:.6g}") for each in values]


def _parallel(summary: SearchSummary, names: Sequence[str]) -> Plot | None:
    pairs = _with_value(summary)
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
        points = _points(
            "complete",
            [each.values[0] for each in some],
            [each.values[1] for each in some],
            [_told(each) for each in some],
        )
        color = COLORS["best"] if is_front else COLORS["pruned"]
        points |= {"name": name, "mode": "lines+markers" if is_front else "markers"}
        points |= {"marker": {"color": color, "size": 9}, "line": {"color": color, "dash": "dot", "width": 1}}
        points["hovertemplate"] = "%{x:.4g}, %{y:.4g}<br>%{text}<extra></extra>"
        data.append(points)
    told = (
        f"{len(best)} of {len(with_result)} trials are on the Pareto front: no other one is better in every objective."
    )
    layout = {
        name: _axis(f"{each.name} ({each.direction})")
        for name, each in zip(("xaxis", "yaxis"), objectives, strict=True)
    }
    return Plot("front", "Pareto front", told, data, layout, 420)


def _timeline(summary: SearchSummary) -> Plot | None:
    unsorted = ((begin, end, each) for each in summary.records for begin, end in each.spans)
    spans = sorted(unsorted, key=lambda span: (span[0], span[2].number))
    if not spans:
        return None
    first = spans[0][0]
    lanes = _lanes([(begin, end) for begin, end, _ in spans])
    best = {each.number for each in summary.best()}
    groups: dict[str, list[int]] = {}
    for place, (_, _, record) in enumerate(spans):
        groups.setdefault("best" if record.number in best else record.state.value, []).append(place)
    unit, name = _unit(max(end for _, end, _ in spans) - first)
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": state,
            "base": [round((spans[each][0] - first) / unit, 4) for each in places],
            "x": [round((spans[each][1] - spans[each][0]) / unit, 4) for each in places],
            "y": [lanes[each] + 1 for each in places],
            "text": [str(spans[each][2].number) for each in places],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "hovertext": [_told(spans[each][2]) for each in places],
            "hovertemplate": "%{x:.3g} " + name + "<br>%{hovertext}<extra></extra>",
            "marker": {"color": COLORS[state], "line": {"color": "white", "width": 1}},
        }
        for state, places in groups.items()
    ]
    count = max(lanes) + 1
    told = f"What trained when: {len(spans)} stretches of training, at most {count} at once."
    layout = {
        "barmode": "overlay",
        "uniformtext": {"mode": "hide", "minsize": 10},
        "xaxis": _axis(f"{name} since the first trial began"),
        "yaxis": _axis("at once", dtick=1, autorange="reversed"),
    }
    return Plot("timeline", "What trained when", told, data, layout, 170 + 40 * min(count, 16))


def _lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return for each span, which are in order of their begin, the first lane that is free then."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes: list[int] = []
    for begin, end in spans:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def _unit(seconds: float) -> tuple[float, str]:
    for unit, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return unit, name
    return 1.0, "seconds"
