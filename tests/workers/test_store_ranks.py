"""Processes that meet in a store; here they are threads, each with a connection of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore

from hpsearch import HpsearchError
from hpsearch.errors import CommunicationError, ProcessFailedError
from hpsearch.executors.processes.rendezvous import Rendezvous
from hpsearch.trial.store_ranks import StoreRanks

Act = Callable[[StoreRanks], Any]


@pytest.fixture
def group() -> tuple[StoreRanks, StoreRanks, Any]:
    """Two processes, and the store in which they meet."""
    rendezvous = Rendezvous(2)
    port = int(rendezvous.variables(0)["MASTER_PORT"])

    def connected() -> Any:
        return PrefixStore("hpsearch", TCPStore("127.0.0.1", port, is_master=False))

    first, second = (StoreRanks(connected(), rank, 2, seconds_to_arrive=0.3) for rank in (0, 1))
    return first, second, rendezvous._store


def outcomes(group: tuple[StoreRanks, StoreRanks, Any], first: Act, second: Act) -> list[Any]:
    """Let each process do something together with the other one; return what it returns, or its error."""
    with ThreadPoolExecutor(2) as threads:
        began: list[Future[Any]] = [
            threads.submit(ranks.together, lambda ranks=ranks, act=act: act(ranks))  # type: ignore[misc]
            for ranks, act in zip(group[:2], (first, second), strict=True)
        ]
        return [each.exception(30) or each.result() for each in began]


def fails(ranks: StoreRanks) -> Any:
    raise ValueError("a bad batch")


def test_all_get_what_the_main_process_decides_and_the_largest_of_what_each_has_given(group: Any) -> None:
    def act(ranks: StoreRanks) -> Any:
        return [
            ranks.decide(lambda: {"from": ranks.rank}),
            ranks.agree(lambda: ranks.rank == 0),
            ranks.largest(ranks.rank, 5 - ranks.rank),
        ]

    assert outcomes(group, act, act) == [[{"from": 0}, True, (1, 5)]] * 2


def test_the_main_process_does_not_wait_for_those_that_never_read(group: Any) -> None:
    assert outcomes(group, lambda ranks: ranks.decide(lambda: 7), lambda ranks: "else") == [7, "else"]


@pytest.mark.parametrize("waits", ["in a read", "at the end"])
def test_an_error_of_one_process_is_raised_in_both_at_once_and_they_continue(group: Any, waits: str) -> None:
    begun = time.monotonic()
    act = (lambda ranks: ranks.read("nothing")) if waits == "in a read" else (lambda ranks: None)
    found = outcomes(group, act, fails)
    assert [type(each) for each in found] == [ValueError, ValueError]
    assert [each.__notes__ for each in found] == [["in process 1"]] * 2
    assert time.monotonic() - begun < 5
    assert outcomes(group, lambda ranks: ranks.decide(lambda: 1), lambda ranks: ranks.decide(lambda: 2)) == [1, 1]


@pytest.mark.slow
def test_a_process_that_does_not_leave_after_an_error_of_another_one_cannot_be_used_again(group: Any) -> None:
    found = outcomes(group, lambda ranks: time.sleep(1.0), fails)
    assert [type(each) for each in found][1] is ProcessFailedError
    assert found[1].rank == 1
    assert isinstance(found[1].error, ValueError)


def test_a_process_that_has_caught_the_error_of_another_one_gets_it_again(group: Any) -> None:
    def catches(ranks: StoreRanks) -> None:
        for _ in range(2):
            with pytest.raises(CommunicationError, match="Process 1 of the trial has failed: ValueError: a bad batch"):
                ranks.read("nothing")

    assert [type(each) for each in outcomes(group, catches, fails)] == [ValueError, ValueError]


def test_a_process_that_waits_for_what_the_main_process_never_writes_fails(group: Any) -> None:
    found = outcomes(group, StoreRanks.leave, lambda ranks: ranks.read("an answer"))
    assert [type(each) for each in found] == [HpsearchError, HpsearchError]
    assert "process 1 waits for 'an answer' of process 0, which has left the function" in str(found[0])


def test_the_store_does_not_grow_from_trial_to_trial(group: Any) -> None:
    def act(ranks: StoreRanks) -> None:
        ranks.decide(lambda: 1)
        ranks.leave()

    keys = []
    for _ in range(5):
        outcomes(group, act, act)
        keys.append(group[2].num_keys())
    assert keys[2] == keys[3] == keys[4]
