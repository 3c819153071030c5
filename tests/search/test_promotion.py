"""A trial that the user promotes trains to its end, whether it waits, runs or was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float, Ladder, Report, SearchInterrupted, StudyError, Trial, TrialRecord, TrialState, promote
from hpsearch.cli import main
from tests.support.searching import AtStep, Events, interrupt
from tests.support.small_trainer import small_trainer

EPOCHS = 6  # pauses after 1 and 3 of them
RESUMES = "resumes and trains to completion, as soon as a worker is free"
RATE = {"learning_rate": Float(1e-4, 1.0, log=True)}


def search(folder: Path, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    return small_trainer(folder, *callbacks, num_train_epochs=EPOCHS).hyperparameter_search(
        RATE, "loss", **{"n_trials": 9, "progress": False, "storage": "journal", **options}
    )


class Promotes(Events):
    """Promotes the first trial that waits, or one when it first reports."""

    def __init__(self, folder: Path, reporting: int | None = None, by: Callable[[Path, int], Any] = promote) -> None:
        super().__init__()
        self._folder, self._reporting, self._promote = folder, reporting, by
        self.promoted: int | None = reporting
        self.notices: list[str] = []

    def on_report(self, trial: Trial, report: Report) -> None:
        if trial.number == self._reporting:
            self._promote(self._folder, trial.number)

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        if self.promoted is None and record.state is TrialState.PAUSED:
            self.promoted = record.number
            self._promote(self._folder, record.number)

    def on_notice(self, notice: str) -> None:
        self.notices.append(notice)


def by_command(folder: Path, number: int) -> None:
    assert main(["promote", str(number), str(folder)]) == 0


@pytest.mark.parametrize("reporting", [None, 1], ids=["waits", "runs"])
def test_a_trial_that_is_promoted_in_a_terminal_trains_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reporting: int | None
) -> None:
    events = Promotes(tmp_path / "study", reporting, by_command)
    best = search(tmp_path, progress=events)
    assert events.promoted is not None
    assert best.run_summary.records[events.promoted].state is TrialState.COMPLETE
    told = "trains to completion" if reporting is not None else RESUMES
    assert capsys.readouterr().out.splitlines()[:1] == [f"trial {events.promoted} {told}"]
    assert main(["promote", str(events.promoted), str(tmp_path / "study")]) != 0
    assert f"Trial {events.promoted} is complete" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.process)])
@pytest.mark.parametrize("reporting", [None, 1], ids=["waits", "runs"])
def test_a_trial_that_is_promoted_trains_to_its_end(tmp_path: Path, n_jobs: int, reporting: int | None) -> None:
    events = Promotes(tmp_path / "study", reporting)
    best = search(tmp_path, n_jobs=n_jobs, progress=events)
    assert events.promoted is not None
    promoted = best.run_summary.records[events.promoted]
    assert promoted.state is TrialState.COMPLETE
    assert len(promoted.reports) == EPOCHS
    paused = [each.number for each in events.ended if each.state is TrialState.PAUSED]
    assert paused.count(events.promoted) == (reporting is None)
    told = f"trial {events.promoted} is promoted by hand: it trains to completion"
    assert events.notices.count(told) == (reporting is None)


def worst(folder: Path) -> int:
    """The number of a trial that waits, and is pruned in the end, in the search that nobody disturbs."""
    events = Events()
    search(folder, progress=events)
    paused = {each.number for each in events.ended if each.state is TrialState.PAUSED}
    pruned = [each for each in events.ended if each.state is TrialState.PRUNED and each.number in paused]
    return max(pruned, key=lambda each: each.reports[0].value).number


@pytest.mark.slow
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


def test_one_that_is_promoted_and_interrupted_resumes_although_the_budget_is_exhausted(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_trials": None, "budget": 2, "pruner": Ladder((1 / 6, 1 / 2), 2)}
    records = search(tmp_path, **options).run_summary.records
    number = next(each.number for each in records if each.state is TrialState.PAUSED)
    promote(tmp_path / "study", number)
    with pytest.raises(SearchInterrupted) as interrupted:
        search(tmp_path, callbacks=[AtStep(interrupt, run=0, step=17)], **options)
    assert interrupted.value.best_run.run_summary.records[number].state is TrialState.INTERRUPTED
    assert search(tmp_path, **options).run_summary.records[number].state is TrialState.COMPLETE


def changed(folder: Path, **options: Any) -> Path:
    search(folder, **{"n_trials": 4, **options})
    return folder / "study"


@pytest.mark.parametrize(
    ("make", "number", "said"),
    [
        (lambda folder: folder / "none", 0, r"no study in .*none': it has no study.json"),
        (changed, 9, r"has no trial 9; it has 4, up to 3"),
        (changed, "0", r"has no trial '0'"),
        (changed, 0, r"Trial 0 is (complete|pruned); only one that is 'interrupted', 'paused', 'running' can be "),
        (changed, True, r"has no trial True; it has 4, up to 3"),
        (lambda folder: changed(folder, pruner=None), 0, r"no trial pauses at a rung: its pruner is NopPruner"),
        (
            lambda folder: changed(folder, n_trials=3),
            0,
            r"no trial pauses at a rung: its pruner is rungs, with n_trials=3",
        ),
    ],
    ids=["no study", "no trial", "a text", "ended", "a truth", "no rungs", "three trials"],
)
def test_what_cannot_be_promoted_is_said(tmp_path: Path, make: Callable[[Path], Path], number: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        promote(make(tmp_path), number)
