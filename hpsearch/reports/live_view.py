"""The live view of a search in a terminal."""

from __future__ import annotations

import heapq
import textwrap
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..search.study import Study
from ..search.trial import Trial
from ..search.trial_record import TrialRecord
from ..search.wording import format_value
from .line_view import LineView
from .search_state import RunningTrial, SearchState
from .tables import format_clock, format_duration

_LONGEST_CURVE = 24
_SPINNER, _TURNS_PER_SECOND = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", 4
# Before this fraction of a search, the time left is a guess.
_LEAST_TO_ESTIMATE = 0.05
# The characters of a trial's number, its steps and its value, with the spaces between the columns.
_BESIDE = 30


class LiveView(LineView):
    """A live display: how far the search is, the best so far, and a line for each running trial, as many as fit.

    Rich draws in its own thread, and trials may report from others, so the data are copied before drawing.

    Args:
        console: a terminal.
        clock: gives the time in seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock)
        self._shown: set[int] = set()
        self._activity, self._since = "", 0.0
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)

    def on_activity(self, activity: str) -> None:
        """Show it beside a spinner while it lasts."""
        self._activity, self._since = activity, self._clock()
        if activity:
            self._live.start()
        elif self._state is None:
            self._live.stop()

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Print the decisions and open the display."""
        self._shown = set()
        super().on_search_begin(study, records, notes)
        self._activity, self._since = "", self._clock()
        self._live.start()

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Print what came of it all, and close the display."""
        self.state.running.clear()
        try:
            super().on_search_end(study, records)
        finally:
            self._live.stop()

    def _render(self) -> RenderableType:
        now, state = self._clock(), self._state
        if self._activity or state is None:
            return Text(f"{_spinner(now)} {self._activity} {format_clock(now - self._since)}" if self._activity else "")
        width, height = self._console.size
        running = list(state.running.values())
        room = max(1, height * 2 // 3 - 2)
        shown = self._choose(running, room if len(running) <= room else max(1, room - 1), now)
        bar, curve = max(8, min(24, width // 8)), min(_LONGEST_CURVE, width // 10)
        head = Table.grid(padding=(0, 1))
        fraction, told = progress_in_words(state, now)
        head.add_row("search", ProgressBar(total=1.0, completed=fraction, width=bar), Text(told, no_wrap=True))
        lines: list[RenderableType] = [head, Text(f"  {state.best_in_words()}", style="green", no_wrap=True)]
        if not running and not state.has_run:
            lines.append(Text(f"{_spinner(now)} preparing the first trial {format_clock(now - self._since)}"))
        if len(running) == 1:
            lines += [
                _lines(state, shown, bar, curve, now),
                _below(parameters_in_words(running[0].trial), width, max(1, room - 1)),
            ]
        elif running:
            beside = width - bar - curve - _BESIDE
            most = room // len(running)
            lines.append(_lines(state, shown, bar, curve, now, beside=beside, most=most))
        if len(running) > len(shown):
            quiet = sum(each.is_quiet(now) for each in running if each.trial.number not in self._shown)
            without_news = f", {quiet} of them without news for two minutes" if quiet else ""
            lines.append(Text(f"and {len(running) - len(shown)} more running{without_news}", no_wrap=True))
        return Group(*lines)

    def _choose(self, running: Sequence[RunningTrial], room: int, now: float) -> list[RunningTrial]:
        """Return the trials to show: those not quiet come first, of them those in view, then those last_news last."""

        def place(each: RunningTrial) -> tuple[bool, bool, float]:
            return each.is_quiet(now), each.trial.number not in self._shown, -each.last_news

        chosen = heapq.nsmallest(room, running, key=place)
        self._shown = {each.trial.number for each in chosen}
        return sorted(chosen, key=lambda each: each.trial.number)


def progress_in_words(state: SearchState, now: float) -> tuple[float, str]:
    """Return which fraction of a search is done, and in words the trials, the time so far, and the time left."""
    fraction, left, is_at_most = state.estimate(now)
    paused = len(state.paused)
    told = [f"{fraction:.0%}", f"trials {state.progress_in_words()}", f"{paused} paused" if paused else ""]
    is_known = left is not None and fraction >= _LEAST_TO_ESTIMATE and left >= 0.5
    told += [
        format_clock(now - state.begin),
        f"{'at most' if is_at_most else 'about'} {format_duration(left)} left" if is_known and left else "",
    ]
    return fraction, ", ".join(each for each in told if each)


def _lines(
    state: SearchState,
    shown: Sequence[RunningTrial],
    bar: int,
    curve: int,
    now: float,
    beside: int = 0,
    most: int = 0,
) -> Table:
    """Return a line for each running trial; its parameters take `beside` characters in `most` lines, if there are any.

    With one line, what does not fit of them is cut off.
    """
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(width=bar)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis", style="dim", ratio=1)
    for each in shown:
        reports, steps = each.reports, each.max_steps
        told = f"no news for {format_clock(now - each.last_news)}  " if each.is_quiet(now) else ""
        grid.add_row(
            f"trial {each.trial.number}",
            ProgressBar(total=max(steps, 1), completed=min(each.step, steps), width=bar),
            f"{each.step}/{steps}" if steps else f"step {each.step}" if each.step else starting_in_words(each, now),
            state.scale.sparkline([report.value for report in reports][-curve:]),
            ", ".join(format_value(value) for value in reports[-1].values) if reports else "",
            Text(told + _in_lines(parameters_in_words(each.trial), beside, most) if beside else told),
        )
    return grid


def starting_in_words(running: RunningTrial, now: float) -> str:
    """Return, with a spinner, for how long a trial has not made its first step: it builds its model, or compiles it."""
    return f"{_spinner(now)} starting {format_clock(now - running.since)}"


def _spinner(now: float) -> str:
    return _SPINNER[int(now * _TURNS_PER_SECOND) % len(_SPINNER)]


def _in_lines(parameters: str, width: int, most: int) -> str:
    return parameters if most < 2 else "\n".join(_wrapped(parameters, width, most))


def _below(parameters: str, width: int, most: int) -> Text:
    return Text("\n".join(f"  {each}" for each in _wrapped(parameters, width - 2, most)), style="dim")


def _wrapped(parameters: str, width: int, most: int) -> list[str]:
    """Return parameters in at most `most` lines, of which the last one ends with "…" if they do not fit."""
    return textwrap.wrap(parameters, max(width, 2), max_lines=most, placeholder="…", break_on_hyphens=False)


def parameters_in_words(trial: Trial) -> str:
    """Return the parameters of a trial in a line, also of a text that has several."""
    params = dict(trial.params.values_by_name)  # copied, as model_init may ask for more meanwhile
    told = ", ".join(f"{name}={format_value(value)}" for name, value in params.items())
    return " ".join(told.split())
