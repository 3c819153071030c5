"""A search as its events tell of it, for all views: its trials, the best so far, its progress, the scale of curves."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..search.decisions.ladder import RUNGS
from ..search.decisions.training_budget import full_runs, full_runs_of
from ..search.result.known_study import on_disk
from ..search.store.stored_study import StoredStudy
from ..search.study import Study
from ..search.trial import Trial
from ..search.trial_record import Report, TrialRecord, TrialState
from .best_so_far import BestSoFar
from .curve_scale import CurveScale
from .search_progress import Estimate, SearchProgress

_SECONDS_OF_QUIET = 120.0  # thousands of workers report their progress only every minute or two
# Values that the scale of curves rests on, and trials for which an estimate is kept for a second.
_MOST_VALUES, _MANY = 5000, 1000
_PRUNE_NOTHING = ("NopPruner", "FIFOScheduler")


@dataclass
class RunningTrial:
    """A running trial, as it was last reported; `max_steps` is 0 while no worker trains it yet, or again."""

    trial: Trial
    reports: list[Report]
    since: float
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
        self.reports = [*(each for each in self.reports if each.step < report.step), report]

    def is_quiet(self, now: float) -> bool:
        """Return whether there has been no news of it for two minutes."""
        return now - self.last_news >= _SECONDS_OF_QUIET


class SearchState:
    """What the events of a search have told, with the moment of each, in seconds.

    Args:
        study: the settings.
        records: of the trials before this session.
        now: the moment at which the search begins.

    Attributes:
        study: the settings as they are now.
        records: by number, the trials as they were when they last ended or paused.
        running: by number, the trials that run.
        begin: the moment at which the search began.
        has_run: whether a trial has ended in this session.
    """

    def __init__(self, study: Study, records: Sequence[TrialRecord], now: float) -> None:
        stored = on_disk(study)
        self.study, self.begin, self.has_run = study, now, False
        self.records: dict[int, TrialRecord] = {}
        self.running: dict[int, RunningTrial] = {}
        self.best = BestSoFar(study)
        ladder = None if stored is None else stored.ladder
        self.progress = SearchProgress(study, ladder, now, may_prune=ladder is None and _has_pruner(stored))
        self._values: deque[float] = deque(maxlen=_MOST_VALUES)
        self._scale: CurveScale | None = None
        self._estimate: tuple[float, Estimate] | None = None
        self.counted = 0
        self.take_records(records)

    def take_records(self, records: Sequence[TrialRecord]) -> None:
        """Know the trials that do not run, those of other searches too."""
        changed = [each for each in records if self.records.get(each.number) is not each]
        self.records = {record.number: record for record in records}
        self._count(changed)

    def start(self, trial: Trial, now: float) -> None:
        """Know that a trial starts or resumes, with the curve that an earlier session has left of it."""
        reports = [] if trial.earlier is None else list(trial.earlier.reports)
        self.running[trial.number] = RunningTrial(trial, reports, now, now)
        self.progress.start(trial.number, 0.0 if trial.earlier is None else full_runs(trial.earlier), now)

    def step(self, number: int, step: int, max_steps: int, now: float) -> None:
        """Know how far a running trial is."""
        running = self.running.get(number)
        if running is not None:
            running.take_progress(step, max_steps, now)
            if max_steps:
                self.progress.step(number, min(1.0, step / max_steps), now)

    def report(self, number: int, report: Report, now: float) -> None:
        """Know an evaluation of a running trial."""
        running = self.running.get(number)
        if running is not None:
            running.take_report(report, now)
            self._values.append(report.value)
            self._scale = None
            self.best.report(number, running.reports)
            if report.fraction:
                self.progress.step(number, min(1.0, report.fraction), now)

    def end(self, record: TrialRecord, now: float) -> None:
        """Know that a trial has ended, or paused; it may have ended without having run."""
        self.running.pop(record.number, None)
        self.progress.end(record, now)
        is_new = self.records.get(record.number) is not record
        self.records[record.number], self.has_run = record, True
        self._count([record] if is_new else [])

    def change(self, study: Study) -> None:
        """Know other settings."""
        self.study = self.progress.study = study

    def _count(self, changed: Sequence[TrialRecord]) -> None:
        """Count the trials and find the best of them, once for all that shows it."""
        known = list(self.records.values())
        self.counted = sum(record.is_counted for record in known)
        self.best.take(known, changed)
        self._values.extend(report.value for each in changed for report in each.reports)
        self._scale = None
        if len(known) < _MANY:
            self._estimate = None
        self.progress.take_records(self.records)

    @property
    def paused(self) -> list[TrialRecord]:
        """The paused trials; the record of one that was resumed says paused until it ends."""
        known = list(self.records.values())
        return [each for each in known if each.state is TrialState.PAUSED and each.number not in self.running]

    @property
    def has_all(self) -> bool:
        """Whether as many trials have ended as there are to be."""
        return self.study.n_trials is not None and self.counted >= self.study.n_trials

    @property
    def used(self) -> float:
        """The cost of all trials that do not run, in full training runs."""
        return full_runs_of(list(self.records.values()))

    @property
    def scale(self) -> CurveScale:
        """The scale of all curves."""
        scale = self._scale
        if scale is None:
            scale = self._scale = CurveScale.of(list(self._values))
        return scale

    def best_in_words(self) -> str:
        """Return the best value so far and its trial; and the best result, if that is another one."""
        return self.best.describe(self.records, self.running)

    def progress_in_words(self) -> str:
        """Return how many of the trials have ended, and with a budget, how much of it is used."""
        n_trials, budget = self.study.n_trials, self.study.budget
        if n_trials is None and budget is None:
            return str(self.counted)
        parts = [] if n_trials is None else [f"{self.counted}/{n_trials}"]
        return ", ".join(parts if budget is None else [*parts, f"{self.used:.3g}/{budget:g} full runs"])

    def estimate(self, now: float) -> Estimate:
        """Return how far the search is, and the seconds left; of thousands of trials, as estimated some seconds ago."""
        known = self._estimate  # another thread may take it back at any moment
        if known is None or now - known[0] >= len(self.records) // _MANY:
            known = self._estimate = now, self.progress.estimate(now)
        at, found = known
        left = found.seconds_left
        return found._replace(seconds_left=None if left is None else max(0.0, left - (now - at)))


def _has_pruner(stored: StoredStudy | None) -> bool:
    """Return whether a pruner of Optuna, or a scheduler of Ray Tune, may end trials."""
    return stored is not None and stored.settings.get("pruner") not in (None, RUNGS, *_PRUNE_NOTHING)
