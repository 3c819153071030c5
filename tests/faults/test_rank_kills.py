"""A search under `torchrun`, of which the agent or a process is killed, ends as if nothing had happened."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.rank_kills import AGENT, FAILS, Kill, Launch, launch, launch_with_restarts
from tests.support.search_processes import (
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    comparable,
    records_on_disk,
)

pytestmark = [pytest.mark.distributed, pytest.mark.fault, pytest.mark.timeout(600)]

SEED = int(os.environ.get("HPSEARCH_KILL_SEED", "1"))
KILLS_OF_EACH = 4
BY_ITSELF = "CommunicationError"  # how a process ends that has lost another one


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Launch, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    whole = launch(folder)
    assert set(whole.ends.values()) == {"done"}, whole.output
    return whole, records_of_ended(folder)


def records_of_ended(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a study that has come to its end; check that it is tidy.

    A callback that kills another process than before is another one, and so the session.
    """
    records = assert_disk_and_storage_agree(folder / "study")
    assert_nothing_is_left_over(folder / "study")
    return [{**comparable(record), "session": None} for record in records]


def some_kill(draw: random.Random, victim: Any, whole: Launch) -> Kill:
    """Choose a moment, most often so late that the search comes some way."""
    rank = draw.randint(0, 1) if victim == AGENT else victim
    event = 1 + draw.randrange(whole.events[0, rank] // draw.choice((1, 2, 4)))
    return Kill(rank, event, AGENT if victim == AGENT else "itself")


def test_a_search_whose_agent_or_ranks_are_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, undisturbed: tuple[Launch, list[dict[str, Any]]]
) -> None:
    whole, records = undisturbed
    draw = random.Random(SEED)
    killed: Counter[Any] = Counter()
    rounds = 0
    while min(killed[victim] for victim in (AGENT, 0, 1)) < KILLS_OF_EACH:
        folder = tmp_path / f"round-{rounds}"
        moments: list[str] = []
        try:
            while True:
                victim = min(draw.sample((AGENT, 0, 1), 3), key=killed.__getitem__)
                kill = some_kill(draw, victim, whole)
                ended = launch(folder, kill)
                moments.append(f"{kill}: {ended.ends}")
                if set(ended.ends.values()) == {"done"}:
                    break
                killed[victim] += 1
                survivors = (0, 1) if victim == AGENT else (1 - victim,)
                assert ended.ends == {(0, rank): BY_ITSELF for rank in survivors}, ended.output
                assert all(each["state"] != "failed" for each in records_on_disk(folder / "study"))
            assert records_of_ended(folder) == records
        except BaseException:
            print(f"HPSEARCH_KILL_SEED={SEED}, {folder}:", *moments, sep="\n  ")
            raise
        rounds += 1
    print(f"{killed.total()} kills in {rounds} studies: {dict(killed)}")


def test_torchrun_restarts_a_search_after_kills_and_it_ends_like_one_that_was_not(
    tmp_path: Path, undisturbed: tuple[Launch, list[dict[str, Any]]]
) -> None:
    ended = launch_with_restarts(tmp_path, [Kill(0, 30), Kill(1, 25)])
    assert ended.code == 0, ended.output
    assert {rank: end for rank, end in ended.ends.items() if rank[0] == 2} == {(2, 0): "done", (2, 1): "done"}
    assert records_of_ended(tmp_path) == undisturbed[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_restarts_a_search_after_an_error_of_one_rank_and_it_continues_with_the_next_trial(
    tmp_path: Path, undisturbed: tuple[Launch, list[dict[str, Any]]], rank: int
) -> None:
    ended = launch_with_restarts(tmp_path, [Kill(rank, 57, FAILS)])
    assert ended.code == 0, ended.output
    assert ended.ends[0, rank] == "ProcessFailedError", ended.output
    assert {process: end for process, end in ended.ends.items() if process[0] == 1} == {(1, 0): "done", (1, 1): "done"}
    records = records_of_ended(tmp_path)
    [failed] = [each for each in records if each["state"] == "failed"]
    assert failed["reason"] == ("RuntimeError: a bad batch (in process 1)" if rank else "RuntimeError: a bad batch")
    assert 0 < failed["number"] < len(records) - 1
    assert records[: failed["number"]] == undisturbed[1][: failed["number"]]
