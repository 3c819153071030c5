"""A search as lines, where there is no terminal: one line for each trial that ends, or only those that are news."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console

from ..search.decisions.training_budget import progress_in_words
from ..search.listener import SearchListener
from ..search.result.advice import advice
from ..search.result.findings.pruned_ahead import why_pruned
from ..search.store.last_checkpoint import resumes_at
from ..search.study import Study
from ..search.trial import Trial
from ..search.trial_record import Report, TrialRecord, TrialState
from ..search.wording import all_trials, format_value
from .search_state import SearchState
from .tables import budget_in_words, count_states, effort_in_words

_WITH_A_REASON = (TrialState.FAILED, TrialState.INTERRUPTED, TrialState.STOPPED, TrialState.REFUSED)


class LineView(SearchListener):
    """Prints what was decided, then one line for every trial that ends.

    Args:
        console: where it prints.
        clock: gives the time in seconds.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._state: SearchState | None = None
        self._is_announced = False

    @property
    def state(self) -> SearchState:
        """The search as it is now; it has begun."""
        assert self._state is not None, "the search has begun"
        return self._state

    def on_first_call(self, news: str) -> None:
        """Print it: the call may take long, and the objective is not known yet."""
        self._print(news)

    def on_activity(self, activity: str) -> None:
        """Print it, unless the study has been announced: then something is seen to happen."""
        if activity and not self._is_announced:
            self._print(f"{activity} ...", style="dim")

    def on_search_prepare(self, study: Study) -> None:
        """Print the objective immediately: with much data, the search begins seconds later."""
        self._print(f"search {study.name!r}: {study.description}")
        self._is_announced = True

    def on_search_begin(self, study: Study, records: Sequence[TrialRecord], notes: Sequence[str]) -> None:
        """Print the engine's choices and where a study continues; the objective, if it was not printed."""
        self._state = SearchState(study, records, self._clock())
        if not self._is_announced:
            self._print(f"search {study.name!r}: {study.description}")
        self._is_announced = False
        self._print("  " + "; ".join(notes), style="dim")
        if study.n_trials is not None and self._state.has_all:
            has_all, larger = all_trials(study.n_trials, self._state.counted)
            self._print(f"  {has_all}: no new one begins ({larger} adds trials; study_name= starts another study)")
        elif records:
            half_done = [_with_start(each, study) for each in records if each.state is TrialState.INTERRUPTED]
            first = f", first with half-done trial {', '.join(half_done)}" if half_done else ""
            self._print(f"  continues after {progress_in_words(study, records)}{first}")

    def on_trial_begin(self, trial: Trial) -> None:
        """Know that the trial runs."""
        self.state.start(trial, self._clock())

    def on_report(self, trial: Trial, report: Report) -> None:
        """Note the evaluation: it may be the best so far."""
        self.state.report(trial.number, report, self._clock())

    def on_progress(self, trial: Trial, step: int, max_steps: int) -> None:
        """Note how far the trial is."""
        self.state.step(trial.number, step, max_steps, self._clock())

    def on_records(self, records: Sequence[TrialRecord]) -> None:
        """Know the trials of other searches too."""
        self.state.take_records(records)

    def on_trial_end(self, record: TrialRecord) -> None:
        """Print how the trial ended, and the best so far."""
        self.state.end(record, self._clock())
        self._print_trial(record)

    def on_notice(self, notice: str) -> None:
        """Print it."""
        self._print(notice)

    def on_study_changed(self, study: Study) -> None:
        """Count towards the new total."""
        if self._state is not None:
            self._state.change(study)

    def on_search_end(self, study: Study, records: Sequence[TrialRecord]) -> None:
        """Print how the trials ended, and what it saved that not all were trained to their end."""
        if self.state.has_run:
            known = list(self.state.records.values())
            self._print(
                " ".join([f"{count_states(known)}{budget_in_words(study, known)}.", *effort_in_words(study, known)])
            )
            for sentence in advice(study, known):
                self._print(sentence)

    def _print(self, line: str, style: str | None = None) -> None:
        is_whole = not self._console.is_terminal  # a terminal breaks lines between words; a pipe gets them whole
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=is_whole)

    def _print_trial(self, record: TrialRecord) -> None:
        """Print the line of a trial that has ended."""
        self._print(self._line(record))
        self._explain(record)

    def _explain(self, record: TrialRecord) -> None:
        """Print why a trial was pruned, if it was better than the best result."""
        best = self.state.best.result
        if best is not None and len(self.state.study.objectives) == 1:
            why = why_pruned(self.state.study.objective, record, best, list(self.state.records.values()))
            if why is not None:
                self._print(f"  {why}")

    def _line(self, record: TrialRecord) -> str:
        objectives = self.state.study.objectives
        names = ["" if len(objectives) == 1 else f"{each.name} " for each in objectives]
        value = "".join(f" {name}{format_value(each)}" for name, each in zip(names, record.values, strict=False))
        of = "" if record.replica is None else f" ({record.replica})"
        line = f"[{self.state.progress_in_words()}] trial {record.number}{of} {record.state.value}{value}"
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
        return f"{line}; {self.state.best_in_words()}"


def _with_start(trial: TrialRecord, study: Study) -> str:
    """Return the number of a half-done trial, and where it resumes: ``3 (from epoch 2)``."""
    epochs = resumes_at(trial, study)
    start = f"{study.unit} {round(epochs, 2):.10g}" if epochs else "its beginning"
    return f"{trial.number} (from {start})"


class NewsView(LineView):
    """Prints what was decided, then only trials that are better than all before them, or that did not go well."""

    def on_trial_end(self, record: TrialRecord) -> None:
        """Print how the trial ended, if that is news."""
        before = self.state.best.result
        self.state.end(record, self._clock())
        is_news = self.state.best.result is not before or record.state in _WITH_A_REASON
        if is_news or self.state.has_all:
            self._print_trial(record)
