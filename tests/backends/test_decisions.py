"""AppliedDecisions are carried out in Optuna's storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpsearch.ledger.engine_trial import OptunaTrial
from hpsearch.search.decisions.decide import Wait
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.search.trial_record import TrialRecord, TrialState
from tests.support.coordinators import Searching


class Proposes:
    """A proposer that has parameters for one trial."""

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, number: int) -> Any:
        self.asked += 1
        return {"learning_rate": 0.1} if self.asked == 1 else None

    def end(self, record: TrialRecord, result: Any) -> None:
        pass


def end(search: Searching, trial: OptunaTrial) -> None:
    search.ledger.end(trial, ended_on_disk(search, trial))


def ended_on_disk(search: Searching, trial: OptunaTrial) -> TrialRecord:
    record = TrialRecord(trial.number, f"run-{trial.number}", TrialState.COMPLETE, {}, values=(0.5,))
    (search.session.study.folder / record.name).mkdir()
    search.records.take(record)
    return record


def test_a_queued_trial_starts_after_the_searcher_has_ended(tmp_path: Path) -> None:
    search, proposer = Searching(tmp_path), Proposes()
    trials, asked = search.decisions, proposer
    first = trials.next(asked)
    assert isinstance(first, OptunaTrial)
    search.give_to_peer(first)
    search.records.running[0] = TrialRecord(0, "run-0", TrialState.RUNNING, {"learning_rate": 0.1})
    assert isinstance(trials.next(asked), Wait)
    assert isinstance(trials.next(asked), Wait)
    assert proposer.asked == 2  # and not again
    search.engine.enqueue_trial({"learning_rate": 0.01})
    queued = trials.next(asked)
    assert isinstance(queued, OptunaTrial)
    assert queued.fixed == {"learning_rate": 0.01}
    search.records.running.clear()
    for trial in (first, queued):
        end(search, trial)
    assert trials.next(asked) is None
    assert trials.ending == "the search ends early: the searcher has nothing left to try"


def test_a_trial_that_has_just_ended_elsewhere_counts_once_and_is_waited_for(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=2)
    trials = search.decisions
    elsewhere = trials.next()
    assert isinstance(elsewhere, OptunaTrial)
    search.give_to_peer(elsewhere)
    record = ended_on_disk(search, elsewhere)
    own = trials.next()
    assert isinstance(own, OptunaTrial)
    end(search, own)
    assert isinstance(trials.next(), Wait)
    search.ledger.end(elsewhere, record)
    assert trials.next() is None


def test_a_paused_trial_that_is_pruned_does_not_end_a_row_of_failures(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=5, ladder=LADDER_OF_0_8_0)
    coordinator, limits = search.coordinator, search.session.limits
    for _ in range(5):
        assert coordinator.next() is not None
    for number, loss in enumerate((0.9, 0.1, 0.2, 0.3)):
        search.end(number, TrialState.PAUSED, loss)
    search.end(4, TrialState.FAILED)
    assert [each.number for each in limits.failures] == [4]
    resumed = coordinator.next()
    assert resumed is not None
    assert resumed.number == 1
    assert {each.number: each.state for each in search.records.records}[0] is TrialState.PRUNED
    assert [each.number for each in limits.failures] == [4]
