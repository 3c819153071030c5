"""The best value so far never gets worse, and names the trial that has had it, whatever has become of it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hpsearch import TrialRecord, TrialState
from hpsearch.reports.best_so_far import BestSoFar
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.trial_record import Replica
from tests.support.rendering import make_study, record, report, reports


def described(records: list[TrialRecord], running: dict[int, tuple[Any, ...]] | None = None, **study: Any) -> str:
    best = BestSoFar(make_study(**study))
    best.take(records, records)
    for number, seen in (running or {}).items():
        for count in range(1, len(seen) + 1):
            best.report(number, seen[:count])
    return best.describe({each.number: each for each in records}, running or {})


COMPLETE = record(2, 0.5, reports=reports(0.25, 0.5))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (described([]), "no result yet"),
        (described([COMPLETE]), "best 0.5 (trial 2)"),
        (described([COMPLETE], {4: reports(0.4)}), "best 0.5 (trial 2)"),
        (described([], {4: reports(0.9, 0.4)}), "best so far 0.9 (trial 4, running)"),
        (described([COMPLETE], {4: reports(0.9)}), "best so far 0.9 (trial 4, running); best result 0.5 (trial 2)"),
        (
            described([record(4, 0.9, TrialState.PAUSED, reports=reports(0.9))]),
            "best so far 0.9 (trial 4, paused)",
        ),
        (
            described([COMPLETE, record(4, 0.9, TrialState.PRUNED, reports=reports(0.9))]),
            "best so far 0.9 (trial 4, pruned); best result 0.5 (trial 2)",
        ),
        (
            described([record(4, 0.4, reports=reports(0.9, 0.4))]),
            "best 0.4 (trial 4, 0.9 before)",
        ),
        (
            described([record(4, 0.4, TrialState.PAUSED, reports=reports(0.9, 0.4))]),
            "best so far 0.9 (trial 4, at step 1)",
        ),
        (
            described([COMPLETE, record(4, 0.9, TrialState.PRUNED, reports=reports(0.9), origin=Replica(2, 1).origin)]),
            "best 0.5 (trial 2)",
        ),
        (described([record(4, 0.9, reports=reports(0.9, 0.4))], scope="all"), "best 0.9 (trial 4)"),
        (
            described([record(4, 0.5, reports=reports(0.5, 0.5))], {5: reports(0.1, 0.8)}, scope="avg"),
            "best 0.5 (trial 4)",
        ),
        (described([COMPLETE], {4: (replace(report(0.9, 1), violations={"runtime": 0.1}),)}), "best 0.5 (trial 2)"),
        (described([COMPLETE], {4: reports(0.9)}, repeats=3), "best 0.5 (trial 2)"),
    ],
)
def test_the_best_is_of_any_trial_and_says_whose_it_is(found: str, told: str) -> None:
    assert found == told


def test_of_several_objectives_the_trials_of_the_front_are_counted() -> None:
    objectives = resolve_objectives(["accuracy", "loss"], ["maximize", "minimize"], has_metrics=True)
    ended = [replace(record(number), values=(0.5, 0.5)) for number in range(2)]
    assert described(ended, objectives=objectives) == "2 on the Pareto front"
    paused = [replace(record(0, state=TrialState.PAUSED), values=(0.5, 0.5))]
    assert described(paused, objectives=objectives) == "1 paused, none complete yet"


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_it_never_gets_worse_whatever_happens_to_trials(direction: str) -> None:
    objectives = resolve_objectives("score", direction, has_metrics=True)
    drawn, best, known = random.Random(3), BestSoFar(make_study(objectives=objectives)), dict[int, TrialRecord]()
    curves: dict[int, list[Any]] = {}
    told: list[float] = []
    for _ in range(300):
        number = drawn.randrange(30)
        if number in known and not known[number].state.is_open:
            continue
        curves.setdefault(number, []).append(report(drawn.gauss(0, 1), len(curves.get(number, ())) + 1))
        best.report(number, curves[number])
        if drawn.random() < 0.5:
            state = drawn.choice([TrialState.PAUSED, TrialState.PRUNED, TrialState.COMPLETE])
            known[number] = record(number, curves[number][-1].value, state, reports=tuple(curves[number]))
            best.take(list(known.values()), [known[number]])
        told.append(float(best.describe(known, curves).partition("best ")[2].removeprefix("so far ").split()[0]))
    assert told == sorted(told, reverse=direction == "minimize")
