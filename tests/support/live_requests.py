"""Searches to which requests are made while they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpsearch import BestRun, Float, Report, Trial, TrialRecord, open_study
from tests.support.searching import HearsNotices
from tests.support.small_trainer import small_trainer

EPOCHS = 6
RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}
Ask = Callable[[Any], str]


def search(folder: Path, progress: Any = False, n_trials: int | None = 4, **options: Any) -> BestRun:
    """Search with a small trainer; `arguments` are those of the trainer."""
    options = {"pruner": None, "storage": "journal", **options}
    trainer = small_trainer(folder, num_train_epochs=EPOCHS, **options.pop("arguments", {}))
    found = trainer.hyperparameter_search(RATE, "loss", n_trials=n_trials, progress=progress, **options)
    assert isinstance(found, BestRun)
    return found


class Asks(HearsNotices):
    """Makes a request to the search when a trial reports for the second time, and another one when a trial ends."""

    def __init__(self, folder: Path, at_report: Ask | None = None, at_end: Ask | None = None, of: int = 1) -> None:
        super().__init__()
        self._folder, self._at_report, self._at_end, self._of = folder, at_report, at_end, of
        self.answers: list[str] = []
        self.totals: list[int | None] = []

    def _ask(self, ask: Ask | None) -> None:
        if ask is not None:
            self.answers.append(ask(open_study(self._folder)))

    def on_report(self, trial: Trial, report: Report) -> None:
        if trial.number == self._of and report.epoch == 2:
            self._ask(self._at_report)

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        if record.number == self._of:
            ask, self._at_end = self._at_end, None
            self._ask(ask)

    def on_study_changed(self, study: Any) -> None:
        self.totals.append(study.n_trials)
