"""The live view of a search in a notebook: an HTML table in the output of the cell, updated in place; no widgets."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from rich.console import Console

from ..search.decisions.training_budget import full_runs
from ..search.study import Study
from ..search.trial_record import Report, TrialRecord, TrialState
from ..search.wording import format_value, metric_label
from .curve_scale import CurveScale
from .line_view import LineView
from .live_view import progress_in_words
from .search_state import RunningTrial, SearchState
from .tables import format_clock

_SECONDS_BETWEEN = 0.5
_ROWS, _MESSAGES, _PARAMETERS = 16, 12, 8
_CELL = "text-align:right;padding:2px 8px;white-space:nowrap"
_HEAD = "text-align:right;padding:2px 8px;white-space:normal;vertical-align:bottom"
_TEXT = "text-align:left;padding:2px 8px;min-width:12em"


class NotebookView(LineView):
    """The live view in the output of a notebook cell: the progress, a table of the latest trials, and messages."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Console(force_jupyter=False), clock)
        self._title, self._activity = "", ""
        self._decided: list[str] = []
        self._messages: deque[str] = deque(maxlen=_MESSAGES)
        self._latest: deque[int] = deque(maxlen=_ROWS)
        self._output = _Output(self._html)

    def on_first_call(self, news: str) -> None:
        """Print it in the cell: the output is opened later."""
        self._console.print(news, markup=False, highlight=False, soft_wrap=True)

    def on_activity(self, activity: str) -> None:
        """Show it while it lasts."""
        self._activity = activity
        if activity:
            self._output.start()
        elif self._state is None:
            self._output.stop()

    def on_search_prepare(self, study: Study) -> None:
        """Show the objective."""
        self._title = f"search {study.name!r}: {study.description}"
        self._messages.clear()
        self._latest.clear()
        self._state = None
        self._output.start()
        self._is_announced = True

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Show the decisions and the trials so far."""
        if not self._is_announced:
            self.on_search_prepare(study)
        super().on_search_begin(study, records, notes)
        self._decided = list(self._messages)
        self._messages.clear()
        self._latest.extend(record.number for record in records[-_ROWS:])

    def on_notice(self, notice: str) -> None:
        """Show it, also after the search: a test set is evaluated then."""
        super().on_notice(notice)
        self._output.write_if_over()

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Show what came of it all, and write the output for the last time."""
        self.state.running.clear()
        try:
            super().on_search_end(study, records)
        finally:
            self._output.stop()

    def _print(self, line: str, style: str | None = None) -> None:
        self._messages.append(line)

    def _print_trial(self, record: TrialRecord) -> None:
        """Let the table have the trial."""
        if record.number in self._latest:
            self._latest.remove(record.number)
        self._latest.append(record.number)
        self._explain(record)

    def _html(self) -> str:
        """Return the output as it is at the moment."""
        parts = [f"<div><strong>{escape(self._title)}</strong></div>"]
        if self._decided:
            decided = escape("; ".join(each.strip() for each in self._decided))
            parts.append(f"<details><summary>what the search has decided</summary>{decided}</details>")
        state = self._state
        if state is not None:
            fraction, told = progress_in_words(state, self._clock())
            parts.append(
                f'<div><progress value="{fraction:.3f}" max="1" style="width:16em" aria-label="progress of the search">'
                f"</progress> {escape(told)}</div><div><strong>{escape(state.best_in_words())}</strong></div>"
            )
            parts.append(_table(state, list(self._latest), self._clock()))
        if self._activity:
            parts.append(f"<div>{escape(self._activity)} ...</div>")
        parts += [f"<div>{escape(each)}</div>" for each in list(self._messages)]
        return f'<div style="overflow-x:auto">{"".join(parts)}</div>'


def _table(state: SearchState, latest: Sequence[int], now: float) -> str:
    """Return the trials that run, and the latest and the best of those that do not, by number, as rows."""
    running, records = dict(state.running), dict(state.records)
    under_way = sorted(running)[: _ROWS - 2]
    best = state.best.result
    others = [number for number in latest if number in records and number not in running]
    others = others[-max(1, _ROWS - len(under_way) - (best is not None)) :]
    shown = sorted({*under_way, *others, *([] if best is None else [best.number])})
    if not shown:
        return ""
    rows = [_Row.of(state, number, running.get(number), records.get(number), now) for number in shown]
    names = list(dict.fromkeys(name for row in rows for name in row.params))[:_PARAMETERS]
    metrics = [metric_label(each.name, state.study.unit) for each in state.study.objectives]
    heads = ["trial", "state", "trained", *metrics, "curve", "time", *names, ""]
    head = "".join(f'<th scope="col" style="{_HEAD}">{_breakable(each)}</th>' for each in heads)
    count = len({*running, *records})
    more = f"<div>{count - len(shown)} other trials are not shown</div>" if count > len(shown) else ""
    body = "".join(row.html(state, names, is_best=best is not None and row.number == best.number) for row in rows)
    style = "border-collapse:collapse;font-size:inherit;margin:6px 0"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def _breakable(name: str) -> str:
    """Return a name that a narrow column breaks after its words."""
    return escape(name).replace("_", "_<wbr>").replace(".", ".<wbr>")


class _Row:
    """A trial in the table."""

    def __init__(
        self, number: int, state: str, trained: float, reports: Sequence[Report], seconds: float, params: dict[str, Any]
    ) -> None:
        self.number, self.state, self.trained = number, state, trained
        self.reports, self.seconds, self.params = reports, seconds, params
        self.values: tuple[float, ...] = reports[-1].values if reports else ()
        self.note = ""

    @classmethod
    def of(
        cls, state: SearchState, number: int, running: RunningTrial | None, record: TrialRecord | None, now: float
    ) -> _Row:
        """Return the row of a trial that is running, or has a record."""
        if running is not None:
            trained = running.step / running.max_steps if running.max_steps else 0.0
            params = dict(running.trial.params.values_by_name)
            told = "running" if running.step else "starting"
            return cls(number, told, trained, list(running.reports), now - running.since, params)
        assert record is not None, "a trial runs, or has a record"
        trained = full_runs(record) or float(record.state is TrialState.COMPLETE)
        row = cls(number, record.state.value, trained, record.reports, record.seconds, record.params)
        row.values = record.values or row.values
        broken = [name for name, by in record.violations.items() if by > 0]
        has_reason = record.state not in (TrialState.COMPLETE, TrialState.PAUSED, TrialState.PRUNED) and record.reason
        notes = [record.reason if has_reason and record.reason else "", f"breaks {', '.join(broken)}" if broken else ""]
        notes.append("" if record.replica is None else str(record.replica))
        notes.append("in smaller batches, as it ran out of memory" if record.fallbacks else "")
        row.note = "; ".join(each for each in notes if each)
        return row

    def html(self, state: SearchState, names: Sequence[str], is_best: bool) -> str:
        """Return the row."""
        values = [format_value(each) for each in self.values] or [""] * len(state.study.objectives)
        params = [format_value(self.params[name]) if name in self.params else "" for name in names]
        cells = [str(self.number), f"{self.state}{', best' if is_best else ''}", f"{self.trained:.0%}", *values]
        told = [f'<td style="{_CELL}">{escape(each)}</td>' for each in cells]
        told.append(f'<td style="{_CELL}">{_curve(self.reports, state.scale)}</td>')
        told += [f'<td style="{_CELL}">{escape(each)}</td>' for each in [format_clock(self.seconds), *params]]
        note = f'<td style="{_TEXT}">{escape(self.note)}</td>' if self.note else "<td></td>"
        return f'<tr style="{"font-weight:bold" if is_best else ""}">{"".join(told)}{note}</tr>'


def _curve(reports: Sequence[Report], scale: CurveScale) -> str:
    """Return a learning curve as a drawing: to the right the training run, upwards the scale of all curves."""
    width, height = 80, 18
    known = [each for each in reports if math.isfinite(each.value)]
    if not known:
        return ""
    last = known[-1].resource or 1.0
    ends = known[-1].horizon or last
    points = [
        (1 + (width - 2) * min(1.0, each.resource / ends), 1 + (height - 2) * (1 - scale.place(each.value)))
        for each in known
    ]
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    told = f"learning curve from {format_value(known[0].value)} to {format_value(known[-1].value)}"
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="{escape(told)}">'
        f'<polyline points="{drawn}" fill="none" stroke="currentColor"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.5" fill="currentColor"/></svg>'
    )


class _Output:
    """An output of a cell that shows something as it is at the moment, as `rich.live.Live` does in a terminal."""

    def __init__(self, html: Callable[[], str]) -> None:
        self._html = html
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._handle: Any = None

    def start(self) -> None:
        """Open an output in the cell that runs, and write it again from time to time; nothing if it is open."""
        from IPython.display import HTML, display

        if self._thread is not None:
            return
        self._is_over.clear()
        self._handle = display(HTML(self._html()), display_id=True)
        self._thread = threading.Thread(target=self._write_again, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write it for the last time."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._write()

    def write_if_over(self) -> None:
        """Write it once more, if it is not written from time to time any more."""
        if self._handle is not None and self._thread is None:
            self._write()

    def _write_again(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN):
            self._write()

    def _write(self) -> None:
        from IPython.display import HTML

        self._handle.update(HTML(self._html()))
