"""The parts that the plots of the report share: the template, the colors, the axis of values, the markers of trials.

A point of a trial has the trial's number as `customdata`, by which the page shows its parameters and its row.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from ..search.result.best_run import SearchSummary
from ..search.trial_record import TrialRecord, TrialState
from ..search.wording import counted, format_value

COLORS = {
    "best": "#047857",
    TrialState.COMPLETE.value: "#2563eb",
    TrialState.STOPPED.value: "#b45309",
    TrialState.PRUNED.value: "#6b7280",
    TrialState.PAUSED.value: "#7c3aed",
    TrialState.RUNNING.value: "#0891b2",
    TrialState.FAILED.value: "#dc2626",
    TrialState.INTERRUPTED.value: "#a16207",
    TrialState.REFUSED.value: "#dc2626",
}
# The colors of the plots on a dark page, by those on a light one.
DARK_COLORS = {
    "#047857": "#34d399",
    "#2563eb": "#60a5fa",
    "#b45309": "#fbbf24",
    "#6b7280": "#9ca3af",
    "#7c3aed": "#a78bfa",
    "#0891b2": "#22d3ee",
    "#dc2626": "#f87171",
    "#a16207": "#facc15",
    "#111827": "#e5e7eb",
    "#e5e7eb": "#334155",
    "#9ca3af": "#64748b",
    "#ffffff": "#1e293b",
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


def best_of(summary: SearchSummary) -> float | None:
    """Return the objective of the best trial, or the first objective of a trial on the Pareto front; None without."""
    best = summary.best()
    return best[0].values[0] if best else None


def escaped(text: str) -> str:
    """Return a text as Plotly shows it, which takes a subset of HTML."""
    return html.escape(text[:80], quote=False)


@dataclass(frozen=True)
class ValueAxis:
    """The axis of an objective, on which outliers do not press all other values together.

    Attributes:
        low, high: the range; both None if no value is an outlier, and Plotly chooses.
        values: the number of values outside.
        trials: the number of trials that they are of.
        extreme: the value that is farthest outside; None without one.
    """

    low: float | None = None
    high: float | None = None
    values: int = 0
    trials: int = 0
    extreme: float | None = None

    @property
    def layout(self) -> dict[str, object]:
        """The attributes of Plotly's axis."""
        return {} if self.low is None else {"range": [self.low, self.high], "autorange": False}

    @property
    def description(self) -> str:
        """A sentence about the values outside, to follow on others; empty without one."""
        if self.extreme is None:
            return ""
        outside = f"{counted(self.values, 'value')} of {counted(self.trials, 'trial')}"
        return f" The axis leaves out {outside}, as far as {format_value(self.extreme)}; a double click shows all."


def value_axis(values: Iterable[tuple[int, float]], best: float | None = None) -> ValueAxis:
    """Return the axis for values of trials: without those that are far outside, if these take up most of the range.

    Equal values are in its middle.

    A value is far outside if it is more than three times the interquartile range beyond a quartile (Tukey, Exploratory
    Data Analysis, 1977).

    Args:
        values: the number of a trial and a value, any number of them.
        best: a value that is shown in any case.

    >>> axis = value_axis([(number, 0.5 + number / 20) for number in range(9)] + [(9, 1e9)])
    >>> round(axis.low, 2), round(axis.high, 2), axis.values
    (0.48, 0.92, 1)
    >>> value_axis([(number, 0.5 + number / 20) for number in range(9)]).layout
    {}
    >>> value_axis([(0, 0.8), (1, 0.8)]).layout["range"]
    [0.76, 0.84...]
    """
    pairs = [(number, value) for number, value in values if math.isfinite(value)]
    if len({value for _, value in pairs}) == 1:  # Plotly's own range is one more and one less
        pad = abs(pairs[0][1]) / 20 or 1.0
        return ValueAxis(pairs[0][1] - pad, pairs[0][1] + pad)
    if len(pairs) < _FEWEST_VALUES:
        return ValueAxis()
    every = np.array([value for _, value in pairs])
    with np.errstate(over="ignore", invalid="ignore"):  # a loss may be near the largest float
        first, third = np.quantile(every, [0.25, 0.75])
        fence = 3 * (third - first)
        inside = every[(every >= first - fence) & (every <= third + fence)]
        low = float(min(inside.min(), math.inf if best is None else best)) if inside.size else math.nan
        high = float(max(inside.max(), -math.inf if best is None else best)) if inside.size else math.nan
        if not low < high or not float(every.max() - every.min()) > _MOST_OF_RANGE * (high - low):
            return ValueAxis()
    outside = [(number, value) for number, value in pairs if not low <= value <= high]
    extreme = max((value for _, value in outside), key=lambda value: max(low - value, value - high))
    pad = (high - low) / 20
    trials = len({number for number, _ in outside})
    return ValueAxis(low - pad, high + pad, len(outside), trials, extreme)


_FEWEST_VALUES, _MOST_OF_RANGE = 8, 3


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
        customdata=[each.number for each in records],
        hovertemplate="%{y:.4g}<br>%{hovertext}<extra></extra>",
        marker={"color": COLORS[state], "size": 8, "symbol": "circle" if is_filled else "circle-open"},
    ).update(**changes)
