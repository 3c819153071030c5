"""The trials of a search run, report, are lost and end as they should, whatever trains them."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpsearch.coordinator.lost_worker import Loss
from hpsearch.coordinator.requests_in_effect import RequestsInEffect
from hpsearch.search.requests.request import Kind, Request
from hpsearch.search.requests.request_file import RequestFile
from hpsearch.search.store.read_study import read_records
from hpsearch.search.store.study_folder import REQUESTS_FILE
from hpsearch.search.trial import Trial, Verdict
from hpsearch.search.trial_record import TrialRecord, TrialState
from hpsearch.trial.assignment import AssignedTrial
from hpsearch.trial.ending import Ended, TrialEndedSearch
from hpsearch.trial.messages import Noted
from tests.support.coordinators import Searching, ended, reported
from tests.support.optuna_logging import optuna_logs

SMALLER = ({"arguments": {"per_device_train_batch_size": 1}, "reason": "out of memory"},)


def test_a_trial_that_runs_out_of_memory_before_it_has_resumed_keeps_its_reports(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    assert search.coordinator.next() is not None
    running = search.coordinator.running[0]
    search.coordinator.report(0, reported(running.so_far, 0.5, 0.4))
    anew = TrialRecord(0, "run-0", TrialState.RUNNING, {}, epochs=0.0, fraction=0.0, fallbacks=SMALLER)
    search.coordinator.receive(0, Noted(anew))
    [written] = read_records(search.session.study.folder)
    for record in (running.so_far, search.records.running[0], written):
        assert (len(record.reports), record.epochs, record.fraction) == (2, 2.0, 1 / 3)
        assert record.fallbacks == SMALLER


KILLED, NO_NODE = Loss("killed"), Loss("no node", had_worker=False)


@pytest.mark.parametrize(
    ("losses", "retries", "is_retried"),
    [
        ([KILLED, KILLED], 1, [True, False]),
        ([KILLED], 0, [False]),
        ([NO_NODE, NO_NODE], 0, [True, False]),  # one that no process has trained is tried once more
        ([Loss("it cannot be made", is_creation=True)], 3, [False]),
        # An engine that resumes trials itself says so, and may say of the same loss that it does not.
        ([Loss("killed", resumes_itself=True), Loss("killed", is_new=False)], 1, [True, True]),
        ([Loss("killed", resumes_itself=True), KILLED], 1, [True, False]),
    ],
)
def test_a_trial_is_resumed_as_often_as_it_may_be(
    tmp_path: Path, losses: list[Loss], retries: int, is_retried: list[bool]
) -> None:
    search = Searching(tmp_path, retries=retries)
    coordinator = search.coordinator
    assert coordinator.next() is not None
    for loss, retried in zip(losses, is_retried, strict=True):
        given_up = coordinator.lost(0, loss)
        assert (given_up is None) is retried
        if given_up is not None:
            assert given_up.record.state is TrialState.FAILED
            assert given_up.record.reason == f"its worker died: {loss.reason}"
        if retried and not loss.resumes_itself:
            again = coordinator.next()
            assert again is not None
            assert again.number == 0
            assert coordinator.running[0].has_lost_process
    expected = sum(each.is_new and retried for each, retried in zip(losses, is_retried, strict=True))
    assert len(search.shown.notices) == expected


def test_a_trial_that_pauses_between_its_losses_gets_no_new_retries(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=1, retries=1)
    coordinator = search.coordinator
    assert coordinator.next() is not None
    assert coordinator.lost(0, KILLED) is None
    assert coordinator.next() is not None
    paused = coordinator.report(0, reported(coordinator.running[0].so_far, 0.5))
    assert paused == Verdict()
    search.end(0, TrialState.INTERRUPTED)
    search.alive.clear()  # so this session takes it over
    assert not coordinator.running
    resumed = coordinator.next()
    assert resumed is not None
    assert resumed.number == 0
    assert coordinator.lost(0, KILLED) is not None


def test_a_trial_that_no_process_has_taken_is_the_next_one(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    first, second = search.coordinator.next(), search.coordinator.next()
    assert first is not None
    assert second is not None
    search.coordinator.give_back(first.number)
    again = search.coordinator.next()
    assert again is not None
    assert again.number == first.number


def test_an_assignment_has_the_seconds_that_are_left_when_it_is_handed_over(tmp_path: Path) -> None:
    now = [100.0]
    search = Searching(tmp_path, clock=lambda: now[0], timeout=60.0)
    first = search.coordinator.next()
    assert first is not None
    assert first.seconds == 60.0
    now[0] += 25
    search.coordinator.give_back(0)
    again = search.coordinator.next()
    assert again is not None
    assert again.seconds == 35.0


class Prunes(optuna.pruners.BasePruner):
    """Prunes every trial, and notes what it has reported."""

    def __init__(self) -> None:
        self.seen: list[dict[int, float]] = []

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        self.seen.append(trial.intermediate_values)
        return True


def test_a_report_is_stored_before_it_is_shown_and_shown_before_it_is_judged(tmp_path: Path) -> None:
    pruner = Prunes()
    search = Searching(tmp_path, pruner=pruner)
    assert search.coordinator.next() is not None
    said = reported(search.coordinator.running[0].so_far, 0.5)
    at_show: list[tuple[dict[int, float], int]] = []
    search.shown.on_report = lambda trial, report: at_show.append(  # type: ignore[method-assign]
        (search.engine.trials[0].intermediate_values, len(pruner.seen))
    )
    search.coordinator.report(0, said)
    assert at_show == [({1: 0.5}, 0)]
    assert pruner.seen == [{1: 0.5}]


def test_listeners_see_what_the_users_code_has_noted_on_a_trial_in_another_process(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    assert search.coordinator.next() is not None
    said = reported(search.coordinator.running[0].so_far, 0.5)
    noted: list[dict[str, object]] = []
    search.shown.on_report = lambda trial, report: noted.append(trial.user_attrs)  # type: ignore[method-assign]
    search.coordinator.report(0, replace(said, so_far=replace(said.so_far, user_attrs={"size": 3})))
    assert noted == [{"size": 3}]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_an_assigned_trial_can_be_copied_though_it_holds_a_connection(
    tmp_path: Path, copied: Callable[[AssignedTrial], Trial]
) -> None:
    search = Searching(tmp_path)
    assignment = search.coordinator.next()
    assert assignment is not None
    trial = AssignedTrial(assignment)
    trial.connection = threading.Lock()  # type: ignore[attr-defined]
    again = copied(trial)
    assert (again.number, dict(again.params.values_by_name)) == (0, trial.params.values_by_name)
    assert again["learning_rate"] == trial["learning_rate"]


def test_optuna_is_silent_while_parameters_are_chosen_and_user_code_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = optuna.logging.get_logger("optuna.study.study")

    class Logs(optuna.samplers.RandomSampler):
        def sample_independent(self, *arguments: Any) -> Any:
            log.info("choosing")
            log.warning("warned")
            return super().sample_independent(*arguments)

    search = Searching(tmp_path, sampler=Logs(seed=0))
    search.shown.on_trial_begin = lambda trial: log.info("user code")  # type: ignore[method-assign]
    with optuna_logs(optuna.logging.INFO), caplog.at_level("INFO"):
        assert search.coordinator.next() is not None
    said = [record.message for record in caplog.records if record.name == log.name]
    assert set(said) == {"warned", "user code"}


def test_a_report_is_recorded_and_judged_and_stops_a_trial_only_once_a_limit_is_exhausted(tmp_path: Path) -> None:
    now = [0.0]
    search = Searching(tmp_path, pruner=Prunes(), clock=lambda: now[0], timeout=60.0)
    coordinator = search.coordinator
    assert coordinator.next() is not None
    assert coordinator.report(0, reported(coordinator.running[0].so_far, 0.5)) == Verdict(prune=True)
    assert search.engine.trials[0].intermediate_values == {1: 0.5}
    now[0] = 61.0
    said = reported(coordinator.running[0].so_far, 0.5, 0.4)
    assert coordinator.report(0, said) == Verdict(stop="the study's timeout of 60.0 s is over")
    assert [each.value for each in search.shown.reports] == [0.5, 0.4]
    last = reported(coordinator.running[0].so_far, 0.5, 0.4, 0.3, is_last=True)
    assert coordinator.report(0, last) == Verdict()


def test_a_trial_that_has_ended_in_the_moment_it_was_left_is_recorded_as_it_ended(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    coordinator = search.coordinator
    for _ in range(2):
        assert coordinator.next() is not None
    coordinator.left(ended(coordinator.running[0].so_far))
    half_done = reported(coordinator.running[1].so_far, 0.5).so_far
    coordinator.left(Ended(replace(half_done, state=TrialState.INTERRUPTED), where="worker 1"))
    coordinator.end_with(KeyboardInterrupt())
    coordinator.close()
    first, second = search.shown.ended
    assert [first.state, second.state] == [TrialState.COMPLETE, TrialState.INTERRUPTED]
    assert len(second.reports) == 1
    assert [each.where for each in second.spans] == ["worker 1"]
    assert second.reason == "interrupted by the user"


def end_with_signal(search: Searching) -> None:
    search.coordinator.interruption.note(signal.SIGTERM)


def end_with_ctrl_c(search: Searching) -> None:
    search.coordinator.end_with(KeyboardInterrupt())


def end_with_ctrl_c_in_a_trial(search: Searching) -> None:
    running = search.coordinator.running[0]
    running.so_far = replace(running.so_far, state=TrialState.INTERRUPTED)
    with pytest.raises(TrialEndedSearch) as raised:
        search.coordinator.ended(Ended(running.so_far, KeyboardInterrupt()))
    search.coordinator.end_with(raised.value)


def test_a_trial_is_chosen_and_its_end_recorded_under_the_lock_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Searching(tmp_path)
    lock, seen = search.records._folder._lock, list[tuple[str, bool]]()

    def note_lock_of(owner: object, name: str) -> None:
        act = getattr(owner, name)

        def noting(*args: Any) -> Any:
            seen.append((name, lock.is_locked))
            return act(*args)

        monkeypatch.setattr(owner, name, noting)

    note_lock_of(search.decisions, "next")
    note_lock_of(search.ledger, "end")
    note_lock_of(search.records, "take")
    assert search.coordinator.next() is not None
    search.end(0)
    assert seen == [("next", True), ("end", True), ("take", True)]
    assert not lock.is_locked


@pytest.mark.parametrize("end", [end_with_signal, end_with_ctrl_c, end_with_ctrl_c_in_a_trial])
def test_a_search_that_ends_starts_no_trial(tmp_path: Path, end: Callable[[Searching], None]) -> None:
    search = Searching(tmp_path)
    assert search.coordinator.next() is not None
    search.coordinator.give_back(search.coordinator.next().number)  # type: ignore[union-attr]
    end(search)
    assert search.coordinator.next() is None
    assert len(read_records(search.session.study.folder)) <= 2


def test_failures_that_have_ended_a_search_are_not_forgotten_when_a_trial_beside_them_completes(tmp_path: Path) -> None:
    search = Searching(tmp_path, max_failures=2)
    for _ in range(4):
        assert search.coordinator.next() is not None
    for number, state in ((1, TrialState.FAILED), (2, TrialState.FAILED), (0, TrialState.COMPLETE)):
        search.end(number, state)
    assert search.coordinator.next() is None
    search.end(3, TrialState.FAILED)
    assert search.coordinator.next() is None
    assert [each.number for each in search.session.limits.failures] == [1, 2]
    assert search.shown.notices == ["the search ends early: 2 consecutive trials failed"]


@pytest.mark.parametrize("end", [end_with_ctrl_c, end_with_ctrl_c_in_a_trial])
def test_when_the_user_interrupts_a_search_all_its_trials_are_recorded_as_interrupted_by_the_user(
    tmp_path: Path, end: Callable[[Searching], None]
) -> None:
    search = Searching(tmp_path)
    for _ in range(2):
        assert search.coordinator.next() is not None
    end(search)
    search.coordinator.close()
    assert search.shown.ended[-1].reason == "interrupted by the user"


def test_a_trial_whose_record_says_that_it_is_running_has_not_ended(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    assert search.coordinator.next() is not None
    with pytest.raises(ValueError, match="Trial 0 has not ended"):
        search.end(0, TrialState.RUNNING)
    assert 0 in search.coordinator.running


def test_an_error_in_what_a_process_has_left_ends_the_search_and_no_trial_is_unrecorded(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    for _ in range(2):
        assert search.coordinator.next() is not None
    error = RuntimeError("of a listener")

    def fails_once(record: TrialRecord) -> None:
        search.shown.ended.append(record)
        if len(search.shown.ended) == 1:
            raise error

    search.shown.on_trial_end = fails_once  # type: ignore[method-assign]
    search.coordinator.left(ended(search.coordinator.running[0].so_far))
    search.coordinator.close()
    assert search.coordinator.error is error
    assert [each.state for each in search.shown.ended] == [TrialState.COMPLETE, TrialState.INTERRUPTED]


def test_a_trial_whose_process_dies_while_the_search_ends_is_recorded_as_interrupted(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    assert search.coordinator.next() is not None
    search.coordinator.interruption.note(signal.SIGTERM)
    assert search.coordinator.lost(0, KILLED) is None
    assert search.shown.notices == []
    search.coordinator.end_with(KeyboardInterrupt())
    search.coordinator.close()
    assert [(each.state, each.reason) for each in search.shown.ended] == [
        (TrialState.INTERRUPTED, "interrupted by SIGTERM")
    ]


def test_when_a_search_closes_an_error_of_a_listener_leaves_no_trial_unrecorded(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    for _ in range(3):
        assert search.coordinator.next() is not None
    error, show = RuntimeError("of a listener"), search.shown.on_trial_end

    def fails_once(record: TrialRecord) -> None:
        show(record)
        if len(search.shown.ended) == 1:
            raise error

    search.shown.on_trial_end = fails_once  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="of a listener"):
        search.coordinator.close()
    assert [each.state for each in read_records(search.session.study.folder)] == [TrialState.INTERRUPTED] * 3
    assert not search.coordinator.running


def asks(search: Searching, kind: Kind, trial: int | None = None, **arguments: Any) -> None:
    """Make a request to a search, whose session is at work."""
    folder = search.session.study.folder
    search.session.requests = RequestsInEffect(folder, lambda session: True, search.session.announce)
    file = RequestFile(folder)
    with file.locked():
        file.add(Request(kind, trial, arguments=arguments, sessions=("here",)))


def test_a_time_limit_that_is_set_while_trials_run_reaches_them_with_the_answers_to_their_reports(
    tmp_path: Path,
) -> None:
    now = [0.0]
    search = Searching(tmp_path, clock=lambda: now[0], timeout=60.0)
    coordinator = search.coordinator
    assert coordinator.next() is not None
    now[0] = 50.0
    assert coordinator.report(0, reported(coordinator.running[0].so_far, 0.5)).seconds_left is None
    asks(search, Kind.SET, timeout=100)
    assert coordinator.report(0, reported(coordinator.running[0].so_far, 0.5, 0.4)).seconds_left == 50.0
    now[0] = 90.0
    assert coordinator.exhausted() is None
    now[0] = 100.0
    assert coordinator.exhausted() == "the study's timeout of 100 s, as set by hand, is over"


def test_a_trial_that_leaves_a_paused_search_is_the_first_to_resume_and_no_other_begins(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    coordinator = search.coordinator
    assert [coordinator.next().number for _ in range(2)] == [0, 1]  # type: ignore[union-attr]
    asks(search, Kind.PAUSE)
    said = reported(coordinator.running[1].so_far, 0.5)
    assert coordinator.report(1, said) == Verdict(leave="the search is paused by hand")
    coordinator.ended(Ended(replace(said.so_far, state=TrialState.INTERRUPTED, reason="paused")))
    assert coordinator.next() is None
    assert not coordinator.is_over
    last = reported(coordinator.running[0].so_far, 0.5, is_last=True)
    assert coordinator.report(0, last) == Verdict()  # it is complete
    search.end(0)
    assert coordinator.next() is None
    assert not coordinator.is_over
    asks(search, Kind.UNPAUSE)
    search.coordinator._look_again = -1.0
    assert [coordinator.next().number for _ in range(2)] == [1, 2]  # type: ignore[union-attr]


def test_a_trial_that_loses_its_worker_while_the_search_is_paused_does_not_resume(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    coordinator = search.coordinator
    assert coordinator.next() is not None
    asks(search, Kind.PAUSE)
    assert coordinator.lost(0, KILLED) is None
    assert coordinator.next() is None
    assert not coordinator.is_over
    asks(search, Kind.UNPAUSE)
    again = coordinator.next()
    assert again is not None
    assert again.number == 0


def test_a_requested_trial_is_the_next_to_begin_once(tmp_path: Path) -> None:
    search = Searching(tmp_path, n_trials=2)
    coordinator = search.coordinator
    assert coordinator.next() is not None
    folder = search.session.study.folder
    file = RequestFile(folder)
    with file.locked():
        file.add(Request(Kind.ADD, params={"learning_rate": 0.01}))
    begun = coordinator.next()
    assert begun is not None
    assert begun.params == {"learning_rate": 0.01}
    assert begun.origin is not None
    assert coordinator.next() is not None  # of the own total of two
    for number in range(3):
        search.end(number)
    assert coordinator.next() is None
    assert coordinator.is_over
    assert [each.number for each in search.records.records if each.origin is not None] == [1]


def test_requests_that_become_unreadable_are_said_once_and_the_search_continues(tmp_path: Path) -> None:
    search = Searching(tmp_path)
    asks(search, Kind.STOP, 0)
    assert search.coordinator.next() is not None
    (search.session.study.folder / REQUESTS_FILE).write_text("[")
    for losses in ((0.5,), (0.5, 0.4)):
        said = reported(search.coordinator.running[0].so_far, *losses)
        assert search.coordinator.report(0, said) == Verdict(stop="stopped by hand")
    assert sum("requests.json" in each for each in search.shown.notices) == 1
