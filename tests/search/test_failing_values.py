"""The finding that every trial with some values of a parameter failed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hpsearch import Categorical, Float, Int, SearchSpace, TrialState
from hpsearch.search.result.findings.failing_values import failing_values
from tests.support.rendering import record

FAILED, COMPLETE, PRUNED, RUNNING = TrialState.FAILED, TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING
OPTIM = {"optim": Categorical(["adamw", "sgd", "lion"])}
BATCH = {"batch": Categorical([8, 16, 32, 64, 128])}
RATE = {"rate": Float(1e-5, 1.0, log=True)}


def found(space: Any, *trials: tuple[TrialState, dict[str, Any]]) -> list[str]:
    records = [record(number, None, state, params=params) for number, (state, params) in enumerate(trials)]
    return failing_values(SearchSpace(space), records)


def of(name: str, failed: list[Any], others: list[Any], state: TrialState = COMPLETE) -> list[Any]:
    return [(FAILED, {name: each}) for each in failed] + [(state, {name: each}) for each in others]


@pytest.mark.parametrize(
    ("space", "trials", "said"),
    [
        (OPTIM, of("optim", ["sgd"] * 4, ["adamw", "lion"] * 4), "optim='sgd' failed, none of the 8 others: remove"),
        (OPTIM, of("optim", ["sgd"] * 4 + ["lion"], ["adamw", "lion"] * 6), "optim='sgd' failed, 1 of the 13 others: "),
        (OPTIM, of("optim", ["sgd"] * 4, ["adamw", "lion"] * 4, PRUNED), "optim='sgd' failed, none of the 8 others"),
        (
            BATCH,
            of("batch", [64, 128, 128], [8, 16, 16, 32] * 3),
            "batch of 64 and more failed, none of the 12 others: remove these",
        ),
        (
            RATE,
            of("rate", [0.5, 0.61234, 0.9], [1e-3] * 12),
            "rate of 0.5 and more failed, none of the 12 others: narrow",
        ),
        (RATE, of("rate", [2e-5, 1e-5, 3e-5], [1e-3] * 12), "rate of 3e-05 and less failed, none of the 12 others"),
        ({"x": Int(1, 9)}, of("x", [8, 9, 8, 9], [1, 7] * 5), "x of 8 and more failed, none of the 10 others: narrow"),
        ({"x": Categorical([None, True, 2])}, of("x", [None] * 4, [True, 2] * 5), "x=None failed, none of the 10"),
    ],
)
def test_values_with_which_every_trial_failed_are_said(space: Any, trials: list[Any], said: str) -> None:
    [sentence] = found(space, *trials)
    assert said in sentence
    assert sentence.startswith("All ")


@pytest.mark.parametrize(
    ("space", "trials"),
    [
        (OPTIM, of("optim", ["sgd"] * 2, ["adamw", "lion"] * 40)),  # too few
        (OPTIM, of("optim", ["sgd"] * 3, ["adamw"] * 4)),  # chance
        (OPTIM, of("optim", ["sgd"] * 4, ["adamw", "sgd"] * 8)),  # not all
        (OPTIM, of("optim", ["sgd"] * 9, [])),  # everything failed
        (RATE, of("rate", [0.4, 0.5, 0.6], [1e-3, 0.9] * 9)),  # in the middle of a range
        (OPTIM, of("optim", ["sgd"] * 4, ["adamw", "lion"] * 4, RUNNING)),  # the others may fail too
        (OPTIM, []),
    ],
)
def test_failures_without_a_pattern_are_not_said(space: Any, trials: list[Any]) -> None:
    assert found(space, *trials) == []


def test_two_causes_are_both_said_and_no_failure_is_explained_twice() -> None:
    space = {**OPTIM, **RATE}
    trials = [
        *((FAILED, {"optim": "sgd", "rate": rate}) for rate in (1e-5, 1e-4, 1e-3, 1e-2, 0.3, 1e-5)),
        *((FAILED, {"optim": optim, "rate": 0.5}) for optim in ("adamw", "lion", "lion", "adamw")),
        *((COMPLETE, {"optim": optim, "rate": rate}) for optim in ("adamw", "lion") for rate in (1e-5, 1e-3, 0.1) * 3),
    ]
    first, second = found(space, *trials)
    assert first.startswith("All 6 trials with optim='sgd' failed, 4 of the 22 others")
    assert second.startswith("All 4 trials with rate of 0.5 and more failed, none of the 18 others")


def test_a_parameter_of_a_branch_is_judged_by_the_trials_that_have_it() -> None:
    space = {"schedule": Categorical({"constant": {}, "cosine": {"warmup": Float(0, 1)}})}
    cosine = [(FAILED, 0.9)] * 4 + [(COMPLETE, 0.2)] * 8
    trials = [(state, {"schedule": "cosine", "warmup": warmup}) for state, warmup in cosine]
    [said] = found(space, *trials, *[(COMPLETE, {"schedule": "constant"})] * 8)
    assert said.startswith("All 4 trials with warmup of 0.9 and more failed, none of the 8 others")


def test_failures_by_chance_are_seldom_taken_for_a_pattern() -> None:
    generator, told = random.Random(0), 0
    space = SearchSpace({**OPTIM, **BATCH, **RATE, "y": Float(0, 1)})
    for _ in range(400):
        states = [FAILED if generator.random() < 0.3 else COMPLETE for _ in range(20)]
        records = [record(at, None, state, params=space.sample(generator)) for at, state in enumerate(states)]
        told += bool(failing_values(space, records))
    assert told <= 0.05 * 400
