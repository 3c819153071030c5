"""Trials of several objectives pause at rungs, and the best by non-dominated sorting are promoted."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float, Int, Ladder, SearchInterrupted, TrialRecord
from hpsearch.search.decisions.decide import (
    Closing,
    Prune,
    Resume,
    Rules,
    Snapshot,
    Start,
    Stop,
    decide,
)
from hpsearch.search.decisions.promotion_at_rungs import Rungs
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.space.search_space import SearchSpace
from hpsearch.search.study import Study
from hpsearch.search.trial_record import Report, TrialState
from tests.support.at_rungs import GO_ON, PAUSE, PRUNE, RATE
from tests.support.searching import AtStep, Events, interrupt, states
from tests.support.small_trainer import TwoLayers, small_trainer

HALF = Ladder((1 / 6, 1 / 2), 2)
TWO = resolve_objectives(["loss", "num_parameters"], None, has_metrics=True)


def rungs(n_trials: int | None = 20, ladder: Ladder = HALF) -> Rungs:
    return Rungs(Study("s", Path("s"), SearchSpace(RATE), TWO, n_trials), ladder)


def trial(
    number: int, *reports: tuple[float, float], state: TrialState = TrialState.PAUSED, **about: Any
) -> TrialRecord:
    """Return a trial that reported loss and size after 1/6, 1/2 and all of its training run, or some of them."""
    violations = about.pop("violations", {})
    made = tuple(
        Report(values, epoch, epoch, epoch, {"eval_loss": values[0]}, violations, horizon=6.0)
        for epoch, values in zip((1, 3, 6), reports, strict=False)
    )
    values = reports[-1] if reports and state.has_result else ()
    return TrialRecord(number, f"run-{number}", state, {}, reports=made, values=values, violations=violations, **about)


def complete(number: int, *reports: tuple[float, float], **about: Any) -> TrialRecord:
    return trial(number, *reports, state=TrialState.COMPLETE, **about)


def decided(rules: Rules, *trials: TrialRecord, **changes: Any) -> Any:
    return decide(Snapshot(rules, tuple(sorted(trials, key=lambda each: each.number)), **changes))


# 0 is good, 1 is small, and the others, which are better than 1 in the first objective, are dominated by 0.
FOUR = (trial(0, (0.1, 9.0)), trial(1, (0.5, 1.0)), trial(2, (0.4, 9.5)), trial(3, (0.45, 9.6)))


def test_the_half_that_is_promoted_is_good_or_small() -> None:
    assert rungs().paused(FOUR) == list(FOUR)
    assert decided(Rules(20, rungs()), *FOUR) == Resume(0)
    first = complete(0, (0.1, 9.0), (0.1, 9.0), (0.1, 9.0))
    assert decided(Rules(20, rungs()), first, *FOUR[1:]) == Resume(1)
    second = complete(1, (0.5, 1.0), (0.5, 1.0), (0.5, 1.0))
    assert decided(Rules(20, rungs()), first, second, *FOUR[2:]) == Start()


@pytest.mark.parametrize(
    ("values", "verdict", "n_trials"),
    [
        ((0.2, 0.5), GO_ON, 20),  # smaller than all, and better than the small one
        ((0.05, 20.0), GO_ON, 20),  # the best of all, however large
        ((0.65, 9.7), PAUSE, 20),
        ((math.nan, 0.5), PAUSE, 20),  # without a loss it is worst, however small
        ((math.nan, 0.5), PRUNE, 5),
        ((0.05, math.inf), PRUNE, 5),
    ],
)
def test_a_trial_at_a_rung_is_judged_by_all_objectives(
    values: tuple[float, float], verdict: Any, n_trials: int
) -> None:
    now = trial(4, values, state=TrialState.RUNNING)
    promoted = [complete(each.number, *[each.reports[0].values] * 3) for each in FOUR[:2]]
    assert rungs(n_trials).verdict(now, [*promoted, *FOUR[2:]]) == verdict


def test_a_trial_that_breaks_a_constraint_is_worse_than_all_that_hold_them() -> None:
    broken = [trial(4, (0.01, 0.1), violations={"c": 2.0}), trial(5, (0.9, 9.9), violations={"c": 1.0})]
    assert rungs().paused([*FOUR, *broken]) == [*FOUR, broken[1], broken[0]]


def test_what_cannot_be_promoted_is_pruned_and_of_the_rest_the_front_stays() -> None:
    front = [trial(number, (0.1 * number, 10.0 - number)) for number in range(4)]
    worse = [trial(number, (0.9, 20.0 + number)) for number in range(4, 8)]
    assert decided(Rules(8, rungs(8)), *front, *worse) == Prune((4, 5, 6, 7))


def test_the_last_chance_goes_to_the_best_by_the_order_at_the_highest_rung() -> None:
    few = [trial(0, (0.6, 9.0)), trial(1, (0.5, 8.0))]
    assert decided(Rules(2, rungs(2, Ladder((1 / 6, 1 / 2), 3))), *few) == Resume(1)


def test_at_the_end_trials_resume_that_no_trial_of_the_front_was_as_good_as_at_their_rung() -> None:
    good = complete(0, (0.2, 5.0), (0.2, 5.0), (0.2, 5.0))
    smaller, worse = trial(1, (0.3, 4.0)), trial(2, (0.3, 6.0))
    thirds = rungs(3, Ladder((1 / 6, 1 / 2), 3))
    assert thirds.last([good, worse]) is None
    assert thirds.last([good, smaller, worse]) is smaller


def test_a_limit_stops_with_a_result_what_would_be_on_the_front() -> None:
    closing = Closing("the time is over", selects_best=True)
    result = complete(0, (0.2, 5.0), (0.2, 5.0), (0.2, 5.0))
    small, equal, worse = trial(1, (0.9, 1.0)), trial(2, (0.2, 5.0)), trial(3, (0.9, 9.0))
    now = decided(Rules(20, rungs()), result, small, equal, worse, closing=closing)
    assert now == Stop(1, closing.reason)
    stopped = replace(small, state=TrialState.STOPPED, values=(0.9, 1.0))
    assert not isinstance(decided(Rules(20, rungs()), result, stopped, equal, worse, closing=closing), Stop)


def test_a_trial_whose_last_report_has_diverged_in_one_objective_is_worst_whatever_it_reported_before() -> None:
    values = {0.5: (0.05, 0.5), 1.0: (0.05, math.inf)}
    reports = tuple(Report(each, epoch, 1, epoch, {"eval_loss": 0.05}, horizon=6.0) for epoch, each in values.items())
    now = replace(trial(4, state=TrialState.RUNNING), reports=reports)
    assert rungs(5).verdict(now, FOUR) == PRUNE


def test_a_report_that_lacks_one_of_the_objectives_is_not_judged() -> None:
    before = [Report((0.5, 2.0), 0.5, 1, 0.5, {"eval_loss": 0.5, "num_parameters": 2.0}, horizon=6.0)]
    lacks = Report((0.5, math.nan), 1, 2, 1, {"eval_loss": 0.5}, horizon=6.0)
    now = replace(trial(4, state=TrialState.RUNNING), reports=(*before, lacks))
    assert not rungs().is_at_rung(now)


# Searches.

SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True), "model.hidden": Int(1, 12)}


def search(folder: Path, n_trials: int | None = 12, callbacks: Any = (), **options: Any) -> Any:
    changes = {"model_init": lambda trial: TwoLayers(trial.params["model.hidden"]), "num_train_epochs": 6}
    settings = {"progress": False, "storage": "journal", **options}
    trainer = small_trainer(folder, *callbacks, **{**changes, **settings.pop("trainer", {})})
    return trainer.hyperparameter_search(SPACE, ["loss", "num_parameters"], n_trials=n_trials, **settings)


def told(best: Any) -> list[Any]:
    return [(each.params, each.values, each.state, len(each.reports)) for each in best[0].run_summary.records]


@pytest.mark.slow
def test_a_search_of_several_objectives_pauses_promotes_and_says_so(tmp_path: Path) -> None:
    events = Events()
    best = search(tmp_path, 16, progress=events)
    records = best[0].run_summary.records
    assert {"complete", "pruned"} == set(states(best[0]))
    assert {each.state for each in records[:2]} == {TrialState.COMPLETE}
    assert any(len(each.spans) > 1 and each.state is TrialState.COMPLETE for each in records)
    note = "17% and 50% of their training, and the best half is promoted by non-dominated sorting"
    assert any(note in each for each in events.notes)
    assert all(each.load_model() is not None for each in best)
    assert json.loads((tmp_path / "study" / "study.json").read_text())["trials_wait"] is True


@pytest.mark.slow
def test_an_interrupted_search_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole")
    with pytest.raises(SearchInterrupted):
        search(tmp_path / "parts", callbacks=[AtStep(interrupt, run=2, step=6)])
    assert told(search(tmp_path / "parts")) == told(whole)


def test_a_budget_is_not_overshot(tmp_path: Path) -> None:
    records = search(tmp_path, None, budget=4)[0].run_summary.records
    assert sum(each.fraction for each in records) <= 4 + 1e-6
    assert len(records) > 4


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"pruner": None}, "pruner none: every trial runs to completion"),
        ({"pruning_metric": "loss"}, "MedianPruner by eval_loss"),
        ({"pruning_metric": "loss", "pruner": HALF}, "the Ladder is left aside"),
    ],
)
def test_what_the_user_asks_for_takes_the_place_of_rungs(tmp_path: Path, options: dict[str, Any], note: str) -> None:
    events = Events()
    best = search(tmp_path, 6, progress=events, trainer={"num_train_epochs": 2}, **options)
    assert any(note in each for each in events.notes)
    assert not any(len(each.spans) > 1 for each in best[0].run_summary.records)


@pytest.mark.slow
def test_a_study_that_began_before_several_objectives_had_rungs_continues_without_them(tmp_path: Path) -> None:
    search(tmp_path, 4, pruner=None)
    path = tmp_path / "study" / "study.json"
    settings = json.loads(path.read_text())
    assert settings["defaults"].pop("pauses_several") is True
    path.write_text(json.dumps(settings))
    events = Events()
    assert states(search(tmp_path, 8, progress=events)[0]) == ["complete"] * 8
    assert any("began in a version without rungs for several objectives" in each for each in events.notes)
    assert "pauses_several" not in {key for key, value in json.loads(path.read_text())["defaults"].items() if value}
    after = Events()
    assert "pruned" in states(search(tmp_path, 16, progress=after, pruner=HALF)[0])
