"""The parts that the plots of the report share: the template, the colors, and the markers of trials."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from ..search.result.best_run import SearchSummary
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
_AXIS = {
    "gridcolor": "#e5e7eb",
    "zeroline": False,
    "showline": True,
    "linecolor": "#9ca3af",
    "automargin": True,
    "exponentformat": "e",
}
_TEMPLATE = go.layout.Template(
    layout={
        "font": {"size": 13, "color": "#111827"},
        "margin": {"l": 64, "r": 16, "t": 16, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hoverlabel": {"align": "left"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


@dataclass(frozen=True)
class Plot:
    """A plot of the report.

    Attributes:
        name: identifies the plot in the page.
        title: a few words above it.
        description: one or two sentences for readers who cannot see the plot.
        figure: of Plotly.
        height: in pixels.
    """

    name: str
    title: str
    description: str
    figure: go.Figure
    height: int = 360


def figure_of(traces: Sequence[object], **layout: object) -> go.Figure:
    """Return a figure in the style of the report; `layout` as for `plotly.graph_objects.Layout`."""
    return go.Figure(traces, {"template": _TEMPLATE}).update_layout(**layout)


def reached(record: TrialRecord) -> float | None:
    """Return the value of a trial, or its last report if it has none; None if that is not finite."""
    value = record.value if record.state.has_result else record.reports[-1].value if record.reports else None
    return value if value is not None and math.isfinite(value) else None


def with_value(summary: SearchSummary) -> list[tuple[TrialRecord, float]]:
    """Return the trials that have `reached` a value, each with the value."""
    pairs = ((each, reached(each)) for each in summary.records)
    return [(record, value) for record, value in pairs if value is not None]


def hover_text(record: TrialRecord, where: str = "") -> str:
    """Return the text that Plotly shows at a trial, in its subset of HTML.

    Args:
        record: of the trial.
        where: the place where it was trained; empty if that is not to be shown.
    """
    parameters = "<br>".join(f"{_escaped(name)}={_escaped(format_value(each))}" for name, each in record.params.items())
    place = f"<br>{_escaped(where)}" if where else ""
    return f"trial {record.number}, {record.state.value}{place}<br>{parameters}"


def _escaped(text: str) -> str:
    return html.escape(text[:80], quote=False)


def by_state(pairs: Sequence[tuple[TrialRecord, float]]) -> dict[str, list[tuple[TrialRecord, float]]]:
    """Group trials by state."""
    found: dict[str, list[tuple[TrialRecord, float]]] = {}
    for record, value in pairs:
        found.setdefault(record.state.value, []).append((record, value))
    return found


def markers(
    state: str, x: Sequence[object], y: Sequence[object], records: Sequence[TrialRecord], **changes: object
) -> go.Scatter:
    """Return the markers of trials of one state: filled if trials of the state have a result, else open.

    `changes` are applied to the trace, as by its `update`.
    """
    is_filled = state in (TrialState.COMPLETE.value, TrialState.STOPPED.value)
    return go.Scatter(
        mode="markers",
        name=state,
        x=x,
        y=y,
        text=[hover_text(each) for each in records],
        hovertemplate="%{y:.4g}<br>%{text}<extra></extra>",
        marker={"color": COLORS[state], "size": 8, "symbol": "circle" if is_filled else "circle-open"},
    ).update(**changes)
