"""How far a search is and the time left: by the training that remains, of all trials."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hpsearch import TrialRecord, TrialState
from hpsearch.reports.line_view import LineView
from hpsearch.reports.search_progress import NO_OUTLOOK, Outlook, Remaining, SearchProgress, remaining_cost
from hpsearch.search.decisions.ladder import Ladder
from hpsearch.search.decisions.repeats import Repeats
from hpsearch.search.metrics.objective import resolve_objectives
from tests.support.rendering import make_study, record, report
from tests.support.searching import RATE
from tests.support.small_trainer import small_trainer

LADDER = Ladder((0.25, 0.5), 2)
COMPLETE, PAUSED, PRUNED = TrialState.COMPLETE, TrialState.PAUSED, TrialState.PRUNED
OBJECTIVES = resolve_objectives("accuracy", None, has_metrics=True)


def known(*fractions: float, state: TrialState = COMPLETE, first: int = 0) -> list[TrialRecord]:
    return [record(first + place, 0.5, state, fraction=each) for place, each in enumerate(fractions)]


def remaining(
    n_trials: int,
    records: Sequence[TrialRecord] = (),
    running: dict[int, float] | None = None,
    ladder: Ladder | None = None,
    repeats: int = 1,
    outlook: Outlook = NO_OUTLOOK,
) -> Remaining:
    return remaining_cost(n_trials, Repeats(repeats, OBJECTIVES), ladder, records, running or {}, outlook)


@pytest.mark.parametrize("pruned", [0, 4])
@pytest.mark.parametrize(
    ("may_prune", "settings", "is_at_most"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"timeout": 100.0}, False),  # it comes first
        (True, {"n_trials": None, "budget": 9.0}, False),  # which pruned trials do not change
    ],
)
def test_where_a_pruner_may_end_trials_the_time_left_is_that_without_it(
    may_prune: bool, settings: dict[str, Any], is_at_most: bool, pruned: int
) -> None:
    study = replace(make_study(10), **settings)
    progress = SearchProgress(study, None, 0.0, may_prune)
    ended = [*known(*[1.0] * 4), *known(*[0.25] * pruned, state=PRUNED, first=4)]
    now = 0.0
    for each in ended:
        progress.start(each.number, 0.0, now)
        progress.step(each.number, 0.05, now)
        now += 20 * (each.fraction - 0.05)
        progress.end(each, now)
    progress.take_records({each.number: each for each in ended})
    found = progress.estimate(now)
    assert found.is_at_most == is_at_most
    if is_at_most:
        assert found.seconds_left == pytest.approx(20 * (6 - pruned), rel=0.1)


def test_a_pruner_changes_nothing_where_trials_are_evaluated_at_their_end_only() -> None:
    progress = SearchProgress(make_study(10), None, 0.0, may_prune=True)
    progress.start(0, 0.0, 0.0)
    progress.step(0, 0.5, 1.0)
    last = replace(known(1.0)[0], reports=(replace(report(0.5, 4), horizon=4.0),))
    progress.end(last, 2.0)
    progress.take_records({0: last})
    assert not progress.estimate(2.0).is_at_most


@pytest.mark.parametrize(
    ("found", "cost"),
    [
        (remaining(4), 4.0),
        (remaining(4, known(1.0)), 3.0),
        (remaining(4, known(1.0), {1: 0.75}), 2.25),
        (remaining(2, known(0.75, state=TrialState.INTERRUPTED), {1: 0.5}), 0.75),
        (remaining(1, known(1.0, 1.0)), 0.0),
        (remaining(2, known(0.5, state=TrialState.REFUSED)), 2.0),
    ],
)
def test_without_rungs_each_trial_is_expected_to_complete_until_some_do_not(found: Remaining, cost: float) -> None:
    assert found.cost == pytest.approx(cost)


def test_where_trials_are_pruned_those_to_come_cost_as_much_as_the_later_ones_did() -> None:
    early, late = known(*[1.0] * 20), known(*[0.25, 0.25, 0.25, 1.0] * 5, first=20)
    assert remaining(50, [*early, *late]).cost == pytest.approx(10 * 0.44, abs=0.03)  # 0.4375 is their mean
    beyond = remaining(40, [*early, *late[:-1]], {39: 0.5}).running[39]
    assert beyond == pytest.approx(0.5)  # none was pruned so late


@pytest.mark.parametrize(
    ("found", "cost"),
    [
        (remaining(16, ladder=LADDER), 16 * 0.25 + 8 * 0.25 + 4 * 0.5),
        (remaining(16, known(*[0.25] * 8, state=PAUSED), ladder=LADDER), 2.0 + 4 * 0.25 + 2 * 0.5),
        (remaining(16, ladder=Ladder((0.25, 0.5), 2, complete_first=16)), 16.0),
        (remaining(2, known(0.25, 0.25, state=PRUNED), ladder=LADDER), 0.0),
        (remaining(2, known(0.25, state=PRUNED), {1: 0.75}, ladder=LADDER), 0.25),
        (remaining(4, known(0.3, 0.3, state=PRUNED), {2: 0.1, 3: 0.5}, ladder=Ladder((0.25,), 2)), 0.2 + 0.5 + 0.57),
    ],
)
def test_at_rungs_a_part_of_the_trials_is_promoted_and_paused_ones_are_among_them(
    found: Remaining, cost: float
) -> None:
    assert found.cost == pytest.approx(cost, rel=0.2)


def test_what_the_rungs_say_of_promotions_is_heeded() -> None:
    paused = known(*[0.25] * 8, state=PAUSED)
    as_usual = remaining(8, paused, ladder=LADDER).cost
    assert remaining(8, paused, ladder=LADDER, outlook=Outlook(misleading=(0.25,))).cost > as_usual + 0.5
    assert remaining(8, paused, ladder=LADDER, outlook=Outlook(least_complete=8, has_last=True)).cost > as_usual + 2
    assert remaining(8, paused, ladder=LADDER, outlook=Outlook(least_complete=8)).cost == as_usual


def test_where_nothing_is_evaluated_before_the_end_no_rung_ends_a_trial() -> None:
    at_end = (replace(report(0.5, 10), horizon=10.0),)
    ended = [record(number, 0.5, fraction=1.0, reports=at_end) for number in range(2)]
    assert remaining(6, ended, ladder=LADDER).cost == pytest.approx(4.0)


def test_repeats_of_the_best_trials_are_still_to_come() -> None:
    assert remaining(9, known(*[1.0] * 9), repeats=3).cost == pytest.approx(3 + 1)


def search(trials: int, seconds: float, workers: int = 1, compiling: float = 0.0) -> SearchProgress:
    """Return a search of which this number of trials have been trained to completion, one after another."""
    progress = SearchProgress(make_study(20), None, 0.0)
    ended: dict[int, TrialRecord] = {}
    now = 0.0
    for first in range(0, trials, workers):
        numbers = range(first, min(first + workers, trials))
        for number in numbers:
            progress.start(number, 0.0, now)
        begin = now + (compiling if first == 0 else 0.0)
        for number in numbers:
            progress.step(number, 0.01, begin + 0.01 * seconds)
        now = begin + seconds
        for number in numbers:
            progress.end(record(number, 0.5, fraction=1.0), now)
            ended[number] = record(number, 0.5, fraction=1.0)
        progress.take_records(ended)
    return progress


def test_the_pace_is_that_after_the_first_step_of_all() -> None:
    fraction, left, _ = search(5, 10.0, compiling=600.0).estimate(650.0)
    assert fraction == 0.25
    assert left == pytest.approx(150, rel=0.02)


def test_parallel_trials_share_what_remains_and_the_last_ones_leave_workers_without_any() -> None:
    assert search(8, 10.0, workers=4).estimate(20.0).seconds_left == pytest.approx(
        12 / 4 * 10 + 10 * 0.5 * 3 / 4, rel=0.02
    )


def test_a_slow_trial_that_runs_takes_as_long_as_it_is_slow() -> None:
    progress = search(19, 10.0, workers=1)
    progress.start(19, 0.0, 190.0)
    progress.step(19, 0.01, 190.0)
    progress.step(19, 0.11, 230.0)
    assert progress.estimate(230.0).seconds_left == pytest.approx(0.89 * 400, rel=0.02)


def test_a_trial_that_is_the_last_one_to_run_is_not_shared_by_workers() -> None:
    progress = search(19, 10.0, workers=2)
    progress.start(19, 0.0, 100.0)
    progress.step(19, 0.01, 100.1)
    progress.step(19, 0.5, 105.0)
    assert progress.estimate(105.0).seconds_left == pytest.approx(5.0, rel=0.02)


def test_a_trial_that_does_not_say_how_far_it_is_is_as_far_as_trials_are_then() -> None:
    progress = search(19, 10.0)
    progress.start(19, 0.0, 190.0)
    assert progress.estimate(195.0).seconds_left == pytest.approx(5.0, rel=0.05)
    assert progress.estimate(900.0).seconds_left == pytest.approx(1.0, rel=0.05)


def test_a_resumed_session_knows_what_was_trained_but_not_how_fast_until_it_trains() -> None:
    progress = SearchProgress(make_study(4), None, 0.0)
    progress.take_records({each.number: each for each in known(1.0, 1.0)})
    assert progress.estimate(0.0) == (0.5, None, False)


def test_a_trial_that_has_lost_its_worker_has_not_trained_twice() -> None:
    progress = SearchProgress(make_study(1), None, 0.0)
    progress.start(0, 0.0, 0.0)
    for at, fraction in ((0.0, 0.1), (50.0, 0.6), (60.0, 0.2), (70.0, 0.3)):
        progress.step(0, fraction, at)
    assert progress.estimate(70.0).seconds_left == pytest.approx(70.0)


def test_a_time_limit_that_is_set_while_the_search_runs_is_counted_down() -> None:
    view = LineView(Console(file=io.StringIO()), clock=lambda: 100.0)
    view.on_search_begin(make_study(4), [], [])
    assert view.state.estimate(105.0).seconds_left is None
    view.on_study_changed(make_study(4, timeout=20.0))
    assert view.state.estimate(105.0).seconds_left == pytest.approx(15.0)


class Watching(LineView):
    """Notes whether a pruner may end trials, and prints nothing."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.may_prune: bool | None = None

    def on_trial_end(self, record: TrialRecord) -> None:
        super().on_trial_end(record)
        self.may_prune = self.state.progress.may_prune


@pytest.mark.parametrize(
    ("options", "may_prune"), [({"pruner": "median"}, True), ({"pruner": None}, False), ({}, False)], ids=str
)
def test_a_search_knows_whether_a_pruner_may_end_trials(
    tmp_path: Path, options: dict[str, Any], may_prune: bool
) -> None:
    view, trainer = Watching(), small_trainer(tmp_path, num_train_epochs=4)
    trainer.hyperparameter_search(RATE, "loss", 4, storage="journal", progress=view, **options)
    assert view.may_prune == may_prune
