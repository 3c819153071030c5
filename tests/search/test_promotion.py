"""A trial that the user promotes trains to its end, whether it waits, runs or was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float, Report, SearchInterrupted, StudyError, Trial, TrialRecord, TrialState, promote
from tests.backends.contract import Events
from tests.search.small_trainer import small_trainer

EPOCHS = 6  # pauses after 1 and 3 of them
RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}


def search(folder: Path, **options: Any) -> Any:
    return small_trainer(folder, num_train_epochs=EPOCHS).hyperparameter_search(
        RATE, "loss", **{"n_trials": 12, "progress": False, **options}
    )


class Promotes(Events):
    """Promotes one trial, when it has waited for a while, or when it reports."""

    def __init__(self, folder: Path, number: int, is_running: bool = False) -> None:
        super().__init__()
        self._folder, self._number, self._is_running = folder, number, is_running
        self.notices: list[str] = []

    def on_report(self, trial: Trial, report: Report) -> None:
        if self._is_running and trial.number == self._number:
            promote(self._folder, self._number)

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        if not self._is_running and record.number == self._number and record.state is TrialState.PAUSED:
            promote(self._folder, self._number)

    def on_notice(self, notice: str) -> None:
        self.notices.append(notice)


def worst(folder: Path) -> int:
    """The number of a trial that waits, and is pruned in the end, in the search that nobody disturbs."""
    events = Events()
    search(folder, progress=events)
    paused = {each.number for each in events.ended if each.state is TrialState.PAUSED}
    pruned = [each for each in events.ended if each.state is TrialState.PRUNED and each.number in paused]
    return max(pruned, key=lambda each: each.reports[0].value).number


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("is_running", [False, True], ids=["waits", "runs"])
def test_a_trial_that_is_promoted_trains_to_its_end(tmp_path: Path, n_jobs: int, is_running: bool) -> None:
    number = worst(tmp_path / "left alone")
    events = Promotes(tmp_path / "study", number, is_running)
    best = search(tmp_path, n_jobs=n_jobs, progress=events)
    promoted = best.run_summary.records[number]
    assert promoted.state is TrialState.COMPLETE
    assert len(promoted.reports) == EPOCHS
    paused = {each.number for each in events.ended if each.state is TrialState.PAUSED}
    assert (number in paused) is not is_running
    assert (f"trial {number} goes on to its end, promoted by hand" in events.notices) is not is_running


def test_one_that_is_promoted_while_nobody_searches_comes_first_in_the_next_session(tmp_path: Path) -> None:
    class Interrupts(Events):
        def on_trial_end(self, record: TrialRecord) -> None:
            if record.number == 4:
                raise KeyboardInterrupt

    with pytest.raises((SearchInterrupted, KeyboardInterrupt)):
        search(tmp_path, progress=Interrupts())
    number = worst(tmp_path / "left alone")
    assert number < 4
    promote(tmp_path / "study", number)
    events = Events()
    search(tmp_path, progress=events)
    assert next(each.number for each in events.ended if each.state is TrialState.COMPLETE) == number


def changed(folder: Path, **options: Any) -> Path:
    search(folder, n_trials=4, **options)
    return folder / "study"


@pytest.mark.parametrize(
    ("make", "number", "said"),
    [
        (lambda folder: folder / "none", 0, r"no study in .*none': it has no study.json"),
        (changed, 9, r"has no trial 9; it has 4, up to 3"),
        (changed, "0", r"has no trial '0'"),
        (changed, 0, r"Trial 0 is (complete|pruned); only one that is 'interrupted', 'paused', 'running' can be "),
        (lambda folder: changed(folder, pruner=None), 0, r"do not wait at rungs: its pruner is NopPruner"),
    ],
    ids=["no study", "no trial", "a text", "ended", "no rungs"],
)
def test_what_cannot_be_promoted_is_said(tmp_path: Path, make: Callable[[Path], Path], number: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        promote(make(tmp_path), number)
