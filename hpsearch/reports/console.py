"""The live view of a search in a terminal; one line a trial where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..search.listener import SearchListener
from ..search.selection import best_records
from ..search.study import Study
from ..search.trial import Report, Trial, TrialRecord, TrialState
from .tables import format_value, sparkline

_WITH_A_REASON = (TrialState.FAILED, TrialState.INTERRUPTED, TrialState.STOPPED, TrialState.REFUSED)


def console_listener(is_shown: bool, console: Console | None = None) -> SearchListener:
    """Return the listener that shows a search: live in a terminal, as lines elsewhere, silent if not `is_shown`."""
    if not is_shown:
        return SearchListener()
    console = console or Console()
    return LiveView(console) if console.is_terminal else LineView(console)


class LineView(SearchListener):
    """Prints what was decided, then one line for every trial that ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._study: Study | None = None
        self._records: list[TrialRecord] = []

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Print the objective, the engine's choices and where a study goes on."""
        self._study, self._records = study, list(records)
        self._print(f"search {study.name!r}: {study.description}")
        self._print("  " + "; ".join(notes), style="dim")
        counted = self._counted()
        if counted >= study.n_trials:
            self._print(f"  has all of its {study.n_trials} trials: nothing to run (study_name= starts a new one)")
        elif records:
            half_done = [str(each.number) for each in records if each.state is TrialState.INTERRUPTED]
            first = f", first with half-done trial {', '.join(half_done)}" if half_done else ""
            self._print(f"  goes on after {counted} of {study.n_trials} trials{first}")

    def on_records(self, records: Sequence[TrialRecord]) -> None:
        """Know the trials of other searches too."""
        self._records = list(records)

    def on_trial_end(self, record: TrialRecord) -> None:
        """Print how the trial ended, and the best so far."""
        if all(each.number != record.number for each in self._records):
            self._records.append(record)
        self._print(self._line(record))

    def on_notice(self, notice: str) -> None:
        """Print it."""
        self._print(notice)

    def _print(self, line: str, style: str | None = None) -> None:
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def _counted(self) -> int:
        return sum(record.state.is_counted for record in self._records)

    def _line(self, record: TrialRecord) -> str:
        assert self._study is not None
        objectives = self._study.objectives
        names = ["" if len(objectives) == 1 else f"{each.name} " for each in objectives]
        value = "".join(f" {name}{format_value(each)}" for name, each in zip(names, record.values, strict=False))
        line = f"[{self._counted()}/{self._study.n_trials}] trial {record.number} {record.state.value}{value}"
        line += f" in {record.seconds:.1f} s"
        if record.state in _WITH_A_REASON:
            line += f": {record.reason}"
        broken = [name for name, by in record.violations.items() if by > 0]
        if broken:
            line += f" (breaks {', '.join(broken)})"
        if record.fallbacks:
            line += f" (in smaller batches, as it ran out of memory {len(record.fallbacks)}x)"
        return f"{line}; {self._best_text()}"

    def _best_text(self) -> str:
        assert self._study is not None
        best = best_records(self._records, self._study.objectives)
        if not best:
            has_result = any(record.state.has_result and record.values for record in self._records)
            return "none holds the constraints yet" if has_result else "no result yet"
        if len(self._study.objectives) > 1:
            return f"{len(best)} on the Pareto front"
        return f"best {format_value(best[0].value)} (trial {best[0].number})"


class LiveView(LineView):
    """A live display: trials done, the best so far, the running trial's parameters and curve."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._render)
        self._trial: Trial | None = None
        self._reports: list[Report] = []
        self._step, self._max_steps = 0, 0
        self._begin = time.monotonic()

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Print the decisions and open the display."""
        super().on_search_begin(study, records, notes)
        self._begin = time.monotonic()
        self._live.start()

    def on_trial_begin(self, trial: Trial) -> None:
        """Show the trial."""
        self._trial, self._reports, self._step, self._max_steps = trial, [], 0, 0

    def on_report(self, trial: Trial, report: Report) -> None:
        """Show the evaluation."""
        self._reports.append(report)

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Note how far the trial is; the display reads it when it refreshes."""
        self._step, self._max_steps = step, max_steps

    def on_trial_end(self, record: TrialRecord) -> None:
        """Print the trial's line above the display."""
        self._trial = None
        super().on_trial_end(record)

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Close the display."""
        self._live.stop()

    def _render(self) -> Group | Text:
        if self._study is None:
            return Text()
        done, total = self._counted(), self._study.n_trials
        grid = Table.grid(padding=(0, 1))
        elapsed = int(time.monotonic() - self._begin)
        grid.add_row(
            "trials",
            ProgressBar(total=total, completed=done, width=24),
            f"{done}/{total}",
            f"{elapsed // 60}:{elapsed % 60:02d}",
        )
        if self._trial is not None:
            step, steps = self._step, max(self._max_steps, 1)
            grid.add_row(
                Text(f"run {self._trial.number}"), ProgressBar(total=steps, completed=step, width=24), f"{step}/{steps}"
            )
        lines: list[Table | Text] = [grid, Text(f"  {self._best_text()}", style="green")]
        if self._trial is not None:
            values = [report.value for report in self._reports]
            latest = f" {format_value(values[-1])}" if values else ""
            params = self._trial.params.values_by_name.items()
            shown = ", ".join(f"{name}={format_value(value)}" for name, value in params)
            lines.append(
                Text(f"  {sparkline(values)}{latest}  {shown}", style="dim", overflow="ellipsis", no_wrap=True)
            )
        return Group(*lines)
