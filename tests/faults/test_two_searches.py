"""Several processes that run the same search at once share its total, and none of them loses or repeats a trial."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from optuna.terminator import BaseTerminator

from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0, Ladder
from hpsearch.search.store.live_sessions import SILENCE_SECONDS
from tests.support.search_processes import (
    Hold,
    Searches,
    SearchProcess,
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    records_on_disk,
)

pytestmark = pytest.mark.fault

STORAGES = ["sqlite", "journal", "postgresql"]
# A process that waits looks every half second.
LOOKS = 1.5
UNSAVED = {"save_strategy": "no", "num_train_epochs": 1}


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return what a search takes as `storage`, new and empty."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql_url")()
    return {"sqlite": None, "sqlite url": f"sqlite:///{tmp_path / 'mine.db'}", "journal": "journal"}[request.param]


def begun(*processes: SearchProcess) -> Counter[int]:
    return Counter(number for each in processes for number in each.begun())


def only_session(study: Path) -> Path:
    (path,) = (study / "sessions").iterdir()
    return path


@pytest.mark.parametrize("storage", STORAGES, indirect=True)
def test_two_processes_share_the_total_and_run_no_trial_twice(tmp_path: Path, storage: Any) -> None:
    with Searches(tmp_path) as searches:
        processes = searches.start_together(2, n_trials=20, storage=storage, trainer=UNSAVED)
        results = [each.result() for each in processes]
    assert begun(*processes) == Counter(range(20))
    assert min(len(each.begun()) for each in processes) >= 1
    records = assert_disk_and_storage_agree(tmp_path / "study", storage)
    assert [record["number"] for record in records] == list(range(20))
    assert {record["state"] for record in records} == {"complete"}
    assert all(len(record["reports"]) == 1 for record in records)
    assert len({record["params"]["learning_rate"] for record in records}) == 20
    assert_nothing_is_left_over(tmp_path / "study")

    assert results[0] == results[1]
    for record, other in zip(records, results[0]["records"], strict=True):
        assert {**record, "checkpoint": None} == {**other, "checkpoint": None}
    number, value, *_ = results[0]["best"]
    assert value == min(record["values"][0] for record in records) == records[int(number)]["values"][0]
    assert json.loads((tmp_path / "study" / "best.json").read_text())["trial"] == int(number)


WITH_RUNGS: dict[str, Any] = {"pruner": LADDER_OF_0_8_0, "trainer": {"save_strategy": "no", "num_train_epochs": 6}}


def assert_rungs_have_lost_nothing(study: Path, n_trials: int) -> list[dict[str, Any]]:
    records = assert_disk_and_storage_agree(study)
    assert [record["number"] for record in records] == list(range(n_trials))
    assert {record["state"] for record in records} == {"complete", "pruned"}
    for record in records:  # wherever it waited, it went on after its last report
        assert [each["epoch"] for each in record["reports"]] == list(range(1, len(record["reports"]) + 1))
        assert (record["state"] == "complete") == (len(record["reports"]) == 6)
    assert_nothing_is_left_over(study)
    return records


def test_two_processes_share_a_search_with_rungs(tmp_path: Path) -> None:
    with Searches(tmp_path) as searches:
        processes = searches.start_together(2, n_trials=27, **WITH_RUNGS)
        results = [each.result() for each in processes]
    assert_rungs_have_lost_nothing(tmp_path / "study", 27)
    assert set(begun(*processes)) == set(range(27))
    assert results[0] == results[1]


def test_what_waits_goes_on_in_another_process_when_the_one_that_began_it_is_killed(tmp_path: Path) -> None:
    with Searches(tmp_path) as searches:
        first = searches.start(n_trials=18, hold=Hold(6, 1), **WITH_RUNGS)
        first.wait_until_held()
        second = searches.start(n_trials=18, **WITH_RUNGS)
        second.wait_until(lambda: len(second.begun()) >= 2)
        first.kill()
        second.result()
    records = assert_rungs_have_lost_nothing(tmp_path / "study", 18)
    ours = set(first.begun()) - {6}
    assert any(record["number"] in ours & set(second.begun()) for record in records), "none of the first's went on"
    assert 6 in second.begun()


ONE_BUDGET: dict[str, Any] = {**WITH_RUNGS, "n_trials": None, "budget": 5, "pruner": Ladder((1 / 6, 1 / 2), 2)}


@pytest.mark.parametrize("storage", ["sqlite", "journal"], indirect=True)
@pytest.mark.parametrize("is_killed", [False, True], ids=["undisturbed", "killed"])
def test_two_processes_do_not_overshoot_one_budget(tmp_path: Path, storage: Any, is_killed: bool) -> None:
    with Searches(tmp_path) as searches:
        if is_killed:
            first = searches.start(storage=storage, hold=Hold(2, 3), **ONE_BUDGET)
            first.wait_until_held()
            second = searches.start(storage=storage, **ONE_BUDGET)
            second.wait_until(lambda: len(second.ended()) >= 2)
            first.kill()
            second.result()
        else:
            for each in searches.start_together(2, storage=storage, **ONE_BUDGET):
                each.result()
    records = records_on_disk(tmp_path / "study")
    assert {record["state"] for record in records} <= {"complete", "paused", "pruned"}
    assert 4.0 < sum(record["fraction"] for record in records) <= 5.0 + 1e-6


class TakesItsTime(BaseTerminator):
    """Is asked between the look at the trials there are and the choice of a new one."""

    def should_terminate(self, study: Any) -> bool:
        time.sleep(0.3)
        return False


def test_processes_that_choose_at_the_same_moment_do_not_exceed_the_total(tmp_path: Path) -> None:
    with Searches(tmp_path) as searches:
        options = {"n_trials": 2, "storage": "journal", "terminator": TakesItsTime(), "trainer": UNSAVED}
        processes = searches.start_together(3, **options)
        results = [each.result() for each in processes]
    assert begun(*processes) == Counter(range(2))
    assert results[0] == results[1] == results[2]
    assert len(assert_disk_and_storage_agree(tmp_path / "study", "journal")) == 2


@pytest.mark.parametrize("storage", ["sqlite", "sqlite url", "journal", "postgresql"], indirect=True)
def test_processes_may_make_a_new_study_at_the_very_same_moment(tmp_path: Path, storage: Any) -> None:
    with Searches(tmp_path) as searches:
        processes = searches.start_together(3, n_trials=3, storage=storage, trainer=UNSAVED)
        results = [each.result() for each in processes]
    assert [each.get("error") for each in results] == [None] * 3
    assert begun(*processes) == Counter(range(3))
    assert results[0] == results[1] == results[2]
    assert_disk_and_storage_agree(tmp_path / "study", storage)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the records of a search of four trials in one process."""
    with Searches(tmp_path_factory.mktemp("undisturbed")) as searches:
        result: list[dict[str, Any]] = searches.start(n_trials=4).result()["records"]
        return result


def told(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (record["number"], record["state"], record["params"], record["values"], [*map(shown, record["reports"])])
        for record in records
    ]


def shown(report: dict[str, Any]) -> tuple[Any, ...]:
    return report["step"], report["values"], report["metrics"]["eval_loss"]


def begin_with_one_held(searches: Searches, storage: Any) -> tuple[SearchProcess, SearchProcess]:
    """Return a process that stands in trial 1, beyond its first checkpoint, and one that has done all others."""
    held = searches.start(n_trials=4, storage=storage, hold=Hold(trial=1, step=6))
    held.wait_until_held()
    other = searches.start(n_trials=4, storage=storage)
    other.wait_until(lambda: other.ended() == [2, 3])
    return held, other


@pytest.mark.parametrize("storage", STORAGES, indirect=True)
def test_a_killed_process_s_trial_is_taken_over_by_the_other_one(
    tmp_path: Path, storage: Any, undisturbed: list[dict[str, Any]]
) -> None:
    with Searches(tmp_path) as searches:
        held, other = begin_with_one_held(searches, storage)
        assert other.begun() == [2, 3]
        held.kill()
        result = other.result()
    assert other.begun() == [2, 3, 1]
    assert held.steps(1) == [1, 2, 3, 4, 5, 6]
    assert other.steps(1) == [5, 6, 7, 8]
    records = assert_disk_and_storage_agree(tmp_path / "study", storage)
    assert told(records) == told(undisturbed)
    assert told(result["records"]) == told(undisturbed)
    assert_nothing_is_left_over(tmp_path / "study")


@pytest.mark.parametrize("storage", ["sqlite", "journal"], indirect=True)
def test_a_process_that_stands_still_keeps_its_trial(
    tmp_path: Path, storage: Any, undisturbed: list[dict[str, Any]]
) -> None:
    with Searches(tmp_path) as searches:
        held, other = begin_with_one_held(searches, storage)
        held.send(signal.SIGSTOP)
        time.sleep(LOOKS)
        assert other.begun() == [2, 3]
        held.let_go()
        held.send(signal.SIGCONT)
        results = [held.result(), other.result()]
    assert begun(held, other) == Counter(range(4))
    assert held.steps(1) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert results[0] == results[1]
    assert told(assert_disk_and_storage_agree(tmp_path / "study", storage)) == told(undisturbed)


def test_a_trial_that_the_user_ended_in_one_process_goes_on_in_the_other(
    tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    with Searches(tmp_path) as searches:
        held, other = begin_with_one_held(searches, None)
        held.send(signal.SIGINT)
        held.let_go()
        assert held.result()["error"] == "SearchInterrupted"
        result = other.result()
    assert other.begun() == [2, 3, 1]
    assert held.steps(1) + other.steps(1) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert told(result["records"]) == told(undisturbed)
    assert told(assert_disk_and_storage_agree(tmp_path / "study")) == told(undisturbed)


@pytest.mark.parametrize("storage", STORAGES, indirect=True)
def test_a_session_of_another_machine_is_alive_while_its_file_is_fresh(
    tmp_path: Path, storage: Any, undisturbed: list[dict[str, Any]]
) -> None:
    with Searches(tmp_path) as searches:
        gone = searches.start(n_trials=4, storage=storage, hold=Hold(trial=1, step=6))
        gone.wait_until_held()
        session = only_session(tmp_path / "study")
        move_to_another_machine(session)
        gone.kill()
        other = searches.start(n_trials=4, storage=storage)
        other.wait_until(lambda: other.ended() == [2, 3])
        time.sleep(LOOKS)
        assert other.begun() == [2, 3]
        assert session.exists()
        age(session, SILENCE_SECONDS + 1)
        result = other.result()
    assert other.begun() == [2, 3, 1]
    assert other.steps(1) == [5, 6, 7, 8]
    assert told(result["records"]) == told(undisturbed)
    assert told(records_on_disk(tmp_path / "study")) == told(undisturbed)


def move_to_another_machine(session: Path) -> None:
    """Let a session be one of a machine that shares the folder; once its process is killed, nobody sees its lock."""
    session.write_text(json.dumps({**json.loads(session.read_text()), "machine": "elsewhere"}))


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))
