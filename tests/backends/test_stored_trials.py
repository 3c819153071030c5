"""Decisions are carried out in Optuna's storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

from hpsearch.backends.optuna_backend.ledger import Ledger
from hpsearch.backends.optuna_backend.sampling import RepeatableSampling
from hpsearch.backends.optuna_backend.trial import OptunaTrial
from hpsearch.backends.optuna_backend.trials import StoredTrials
from hpsearch.search.decide import Wait
from hpsearch.search.objective import resolve_objectives
from hpsearch.search.space import SearchSpace
from hpsearch.search.study import Study
from hpsearch.search.trial import TrialRecord, TrialState
from tests.support.at_rungs import RATE


class Runner:
    """The records of a study whose trials take no time."""

    session = "this"

    def __init__(self) -> None:
        self.known: dict[int, TrialRecord] = {}

    @property
    def records(self) -> list[TrialRecord]:
        return [each for each in self.known.values() if each.state is not TrialState.RUNNING]

    def known_trials(self) -> list[TrialRecord]:
        return list(self.known.values())

    def earlier_record(self, number: int) -> TrialRecord | None:
        return self.known.get(number)

    def recover(self, record: TrialRecord) -> None:
        self.known[record.number] = record

    def refresh(self) -> None:
        pass

    def is_alive(self, session: str | None) -> bool:
        return session in ("this", "peer")

    def reason_to_stop(self) -> str | None:
        return None

    def known_trial(self, params: Any) -> TrialRecord | None:
        return None

    def is_everything_tried(self, *_: Any) -> bool:
        return False


class Proposes:
    """A proposer that has parameters for one trial."""

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, number: int) -> Any:
        self.asked += 1
        return {"learning_rate": 0.1} if self.asked == 1 else None


def made(folder: Path, n_trials: int = 9) -> tuple[StoredTrials, optuna.Study, Any]:
    engine = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), pruner=optuna.pruners.NopPruner())
    objectives = resolve_objectives("loss", "minimize", has_metrics=True)
    study = Study("s", folder, SearchSpace(RATE), objectives, n_trials)
    ledger = Ledger(study, engine, RepeatableSampling(engine.sampler))
    return StoredTrials(study, ledger, None, lambda _: False), engine, Runner()


def test_a_queued_trial_starts_after_the_searcher_has_ended(tmp_path: Path) -> None:
    trials, engine, runner = made(tmp_path)
    proposer: Any = Proposes()
    first = trials.next(runner, proposer)
    assert isinstance(first, OptunaTrial)
    runner.recover(TrialRecord(0, "run-0", TrialState.RUNNING, {"learning_rate": 0.1}))
    assert isinstance(trials.next(runner, proposer), Wait)
    assert isinstance(trials.next(runner, proposer), Wait)
    assert proposer.asked == 2  # and not again
    engine.enqueue_trial({"learning_rate": 0.01})
    queued = trials.next(runner, proposer)
    assert isinstance(queued, OptunaTrial)
    assert queued.fixed == {"learning_rate": 0.01}
    for trial in (first, queued):
        record = TrialRecord(trial.number, f"run-{trial.number}", TrialState.COMPLETE, {}, values=(0.5,))
        runner.recover(record)
        trials.end(trial, record)
    assert trials.next(runner, proposer) is None
    assert trials.ending == "the search ends early: the searcher has nothing more to try"


def test_a_trial_that_has_just_ended_elsewhere_counts_once_and_is_waited_for(tmp_path: Path) -> None:
    trials, _, runner = made(tmp_path, n_trials=2)
    elsewhere = trials.next(runner)
    assert isinstance(elsewhere, OptunaTrial)
    elsewhere.engine_trial.set_user_attr("hpsearch:session", "peer")
    record = TrialRecord(0, "run-0", TrialState.COMPLETE, {"learning_rate": 0.1}, values=(0.5,))
    runner.recover(record)
    own = trials.next(runner)
    assert isinstance(own, OptunaTrial)
    own_record = TrialRecord(1, "run-1", TrialState.COMPLETE, {"learning_rate": 0.2}, values=(0.4,))
    runner.recover(own_record)
    trials.end(own, own_record)
    assert isinstance(trials.next(runner), Wait)
    trials.end(elsewhere, record)
    assert trials.next(runner) is None
