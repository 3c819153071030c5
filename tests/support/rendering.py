"""Studies, records and consoles for the tests of what is shown."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from hpsearch import Categorical, FixedTrial, Float, SearchSpace, SearchSummary, Study, TrialRecord, TrialState
from hpsearch.reports.live_view import LiveView
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.result.parameter_importances import Importances
from hpsearch.search.trial_record import Report, Span


def make_study(n_trials: int | None = 3, **changes: Any) -> Study:
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

    def begin(self, n_trials: int | None = 100, records: Sequence[TrialRecord] = (), **settings: Any) -> None:
        self.view.on_search_begin(make_study(n_trials, **settings), records, [])

    def run(self, *numbers: int) -> list[FixedTrial]:
        trials = [FixedTrial({"x": number / 8}, number) for number in numbers]
        for trial in trials:
            self.view.on_trial_begin(trial)
        return trials

    def end(self, *numbers: int, state: TrialState = TrialState.COMPLETE, fraction: float | None = None) -> None:
        for number in numbers:
            self.view.on_trial_end(record(number, 0.5, state, fraction=fraction))

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in shown(self.view._render(), self.width).splitlines()]

    @property
    def trials(self) -> dict[int, str]:
        """The line of each trial that is shown, by its number, in their order."""
        return {int(line.split()[1]): line for line in self.lines if line.startswith("trial ")}


SPACE = SearchSpace(
    {
        "learning_rate": Float(1e-5, 1e-1, log=True),
        "weight_decay": Float(0.0, 0.3),
        "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.99)}}),
        "per_device_train_batch_size": Categorical((16, 8, 32)),
    }
)


class NoEngine:
    """An engine that knows importances only."""

    def engine_study(self) -> Any:
        raise AssertionError

    def importances(self) -> Importances:
        return Importances({"learning_rate": 0.7, "weight_decay": 0.2, "optim": 0.1}, 12)

    def dashboard_command(self) -> str | None:
        return None


def curve(peak: float, length: int) -> tuple[Report, ...]:
    values = [peak * (1 - math.exp(-each)) for each in range(1, length + 1)]
    return tuple(
        Report((value,), float(at), 10 * at, float(at), {}, horizon=9.0) for at, value in enumerate(values, start=1)
    )


def made_up(count: int, seed: int = 0) -> list[TrialRecord]:
    """Trials as a search with rungs leaves them, two at a time."""
    generator = random.Random(seed)
    records = []
    for number in range(count):
        params = SPACE.sample(generator)
        peak = 1.0 - abs(math.log10(params["learning_rate"]) + 3) / 4
        length = 9 if peak > 0.9 else 3 if peak > 0.6 else 1
        state = TrialState.COMPLETE if length == 9 else TrialState.PRUNED
        reports = curve(peak, length)
        begin = 1e9 + 5.0 * (number // 2)
        records.append(
            TrialRecord(
                number,
                f"run-{number}",
                state,
                params,
                hyperparameters=params,
                values=reports[-1].values,
                reports=reports,
                seconds=5.0,
                epochs=float(length),
                spans=(Span(begin, begin + 4.0),),
            )
        )
    return records


def summary_of(records: Sequence[TrialRecord], **settings: Any) -> SearchSummary:
    return SearchSummary(make_study(max(1, len(records)), space=SPACE, **settings), records, NoEngine)


HOSTILE = "</script><script>window.harm = 1</script><img src=x onerror='window.harm = 2'>"


def hostile_records() -> list[TrialRecord]:
    """Trials of which two hold a text that harms a page that takes it for HTML."""
    records = made_up(12)
    records[3] = replace(records[3], params={**records[3].params, "optim": HOSTILE}, hyperparameters={"optim": HOSTILE})
    records[4] = replace(records[4], state=TrialState.FAILED, values=(), reports=(), reason=HOSTILE)
    return records
