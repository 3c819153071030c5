"""The live view of a search in a terminal; one line a trial where there is no terminal."""

from __future__ import annotations

import heapq
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..search.decisions.training_budget import full_runs_of, progress_in_words
from ..search.listener import SearchListener
from ..search.metrics.selection import best_records
from ..search.result.advice import advice
from ..search.study import Study
from ..search.trial import Report, Trial, TrialRecord, TrialState
from .tables import (
    budget_in_words,
    count_states,
    effort_in_words,
    format_clock,
    format_duration,
    format_rate,
    format_value,
    sparkline,
)

_WITH_A_REASON = (TrialState.FAILED, TrialState.INTERRUPTED, TrialState.STOPPED, TrialState.REFUSED)
_SECONDS_OF_QUIET = 120.0  # thousands of workers report their progress only every minute or two
_LONGEST_CURVE = 24


def console_listener(is_shown: bool, console: Console | None = None) -> SearchListener:
    """Return the listener that shows a search, silent if not `is_shown`.

    Live in a terminal and in a notebook, as lines elsewhere, and as few lines if the variable ``CI`` is set.
    """
    if not is_shown:
        return SearchListener()
    console = console or Console()
    if console.is_terminal:
        return LiveView(console)
    if console.is_jupyter:
        from .notebook import NotebookView

        return NotebookView()
    return NewsView(console) if os.environ.get("CI", "").lower() in ("1", "true") else LineView(console)


class LineView(SearchListener):
    """Prints what was decided, then one line for every trial that ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._study: Study | None = None
        self._is_announced = False
        self._records: dict[int, TrialRecord] = {}
        self._under_way: set[int] = set()
        self._done, self._best, self._has_run = 0, "", False

    def on_first_call(self, news: str) -> None:
        """Print it: the call may take long, and the objective is not known yet."""
        self._print(news)

    def on_search_prepare(self, study: Study) -> None:
        """Print the objective immediately: with much data, the search begins seconds later."""
        self._print(f"search {study.name!r}: {study.description}")
        self._is_announced = True

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Print the engine's choices and where a study continues; the objective, if it was not printed."""
        self._study, self._records = study, {record.number: record for record in records}
        self._under_way, self._has_run = set(), False
        self._count()
        if not self._is_announced:
            self._print(f"search {study.name!r}: {study.description}")
        self._is_announced = False
        self._print("  " + "; ".join(notes), style="dim")
        if self._has_all():
            self._print(
                f"  has all of its {study.n_trials} trials: no new one begins (study_name= starts another study)"
            )
        elif records:
            half_done = [str(each.number) for each in records if each.state is TrialState.INTERRUPTED]
            first = f", first with half-done trial {', '.join(half_done)}" if half_done else ""
            self._print(f"  continues after {progress_in_words(study, records)}{first}")

    def on_trial_begin(self, trial: Trial) -> None:
        """Know that the trial does not wait any more."""
        self._under_way.add(trial.number)

    def on_records(self, records: Sequence[TrialRecord]) -> None:
        """Know the trials of other searches too."""
        self._records = {record.number: record for record in records}

    def on_trial_end(self, record: TrialRecord) -> None:
        """Print how the trial ended, and the best so far."""
        self._take(record)
        self._print(self._line(record))

    def on_notice(self, notice: str) -> None:
        """Print it."""
        self._print(notice)

    def on_study_changed(self, study: Study) -> None:
        """Count towards the new total."""
        self._study = study

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Print how the trials ended, and what it saved that not all were trained to their end."""
        if self._has_run:
            known = list(self._records.values())
            self._print(
                " ".join([f"{count_states(known)}{budget_in_words(study, known)}.", *effort_in_words(study, known)])
            )
            for sentence in advice(study, known):
                self._print(sentence)

    def _print(self, line: str, style: str | None = None) -> None:
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def _take(self, record: TrialRecord) -> None:
        self._under_way.discard(record.number)
        self._records[record.number], self._has_run = record, True
        self._count()

    def _waiting(self) -> list[TrialRecord]:
        """Return the paused trials; the record of one that was resumed says paused until it ends."""
        known = list(self._records.values())
        return [each for each in known if each.state is TrialState.PAUSED and each.number not in self._under_way]

    def _count(self) -> None:
        """Count the trials and find the best of them, once for all that shows it."""
        records = list(self._records.values())
        self._done = sum(record.is_counted for record in records)
        self._best = self._best_text(records)

    def _has_all(self) -> bool:
        assert self._study is not None
        return self._study.n_trials is not None and self._done >= self._study.n_trials

    def _used(self) -> float:
        """Return the cost of all trials in full training runs."""
        return full_runs_of(list(self._records.values()))

    def _progress(self) -> str:
        """Return how many of the trials have ended, and with a budget, how much of it is used."""
        assert self._study is not None
        n_trials, budget = self._study.n_trials, self._study.budget
        parts = [] if n_trials is None else [f"{self._done}/{n_trials}"]
        return ", ".join(parts if budget is None else [*parts, f"{self._used():.3g}/{budget:g} full runs"])

    def _line(self, record: TrialRecord) -> str:
        assert self._study is not None
        objectives = self._study.objectives
        names = ["" if len(objectives) == 1 else f"{each.name} " for each in objectives]
        value = "".join(f" {name}{format_value(each)}" for name, each in zip(names, record.values, strict=False))
        of = "" if record.replica is None else f" ({record.replica})"
        line = f"[{self._progress()}] trial {record.number}{of} {record.state.value}{value}"
        if record.state is TrialState.PAUSED:
            line += f" {(record.reason or '').removeprefix('paused ')}"
        line += f" in {record.seconds:.1f} s"
        if record.state in _WITH_A_REASON:
            line += f": {record.reason}"
        broken = [name for name, by in record.violations.items() if by > 0]
        if broken:
            line += f" (breaks {', '.join(broken)})"
        if record.fallbacks:
            line += f" (in smaller batches, as it ran out of memory {len(record.fallbacks)}x)"
        return f"{line}; {self._best}"

    def _best_text(self, records: Sequence[TrialRecord]) -> str:
        assert self._study is not None
        best = best_records(records, self._study.objectives)
        waiting = [each for each in self._waiting() if each.values and all(by <= 0 for by in each.violations.values())]
        if not best and waiting and len(self._study.objectives) > 1:
            return f"{len(waiting)} paused, none complete yet"
        if not best and waiting:
            ahead = self._study.objective.best_of(waiting, key=lambda record: record.values[0])
            return f"best so far {format_value(ahead.values[0])} (trial {ahead.number}, paused)"
        if not best:
            has_result = any(record.state.has_result and record.values for record in records)
            return "no trial satisfies the constraints yet" if has_result else "no result yet"
        if len(self._study.objectives) > 1:
            return f"{len(best)} on the Pareto front"
        return f"best {format_value(best[0].value)} (trial {best[0].number})"


class NewsView(LineView):
    """Prints what was decided, then only trials that are better than all before them, or that did not go well."""

    def on_trial_end(self, record: TrialRecord) -> None:
        """Print how the trial ended, if that is news."""
        before = self._best
        self._take(record)
        is_news = self._best != before or record.state in _WITH_A_REASON
        if is_news or self._has_all():
            self._print(self._line(record))


@dataclass
class _Running:
    """A running trial, as it was last reported; `max_steps` is 0 while no worker trains it yet, or again."""

    trial: Trial
    reports: list[Report]
    last_news: float
    step: int = 0
    max_steps: int = 0

    def take_progress(self, step: int, max_steps: int, now: float) -> None:
        """Be at a step: an earlier one if the trial resumes from a checkpoint, which knows of no later reports."""
        self.step, self.max_steps, self.last_news = step, max_steps, now
        if max_steps and self.reports and self.reports[-1].step > step:
            self.reports = [each for each in self.reports if each.step <= step]

    def take_report(self, report: Report, now: float) -> None:
        """Add a report; if it is made again, in place of the first one and all later ones."""
        self.step, self.last_news = report.step, now
        self.reports = [*(each for each in self.reports if each.step < report.step), report][-_LONGEST_CURVE:]


class LiveView(LineView):
    """A live display: trials done, the best so far, and a line for each running trial, as many as fit.

    Rich draws in its own thread, and trials may report from others, so the data are copied before drawing.

    Args:
        clock: gives the time in seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)
        self._clock = clock
        self._running: dict[int, _Running] = {}
        self._shown: set[int] = set()
        self._not_timed: set[int] = set()
        self._new: set[int] = set()
        self._has_waited = False
        self._most_at_once = 0
        self._used_before = 0.0
        self._begin = self._last_end = clock()

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Print the decisions and open the display."""
        super().on_search_begin(study, records, notes)
        self._running, self._shown, self._most_at_once = {}, set(), 0
        self._not_timed = {record.number for record in records if record.state.is_counted}
        self._new = set()
        self._used_before = self._used()
        self._has_waited = any(each.state is TrialState.PAUSED for each in records)
        self._begin = self._last_end = self._clock()
        self._live.start()

    def on_trial_begin(self, trial: Trial) -> None:
        """Show the trial, with the curve that an earlier session has left of it."""
        super().on_trial_begin(trial)
        if trial.earlier is None:
            self._new.add(trial.number)
        reports = [] if trial.earlier is None else list(trial.earlier.reports)
        self._running[trial.number] = _Running(trial, reports, self._clock())
        self._most_at_once = max(self._most_at_once, len(self._running))

    def on_report(self, trial: Trial, report: Report) -> None:
        """Note the evaluation; the display reads it when it refreshes."""
        running = self._running.get(trial.number)
        if running is not None:
            running.take_report(report, self._clock())

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Note how far the trial is; the display reads it when it refreshes."""
        running = self._running.get(trial.number)
        if running is not None:
            running.take_progress(step, max_steps, self._clock())

    def on_trial_end(self, record: TrialRecord) -> None:
        """Print the trial's line above the display."""
        has_begun = self._running.pop(record.number, None) is not None
        self._has_waited |= record.state is TrialState.PAUSED
        if record.state is TrialState.REFUSED:
            self._new.discard(record.number)
        if has_begun and (record.state.is_counted or record.state is TrialState.PAUSED):
            self._last_end = self._clock()
        elif record.state.is_counted:
            self._not_timed.add(record.number)
        super().on_trial_end(record)

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Print what came of it all, and close the display."""
        self._running = {}
        try:
            super().on_search_end(study, records)
        finally:
            self._live.stop()

    def _render(self) -> RenderableType:
        if self._study is None:
            return Text()
        width, height = self._console.size
        now, running = self._clock(), list(self._running.values())
        room = max(1, height * 2 // 3 - 2)
        shown = self._choose(running, room if len(running) <= room else max(1, room - 1), now)
        bar, curve = max(8, min(24, width // 8)), min(_LONGEST_CURVE, width // 10)
        head = Table.grid(padding=(0, 1))
        n_trials, budget = self._study.n_trials, self._study.budget
        used = 0.0 if budget is None else self._used() / budget
        fraction = max(used, 0.0 if n_trials is None else self._done / n_trials)
        done = ProgressBar(total=1.0, completed=min(1.0, fraction), width=bar)
        waiting = len(self._waiting())
        waits = f", {waiting} paused" if waiting else ""
        told = f"{self._progress()}{waits}, {self._pace(now)}"
        head.add_row("trials", done, Text(told, no_wrap=True))
        lines: list[RenderableType] = [head, Text(f"  {self._best}", style="green", no_wrap=True)]
        if len(running) == 1:
            lines += [_lines(shown, bar, curve, now, with_parameters=False), _below(_parameters(running[0].trial))]
        elif running:
            lines.append(_lines(shown, bar, curve, now, with_parameters=True))
        if len(running) > len(shown):
            quiet = sum(_is_quiet(each, now) for each in running if each.trial.number not in self._shown)
            without_news = f", {quiet} of them without news for two minutes" if quiet else ""
            lines.append(Text(f"and {len(running) - len(shown)} more running{without_news}", no_wrap=True))
        return Group(*lines)

    def _choose(self, running: Sequence[_Running], room: int, now: float) -> list[_Running]:
        """Return the trials to show: those not quiet come first, of them those in view, then those last_news last."""

        def place(each: _Running) -> tuple[bool, bool, float]:
            return _is_quiet(each, now), each.trial.number not in self._shown, -each.last_news

        chosen = heapq.nsmallest(room, running, key=place)
        self._shown = {each.trial.number for each in chosen}
        return sorted(chosen, key=lambda each: each.trial.number)

    def _pace(self, now: float) -> str:
        """Return the elapsed time of the search, its rate of trials, and the time left if it can be estimated."""
        seconds, timed = now - self._begin, self._timed()
        told = format_clock(seconds)
        if timed > 0:
            told += f", {format_rate(timed, seconds)}"
        left = self._seconds_left(timed, seconds)
        return told if left is None else f"{told}, about {format_duration(left)} left"

    def _timed(self) -> int:
        """Return how many trials the time so far was for: those that have ended, or with rungs, those that have begun.

        With rungs all trials begin, at one pace, while most end without being trained for it.
        """
        if self._has_waited:
            return len(self._new.difference(self._running))
        return self._done - len(self._not_timed)

    def _seconds_left(self, timed: int, seconds: float) -> float | None:
        """Return the seconds until the end of the search at this pace; None if they cannot be estimated.

        It can once two trials have ended per worker, as the first to end may be the short ones. It cannot
        with a limit on epochs, as the number of trials is then unknown.
        """
        assert self._study is not None
        if self._study.max_epochs is not None or timed < max(1, 2 * self._most_at_once):
            return None
        left = []
        if self._study.n_trials is not None:
            left.append(self._seconds_of_trials(self._study.n_trials, timed, seconds))
        if self._study.budget is not None:
            used = self._used() - self._used_before
            left.append(self._at_pace(self._study.budget - self._used(), used, seconds))
        if self._study.timeout is not None:
            left.append(self._study.timeout - seconds)
        return min(left) if 0 < min(left) < math.inf else None

    def _seconds_of_trials(self, n_trials: int, timed: int, seconds: float) -> float:
        if not self._has_waited:
            return self._at_pace(n_trials - self._done, timed, seconds)
        known = list(self._records.values())  # also of other searches
        begun = self._new.union(each.number for each in known if each.state is not TrialState.REFUSED)
        return (n_trials - len(begun)) * seconds / len(self._new)

    def _at_pace(self, left: float, done: float, seconds: float) -> float:
        """Return the seconds that the rest takes, as what was done took those until the last end of a trial."""
        until_last = self._last_end - self._begin
        return left * until_last / done - (seconds - until_last) if done > 0 else math.inf


def _lines(shown: Sequence[_Running], bar: int, curve: int, now: float, with_parameters: bool) -> Table:
    """Return a line for each running trial; what does not fit of its parameters is cut off."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(width=bar)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis", style="dim", ratio=1)
    for each in shown:
        reports, steps = each.reports, each.max_steps
        told = f"no news for {format_clock(now - each.last_news)}  " if _is_quiet(each, now) else ""
        grid.add_row(
            f"trial {each.trial.number}",
            ProgressBar(total=max(steps, 1), completed=min(each.step, steps), width=bar),
            f"{each.step}/{steps}" if steps else f"step {each.step}" if each.step else "starting",
            sparkline([report.value for report in reports][-curve:]),
            ", ".join(format_value(value) for value in reports[-1].values) if reports else "",
            Text(told + _parameters(each.trial) if with_parameters else told),
        )
    return grid


def _below(parameters: str) -> Text:
    return Text(f"  {parameters}", style="dim", overflow="ellipsis", no_wrap=True)


def _is_quiet(running: _Running, now: float) -> bool:
    return now - running.last_news >= _SECONDS_OF_QUIET


def _parameters(trial: Trial) -> str:
    params = dict(trial.params.values_by_name)  # copied, as model_init may ask for more meanwhile
    told = ", ".join(f"{name}={format_value(value)}" for name, value in params.items())
    return " ".join(told.split())  # a line, also of a text that has several
