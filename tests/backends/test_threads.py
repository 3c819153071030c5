"""An executor needs nothing but what `hpsearch.executors` describes: one of threads runs searches as they should be."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState as EngineState

from hpsearch.search.decisions.ladder import Ladder
from hpsearch.search.store.read_study import read_records
from hpsearch.search.trial_record import TrialRecord, TrialState
from hpsearch.trial.assignment import Assignment
from hpsearch.trial.ending import Ended
from hpsearch.trial.remote_trial import Line, RemoteReporter
from tests.support.coordinators import EPOCHS, Searching, reported
from tests.support.threads import ThreadedSearch

COMPLETE, FAILED, INTERRUPTED = TrialState.COMPLETE, TrialState.FAILED, TrialState.INTERRUPTED


class Trains:
    """Trains nothing: each trial reports one value for each epoch; a trial that was paused continues after it.

    Args:
        act: is called before each epoch, with the trial's number and the epoch.
    """

    def __init__(self, act: Callable[[int, int], None] = lambda number, epoch: None) -> None:
        self._act = act
        self.epochs: list[tuple[int, int]] = []

    def __call__(self, assignment: Assignment, line: Line) -> Ended:
        record = assignment.earlier or TrialRecord(
            assignment.number, assignment.name, TrialState.RUNNING, dict(assignment.params), dict(assignment.arguments)
        )
        values = [each.value for each in record.reports]
        reporter = RemoteReporter(line)
        while len(values) < EPOCHS:
            reporter.progress(len(values), EPOCHS)
            self._act(assignment.number, len(values) + 1)
            self.epochs.append((assignment.number, len(values) + 1))
            values.append(1.0 / (assignment.number + len(values) + 1))
            said = reported(record, *values, is_last=len(values) == EPOCHS)
            record = said.so_far
            if reporter.report(said).pause:
                return Ended(replace(record, state=TrialState.PAUSED))
            if line.interruption.signal:
                return Ended(replace(record, state=INTERRUPTED, reason=line.interruption.reason))
        return Ended(replace(record, state=COMPLETE, values=(values[-1],)))


def states(search: Searching) -> list[TrialState]:
    """Return the states on disk, which the storage has too."""
    records = read_records(search.session.study.folder)
    stored = {COMPLETE: EngineState.COMPLETE, FAILED: EngineState.FAIL, INTERRUPTED: EngineState.RUNNING}
    assert [each.state for each in search.engine.get_trials()] == [stored[each.state] for each in records]
    return [each.state for each in records]


def test_parallel_trials_run_until_there_are_none_left(tmp_path: Path) -> None:
    search, both = Searching(tmp_path, n_trials=5), threading.Barrier(2, timeout=60)

    def meet(number: int, epoch: int) -> None:
        if number < 2 and epoch == 1:
            both.wait()  # which only two parallel trials pass

    ThreadedSearch(search.coordinator, Trains(meet), slots=2).run()
    assert states(search) == [COMPLETE] * 5


def test_paused_trials_are_promoted(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=6, ladder=Ladder((0.5,), 3, complete_first=0, complete_every=0))
    trains = Trains()
    ThreadedSearch(search.coordinator, trains, slots=2).run()
    found = [each.state for each in read_records(search.session.study.folder)]
    assert set(found) == {TrialState.PRUNED, COMPLETE}
    assert len(trains.epochs) == found.count(COMPLETE) * EPOCHS + found.count(TrialState.PRUNED) * EPOCHS // 2
    assert len(set(trains.epochs)) == len(trains.epochs)  # a promoted trial resumes after its pause


def test_a_trial_whose_thread_dies_is_resumed_and_fails_if_it_dies_again(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=3, retries=1)

    def die(number: int, epoch: int) -> None:
        if number == 1 and epoch == 2:
            raise RuntimeError("killed")

    ThreadedSearch(search.coordinator, Trains(die), slots=2).run()
    assert states(search) == [COMPLETE, FAILED, COMPLETE]
    assert [each.reason for each in search.shown.ended if each.reason] == ["its worker died: RuntimeError('killed')"]
    assert len(search.shown.notices) == 1


def test_at_a_signal_trials_finish_their_step_and_are_interrupted(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=3)

    def terminate(number: int, epoch: int) -> None:
        if number == 1 and epoch == 2:
            search.coordinator.interruption.note(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        ThreadedSearch(search.coordinator, Trains(terminate), slots=2).run()
    records = read_records(search.session.study.folder)
    assert records[1].state is INTERRUPTED
    assert len(records[1].reports) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("of a listener")])
def test_an_error_ends_the_search_and_what_trains_is_abandoned(tmp_path: Path, error: BaseException) -> None:
    search = Searching(tmp_path, n_trials=4)

    def fail(trial: Any, report: Any) -> None:
        raise error

    search.shown.on_report = fail  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        ThreadedSearch(search.coordinator, Trains(), slots=2).run()
    assert set(states(search)) == {INTERRUPTED}
