"""Trials in the searching process: what they report, and what becomes of one that is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from hpsearch import Float, SpaceError
from hpsearch.executors.inline import InlineReporter, run_inline
from hpsearch.search.trial import Verdict
from hpsearch.search.trial_record import TrialRecord, TrialState
from hpsearch.trial.ending import Ended
from tests.support.coordinators import Searching, ended, reported


class Local:
    """Trains trials by a function of the trial, its assignment and its reporter."""

    def __init__(self, train: Any) -> None:
        self.train, self.waits = train, 0

    def wait(self) -> None:
        self.waits += 1


class Prunes(optuna.pruners.BasePruner):
    """Prunes every trial."""

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return True


def run(search: Searching, train: Any) -> None:
    local: Any = Local(train)
    run_inline(search.coordinator, local)


def test_trials_run_one_after_the_other_until_all_have_ended(tmp_path: Path) -> None:
    search, seen = Searching(tmp_path, n_trials=3), list[Any]()

    def train(trial: Any, assignment: Any, reporter: Any) -> Ended:
        seen.append((assignment.number, list(search.coordinator.running), trial.params["learning_rate"]))
        record = reported(search.coordinator.running[assignment.number].so_far, 0.5, 0.4, is_last=True)
        assert reporter.report(record) == Verdict()
        return ended(record.so_far, value=0.4)

    run(search, train)
    assert [each[:2] for each in seen] == [(number, [number]) for number in range(3)]
    assert [each.params["learning_rate"] for each in search.engine.trials] == [each[2] for each in seen]
    assert [each.value for each in search.engine.trials] == [0.4] * 3
    assert search.coordinator.is_over


def test_a_trial_that_asks_for_a_parameter_gets_it_from_the_search_and_its_error_as_it_is(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=1)

    def train(trial: Any, assignment: Any, reporter: Any) -> Ended:
        value = trial.suggest("model.dropout", Float(0.0, 0.5))
        assert search.engine.trials[0].params["model.dropout"] == value
        with pytest.raises(SpaceError, match="comes too late"):
            trial.suggest("model.width", Float(0.0, 0.5, prior=0.1))
        return ended(search.coordinator.running[0].so_far)

    run(search, train)


def test_a_time_that_is_over_during_an_evaluation_does_not_keep_a_trial_from_pausing(tmp_path: Path) -> None:
    now = [0.0]
    search = Searching(tmp_path, pruner=Prunes(), clock=lambda: now[0], timeout=1.0)
    assert search.coordinator.next() is not None
    now[0] = 2.0
    said = reported(search.coordinator.running[0].so_far, 0.5, 0.4)
    assert InlineReporter(search.coordinator, 0).report(said) == Verdict(prune=True)
    assert search.shown.reports == [said.report]
    assert search.coordinator.running[0].so_far is said.so_far
    assert search.coordinator.report(0, said).stop is not None  # of another process


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyboardInterrupt(), "interrupted by the user"), (RuntimeError("of a listener"), "the search ended")],
)
def test_a_trial_that_an_error_outside_of_it_cuts_off_is_recorded_as_interrupted(
    tmp_path: Path, error: BaseException, reason: str
) -> None:
    search = Searching(tmp_path)

    def train(*_: Any) -> Any:
        raise error

    with pytest.raises(type(error)):
        run(search, train)
    [record] = search.shown.ended
    assert (record.state, record.reason) == (TrialState.INTERRUPTED, reason)
    assert not search.coordinator.running
    stored = search.engine.trials[0]
    assert stored.state is optuna.trial.TrialState.RUNNING  # another session resumes it
    assert stored.user_attrs["hpsearch:state"] == "interrupted"


def test_no_further_trial_begins_after_a_signal_though_those_before_it_end_before_they_train(tmp_path: Path) -> None:
    search, begun = Searching(tmp_path), list[int]()

    def begin(trial: Any) -> TrialRecord:
        begun.append(trial.number)
        search.session.interruption.note(15)
        (search.session.study.folder / "run-0").mkdir()
        return TrialRecord(trial.number, f"run-{trial.number}", TrialState.FAILED, {}, reason="its name")

    search.session.on_disk.begin = begin  # type: ignore[method-assign]
    run(search, lambda *_: None)
    assert begun == [0]


def test_a_search_waits_for_trials_of_others_and_says_so_once(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=1)
    assert search.coordinator.next() is not None
    elsewhere = search.coordinator._leave(0)
    search.give_to_peer(elsewhere.trial)
    local: Any = Local(lambda *_: None)

    def wait() -> None:
        local.waits += 1
        if local.waits == 3:
            elsewhere.trial.engine_trial.study.tell(0, 0.5)
        search.coordinator._look_again = 0.0

    local.wait = wait
    run_inline(search.coordinator, local)
    assert local.waits >= 3
    assert len([each for each in search.shown.notices if "waiting" in each]) == 1
