"""Trials in the searching process: what they report, and what becomes of one that is cut off."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpsearch.backends.optuna_backend.dispatch import Dispatch, LiveTrial
from hpsearch.backends.optuna_backend.inline import InlineReporter, run_inline
from hpsearch.backends.optuna_backend.trial import OptunaTrial
from hpsearch.interruption import Interruption
from hpsearch.search.messages import Reported
from hpsearch.search.trial import TrialRecord, TrialState, Verdict
from tests.support.at_rungs import running


class Engine:
    """Settles trials, and notes them."""

    def __init__(self) -> None:
        self.settled: list[tuple[TrialRecord, bool]] = []

    def talking(self) -> Any:
        return contextlib.nullcontext()

    def settle(self, trial: Any, record: TrialRecord, runner: Any, is_stored: bool = True) -> None:
        self.settled.append((record, is_stored))


class Runner:
    """Trains trials by a function; its time is over."""

    def __init__(self, train: Any = None) -> None:
        self.train, self.under_way, self.shown = train, dict[int, TrialRecord](), list[Any]()
        self.interruption, self.listener = Interruption(), self

    def finish(self, ended: Any) -> TrialRecord:
        return ended.record

    def used_up(self) -> str:
        return "the study's timeout of 1 s is over"

    def on_report(self, trial: Any, report: Any) -> None:
        self.shown.append(report)


def made(runner: Any) -> tuple[Dispatch, LiveTrial, Engine]:
    engine = Engine()
    trial = SimpleNamespace(number=0, report=lambda *_: None, verdict=lambda *_: Verdict(pause=True))
    live = LiveTrial(trial, SimpleNamespace(number=0, name="run-0"), running(0, 0.5))  # type: ignore[arg-type]
    dispatch = Dispatch(runner, engine)  # type: ignore[arg-type]
    dispatch.live[0], runner.under_way[0] = live, live.so_far
    return dispatch, live, engine


def test_a_time_that_is_over_during_an_evaluation_does_not_keep_a_trial_from_pausing() -> None:
    runner: Any = Runner()
    dispatch, live, _ = made(runner)
    so_far = replace(live.so_far, reports=running(0, 0.5, 0.4).reports)
    reported = Reported(so_far.reports[-1], (), is_comparable=True, is_last=False, so_far=so_far)
    assert InlineReporter(dispatch, runner, live).report(reported) == Verdict(pause=True)
    assert runner.shown == [reported.report]
    assert live.so_far is so_far
    assert dispatch.answer(live, reported) == Verdict(stop=runner.used_up())  # of another process


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyboardInterrupt(), "interrupted by the user"), (RuntimeError("of a listener"), "the search ended")],
)
def test_a_trial_that_an_error_outside_of_it_cuts_off_is_recorded_as_interrupted(
    error: BaseException, reason: str
) -> None:
    def train(*_: Any) -> Any:
        raise error

    runner: Any = Runner(train)
    dispatch, live, engine = made(runner)
    dispatch.give_back(live)
    with pytest.raises(type(error)):
        run_inline(dispatch, runner)
    [(record, is_stored)] = engine.settled
    assert (record.state, record.reason, is_stored) == (TrialState.INTERRUPTED, reason, True)
    assert not dispatch.live


def test_no_further_trial_begins_after_a_signal_though_those_before_it_end_before_they_train() -> None:
    runner: Any = Runner()
    dispatch, live, _ = made(runner)
    dispatch.live.clear()
    begun: list[int] = []

    def begin(trial: Any) -> None:
        begun.append(len(begun))
        runner.interruption.note(15)

    dispatch._begin = begin  # type: ignore[method-assign]
    chosen: Any = SimpleNamespace(next=lambda *_: object.__new__(OptunaTrial))
    dispatch._engine.deciding = lambda _: contextlib.nullcontext(chosen)  # type: ignore[method-assign]
    run_inline(dispatch, runner)
    assert begun == [0]
    assert live.so_far.number == 0
