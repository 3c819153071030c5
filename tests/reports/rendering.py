"""Studies, records and consoles for the tests of what is shown."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hpsearch import FixedTrial, Float, Report, SearchSpace, Study, TrialRecord, TrialState
from hpsearch.reports.console import LiveView
from hpsearch.search.objective import resolve_objectives


def make_study(n_trials: int = 3, **changes: Any) -> Study:
    objectives = resolve_objectives("accuracy", None, has_metrics=True)
    settings = {"space": SearchSpace({"x": Float(0.0, 1.0)}), "objectives": objectives, **changes}
    return Study(name="digits", folder=Path("out/digits"), n_trials=n_trials, **settings)


def report(value: float, step: int) -> Report:
    return Report((value,), step, step, float(step), {})


def reports(*values: float) -> tuple[Report, ...]:
    return tuple(report(value, step) for step, value in enumerate(values, start=1))


def record(
    number: int, value: float | None = None, state: TrialState = TrialState.COMPLETE, **changes: Any
) -> TrialRecord:
    settings = {"params": {"x": 0.123456789}, "seconds": 1.25, **changes}
    return TrialRecord(number, f"run-{number}", state, values=() if value is None else (value,), **settings)


def text_console(width: int = 80, **settings: Any) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, width=width, color_system=None, **settings), stream


def shown(renderable: Any, width: int = 80) -> str:
    console, stream = text_console(width)
    console.print(renderable)
    return stream.getvalue()


class Screen:
    """A live view in a terminal, with a clock that stands still."""

    def __init__(self, width: int = 80, height: int = 40) -> None:
        self.width, self.now = width, 1000.0
        console, self.printed = text_console(width, height=height, force_terminal=True)
        self.view = LiveView(console, clock=lambda: self.now)

    def begin(self, n_trials: int = 100, records: Sequence[TrialRecord] = (), **settings: Any) -> None:
        self.view.on_search_begin(make_study(n_trials, **settings), records, [])

    def run(self, *numbers: int) -> list[FixedTrial]:
        trials = [FixedTrial({"x": number / 8}, number) for number in numbers]
        for trial in trials:
            self.view.on_trial_begin(trial)
        return trials

    def end(self, *numbers: int, state: TrialState = TrialState.COMPLETE) -> None:
        for number in numbers:
            self.view.on_trial_end(record(number, 0.5, state))

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in shown(self.view._render(), self.width).splitlines()]

    @property
    def trials(self) -> dict[int, str]:
        """The line of each trial that is shown, by its number, in their order."""
        return {int(line.split()[1]): line for line in self.lines if line.startswith("trial ")}
