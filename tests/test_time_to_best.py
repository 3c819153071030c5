"""The benchmark of the time to the best: what it computes from races, and the trainings it races with."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

import hpsearch
from studies.benchmarks import races
from studies.benchmarks.races import DATA, Record, best_of, peer
from studies.benchmarks.real_tasks import TASKS, MissingData
from studies.benchmarks.time_to_best import Between, Race, quartiles

NEVER = Between(60, math.inf)


def race(*rises: tuple[float, float]) -> Race:
    return Race("ours", 0, 60, 1, rises)


def test_a_side_arrives_when_it_first_sees_a_value_near_the_best() -> None:
    rising = race((3, 0.90), (10, 0.9851), (20, 0.99))
    assert rising.time_to("accuracy", 0.99) == Between(10, 10)
    assert rising.time_to("accuracy", 0.992) == Between(20, 20)
    falling = race((3, 2.5), (10, 2.011), (20, 2.009))
    assert falling.time_to("loss", 2.0) == Between(20, 20)
    assert falling.time_to("loss", 2.5) == Between(3, 3)


def test_of_a_side_that_does_not_arrive_it_is_known_that_it_takes_longer() -> None:
    assert race((3, 0.90)).time_to("accuracy", 0.99) == NEVER
    assert race().time_to("loss", 2.0) == NEVER
    assert str(NEVER) == ">60"


def test_a_side_is_as_good_as_another_one_when_it_first_sees_what_that_saw_in_the_end() -> None:
    other = race((5, 0.80), (50, 0.95))
    assert race((3, 0.90), (10, 0.95), (20, 0.99)).time_to_reach("accuracy", other) == Between(10, 10)
    assert race((3, 0.90)).time_to_reach("accuracy", other) == NEVER
    assert race((3, 0.81), (9, 0.79)).time_to_reach("loss", other) == Between(9, 9)


def test_a_ratio_says_what_is_known_of_it() -> None:
    ten, twenty = Between(10, 10), Between(20, 20)
    assert str(twenty / ten) == "2"
    assert str(NEVER / twenty) == ">3"
    assert str(twenty / NEVER) == "<0.333"
    assert str(NEVER / NEVER) == "?"


def test_quartiles_keep_what_is_not_known() -> None:
    numbers = [NEVER, Between(10, 10), NEVER, Between(30, 30), Between(20, 20)]
    assert [str(each) for each in quartiles(numbers)] == ["20", "30", ">60"]
    assert [str(each) for each in quartiles([NEVER])] == [">60"] * 3
    assert str(quartiles([Between(0, 0.5), Between(2, 2), Between(3, math.inf)])[1]) == "2"


@pytest.mark.parametrize(("metric", "kept"), [("accuracy", [0.5, 0.7]), ("loss", [0.5, 0.4])])
def test_a_record_keeps_what_is_better_than_all_before_while_there_is_time(metric: str, kept: list[float]) -> None:
    record = Record(metric, 60)
    for value in (math.nan, 0.5, 0.5, 0.4, 0.7):
        record.see(value)
    assert [value for _, value in record.rises] == kept
    assert best_of(metric, kept) == kept[-1]
    late = Record(metric, 0)
    late.see(0.5)
    assert not late.rises


@pytest.mark.parametrize("name", TASKS)
def test_a_task_trains_with_parameters_of_its_space_in_ours_and_in_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(races, "TRIALS", 2)
    try:
        task = dataclasses.replace(TASKS[name](DATA, epoch=32), epochs=1)
    except MissingData as missing:
        pytest.skip(str(missing))
    of_ours, of_peer = Record(task.metric, 300), Record(task.metric, 300)
    trainer = task.make_trainer(hpsearch, tmp_path, [of_ours])
    trainer.with_arguments(**task.space.sample(random.Random(0))).train()
    peer(task, of_peer, tmp_path, 0)
    for record in (of_ours, of_peer):
        assert record.trials >= 1
        assert record.rises


def test_a_task_without_its_data_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"train\.tsv is not in"):
        TASKS["sst2"](tmp_path)
