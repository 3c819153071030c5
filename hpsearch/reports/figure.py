"""What all plots of the report are made of: points, axes, colours, and what a pointer at a trial shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..search.best_run import SearchSummary
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


def reached(record: TrialRecord) -> float | None:
    """Return what stands for a trial in plots: its value, or what it came to; None if there is none that is finite."""
    value = record.value if record.state.has_result else record.reports[-1].value if record.reports else None
    return value if value is not None and math.isfinite(value) else None


def with_value(summary: SearchSummary) -> list[tuple[TrialRecord, float]]:
    """Return the trials that have come to a value, with it."""
    pairs = ((each, reached(each)) for each in summary.records)
    return [(record, value) for record, value in pairs if value is not None]


def hover_text(record: TrialRecord, where: str = "") -> str:
    """Return what a pointer at a trial shows; with where it was trained, if that is given."""
    parameters = "<br>".join(f"{_safe(name)}={_safe(format_value(value))}" for name, value in record.params.items())
    place = f"<br>{_safe(where)}" if where else ""
    return f"trial {record.number}, {record.state.value}{place}<br>{parameters}"


def _safe(text: str) -> str:
    return text[:80].replace("&", "&amp;").replace("<", "&lt;")


def by_state(pairs: Sequence[tuple[TrialRecord, float]]) -> dict[str, list[tuple[TrialRecord, float]]]:
    """Return the trials by how they ended."""
    found: dict[str, list[tuple[TrialRecord, float]]] = {}
    for record, value in pairs:
        found.setdefault(record.state.value, []).append((record, value))
    return found


def points(state: str, x: list[Any], y: list[Any], texts: list[str], **more: Any) -> dict[str, Any]:
    """Return a trace of trials in a state, open circles for those without a result; `more` goes into it."""
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


def axis_titled(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title; `more` goes into it."""
    return {"title": {"text": title}, **more}
