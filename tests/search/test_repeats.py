"""A configuration whose result is known is not trained again; the search of a finite space ends when all are tried."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpsearch import Categorical, Float, Int, SearchInterrupted, SearchSpace, SpaceError, Trial, TrialRecord, TrialState
from hpsearch.coordinator.study_records import StudyRecords
from hpsearch.ledger.proposer import proposed_by
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.search.space.tried_configurations import (
    Tried,
    TriedSoFar,
    choose,
    configuration,
    is_everything_tried,
    leaves,
    untried,
    values_of,
)
from hpsearch.search.store.study_folder import StudyFolder
from hpsearch.search.study import Study
from tests.support.searching import AtStep, HearsNotices, interrupt, states
from tests.support.short_searches import params_of, search
from tests.support.small_trainer import CountsModels, points

TWO_BY_TWO = {"per_device_train_batch_size": Categorical([2, 4]), "num_train_epochs": Int(1, 2)}
BRANCHES = SearchSpace(
    {
        "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.nesterov": Categorical([True, False])}}),
        "weight_decay": Float(0.0, 0.2, step=0.1),
    }
)


def record(number: int, state: TrialState = TrialState.COMPLETE, session: int = 0, **params: Any) -> TrialRecord:
    return TrialRecord(number, f"run-{number}", state, params, dict(params), dict(params), session=session)


def study_of(**budgets: Any) -> Study:
    return Study("study", Path("study"), BRANCHES, objectives=(), n_trials=9, **budgets)


def all_of(space: SearchSpace, stream: str = "") -> list[Any]:
    return [dict(each.params) for each in leaves(space.suggest, 0, stream)]


# Which results are known.


@pytest.mark.parametrize(
    ("trial", "is_known"),
    [
        (record(0, x=1), True),
        (record(0, TrialState.PRUNED, x=1), True),
        (record(0, TrialState.STOPPED, x=1), True),
        (record(0, TrialState.RUNNING, x=1), True),
        (record(0, TrialState.PAUSED, x=1), True),
        (record(0, TrialState.INTERRUPTED, x=1), True),
        (record(0, TrialState.FAILED, x=1), False),
        (record(0, TrialState.REFUSED, x=1), False),
        (record(0, x=2), False),
        (record(0, x=1, y=1), False),
        (record(0, session=1, x=1), False),
        (record(0, TrialState.RUNNING, session=1, x=1), True),
        (TrialRecord(0, "run-0", TrialState.COMPLETE, {"x": 1}, {"x": 1}, {"x": 1}, schedule=({"trial": 0},)), False),
    ],
)
def test_a_result_is_known_of_a_trial_with_the_same_parameters_under_the_same_settings(
    trial: TrialRecord, is_known: bool
) -> None:
    tried = TriedSoFar(study_of(), {0}).of([trial, record(1, x=9)])
    assert (configuration({"x": 1}) in tried.known) is is_known


def test_a_trial_under_way_is_not_known_where_model_init_suggests_more() -> None:
    ended = TrialRecord(0, "run-0", TrialState.COMPLETE, {"x": 1, "width": 3}, {"x": 1}, {"x": 1, "width": 3})
    found = TriedSoFar(study_of(), {0}).of([ended, record(1, TrialState.RUNNING, x=1)])
    assert configuration({"x": 1}) not in found.known


@pytest.mark.parametrize(
    ("ended_before", "session", "is_tried"), [(0, 0, True), (3, 0, True), (4, 0, False), (0, 1, False)]
)
def test_what_has_failed_is_not_known_but_tried_until_a_search_ends_or_the_settings_change(
    ended_before: int, session: int, is_tried: bool
) -> None:
    failed = record(3, TrialState.FAILED, session, x=1)
    tried = TriedSoFar(study_of(), {0}, ended_before=ended_before).of([failed])
    assert not tried.known
    assert tried.failed == ({failed.configuration} if is_tried else set())


@pytest.mark.parametrize(
    ("state", "reason", "budgets", "is_known"),
    [
        ("stopped", "the trial's 2 epochs are used up", {"trial_max_epochs": 2}, True),
        ("stopped", "the trial's 2 epochs are used up", {"trial_max_epochs": 1.5}, True),
        ("stopped", "the trial's 2 epochs are used up", {"trial_max_epochs": 3}, False),
        ("stopped", "the trial's 2 epochs are used up", {}, False),
        ("stopped", "the trial's 2 epochs are used up", {"trial_max_epochs": 3, "trial_timeout": 5.0}, True),
        ("stopped", "the trial's timeout of 5.0 s is over", {"trial_timeout": 5.0}, True),
        ("stopped", "the trial's timeout of 5.0 s is over", {"trial_timeout": 6.0}, False),
        ("stopped", "the trial's timeout of 5.0 s is over", {"trial_timeout": 6.0, "trial_max_epochs": 2}, True),
        ("stopped", "the study's timeout of 5.0 s is over", {"timeout": 5.0}, False),
        ("stopped", "the study's 2 epochs are used up", {"max_epochs": 2}, False),
        ("stopped", "the study's 2 epochs are used up", {"trial_max_epochs": 2}, True),
        ("stopped", "ASHAScheduler lets no trial continue after epochs=2", {"trial_max_epochs": 3}, True),
        ("complete", None, {"trial_max_epochs": 1}, True),
        ("pruned", "pruned after 2 epochs", {"trial_max_epochs": 3}, True),
    ],
)
def test_a_result_is_not_known_if_this_call_would_train_the_trial_for_longer(
    state: str, reason: str | None, budgets: dict[str, Any], is_known: bool
) -> None:
    trial = replace(record(0, TrialState(state), x=1), reason=reason, epochs=2.0, seconds=5.5)
    assert bool(TriedSoFar(study_of(**budgets), {0}).of([trial]).known) is is_known


# What is left of a space.


def test_all_configurations_are_those_of_all_branches() -> None:
    found = all_of(BRANCHES)
    assert len(found) == 9
    assert len({configuration(each) for each in found}) == 9
    assert all(BRANCHES.contains(each) for each in found)


def test_where_the_configurations_begin_depends_on_the_stream_and_which_there_are_does_not() -> None:
    orders = [[configuration(each) for each in all_of(BRANCHES, f"42/{number}")] for number in range(5)]
    assert len({tuple(each) for each in orders}) > 1
    assert len({tuple(sorted(each)) for each in orders}) == 1


def test_the_last_configuration_is_found_and_then_none() -> None:
    texts = [configuration(each) for each in all_of(BRANCHES)]
    left = untried(BRANCHES.suggest, 0, "42/0", set(texts) - {texts[4]})
    assert left is not None
    assert left.configuration == texts[4]
    assert untried(BRANCHES.suggest, 0, "42/0", set(texts)) is None


@pytest.mark.parametrize(
    ("tried", "reserved", "is_over"), [(8, 0, False), (9, 0, True), (8, 1, True), (7, 1, False), (0, 9, False)]
)
def test_all_is_tried_when_trials_have_or_will_have_every_configuration(
    tried: int, reserved: int, is_over: bool
) -> None:
    known = {configuration(each): record(0) for each in all_of(BRANCHES)[:tried]}
    assert is_everything_tried(BRANCHES.suggest, 9, Tried(known), reserved) is is_over


def test_a_space_without_end_is_never_tried() -> None:
    space = SearchSpace({"learning_rate": Float(1e-3, 1e-1), "optim": Categorical(["sgd"])})
    known = {each.configuration: record(0) for each in leaves(space.suggest, 0)}
    assert not is_everything_tried(space.suggest, 1, Tried(known))


def test_a_space_that_raises_is_never_tried_so_that_a_trial_shows_the_error() -> None:
    def suggest(trial: Trial) -> dict[str, Any]:
        raise SpaceError("no space")

    assert not is_everything_tried(suggest, 1, Tried({"{}": record(0)}))


class FirstOf(Trial):
    """A trial whose sampler always proposes the first value."""

    def __init__(self, may_be_given: bool) -> None:
        super().__init__(7)
        self.may_be_given, self._given = may_be_given, dict[str, Any]()

    def report(self, value: float, resource: int) -> None:
        raise AssertionError("nothing is trained")

    def should_prune(self) -> bool:
        raise AssertionError("nothing is trained")

    def propose_again(self, params: Mapping[str, Any] | None = None) -> bool:
        self.params.values_by_name.clear()
        self._given = dict(params or {})
        return True

    def _choose(self, name: str, parameter: Any) -> Any:
        return self._given.get(name, (values_of(parameter) or [None])[0])


@pytest.mark.parametrize(
    ("known", "failed", "may_be_given", "chosen"),
    [
        ({}, {}, True, {1}),
        ({1}, {}, True, {2, 3}),
        ({1}, {2}, True, {3}),
        ({2, 3}, {1}, True, {1}),  # nothing else is left
        ({1, 3}, {2}, True, {2}),
        ({1, 2, 3}, {}, True, {1}),
        ({1}, {}, False, {1}),
        ({}, {1}, False, {1}),
    ],
)
def test_in_place_of_the_default_proposal_one_is_given_that_was_not_tried_else_one_that_failed(
    known: set[int], failed: set[int], may_be_given: bool, chosen: set[int]
) -> None:
    space, trial = SearchSpace({"x": Int(1, 3)}), FirstOf(may_be_given)
    tried = Tried(
        {configuration({"x": each}): record(0, x=each) for each in known},
        frozenset(configuration({"x": each}) for each in failed),
    )
    arguments = choose(trial, space.suggest, space.suggest(trial), tried, "42/7")
    assert arguments["x"] in chosen
    assert trial.params.values_by_name == arguments


class Searcher:
    """Proposes one value after the other, and remembers what was rejected."""

    def __init__(self, *values: int) -> None:
        self.values, self.rejected = list(values), list[tuple[int, int]]()

    def propose(self, number: int) -> dict[str, int]:
        return {"x": self.values.pop(0)}

    def reject(self, number: int, known: TrialRecord) -> None:
        self.rejected.append((number, known.params["x"]))

    def end(self, record: TrialRecord, result: Any) -> None:
        raise AssertionError("nothing has ended")


@pytest.mark.parametrize(
    ("values", "proposed", "rejected"), [([1, 2], 1, []), ([9, 9, 2], 2, [9, 9]), ([9] * 10, 9, [9] * 9)]
)
def test_a_searcher_hears_that_its_proposal_is_known_and_is_asked_ten_times(
    values: list[int], proposed: int, rejected: list[int]
) -> None:
    searcher, known = Searcher(*values), record(0, x=9)
    found = proposed_by(searcher, 3, lambda params: known if params == known.params else None)
    assert found == {"x": proposed}
    assert searcher.rejected == [(3, each) for each in rejected]


@pytest.mark.parametrize(("proposed", "number"), [({"x": 1}, 2), ({"x": 2}, None), ({"y": 1}, None)])
def test_a_proposal_is_compared_with_what_the_space_adds_to_it(
    tmp_path: Path, proposed: dict[str, int], number: int | None
) -> None:
    def function(trial: Any) -> dict[str, Any]:
        return {"x": trial.suggest_categorical("x", [1, 2, 3]), "num_train_epochs": 2}

    study = Study("study", tmp_path, function, objectives=(), n_trials=9)
    records = StudyRecords(study, StudyFolder(study))
    both = {"num_train_epochs": 2}
    records.records = [
        record(0, TrialState.FAILED, x=1, **both),
        replace(record(1, x=1, **both), schedule=({"trial": 0},)),
        record(2, x=1, **both),
        record(3, TrialState.FAILED, x=2, **both),
        record(4, x=1, **both),
    ]
    known = records.known_trial(proposed)
    assert (None if known is None else known.number) == number


# Searches.


def all_different(best: Any) -> bool:
    return max(Counter(map(configuration, params_of(best))).values()) == 1


@pytest.mark.parametrize("kind", ["static", "function", "rungs"])
def test_a_finite_space_is_tried_once_and_the_search_says_so(tmp_path: Path, kind: str) -> None:
    def by_run(trial: Any) -> dict[str, Any]:
        size = trial.suggest_categorical("per_device_train_batch_size", [2, 4])
        return {"per_device_train_batch_size": size, "num_train_epochs": trial.suggest_int("epochs", 1, 2)}

    events, space = HearsNotices(), by_run if kind == "function" else TWO_BY_TWO
    options = {"space": space, "progress": events, "pruner": LADDER_OF_0_8_0 if kind == "rungs" else "none"}
    best = search(tmp_path, 10, **options)
    assert len(params_of(best)) == 4
    assert all_different(best)
    assert "the search ends early: every configuration of this space has been tried" in events.notices
    again = search(tmp_path, 10, **options)
    assert len(params_of(again)) == 4


def test_a_killed_search_of_a_finite_space_makes_the_choices_of_one_that_was_not(tmp_path: Path) -> None:
    space = {"per_device_train_batch_size": Int(1, 4), "num_train_epochs": Int(1, 2)}
    at_once = search(tmp_path / "at once", 10, space=space)
    with pytest.raises(SearchInterrupted):
        search(tmp_path / "in parts", 10, [AtStep(interrupt, run=5, step=1)], space=space)
    in_parts = search(tmp_path / "in parts", 10, space=space)
    assert params_of(in_parts) == params_of(at_once)
    assert len(params_of(at_once)) == 8


def test_what_a_user_wants_to_start_with_is_always_trained(tmp_path: Path) -> None:
    one = {"per_device_train_batch_size": 2, "num_train_epochs": 1}
    best = search(tmp_path, 10, space=TWO_BY_TWO, start_with=[one] * 3)
    assert params_of(best)[:3] == [one] * 3
    assert len(params_of(best)) == 6


class Stubborn(optuna.samplers.RandomSampler):
    """Proposes the first value until it has been asked so often."""

    def __init__(self, patience: int) -> None:
        super().__init__(seed=1)
        self.asked, self.patience = 0, patience

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        self.asked += 1
        return distribution.choices[self.asked > self.patience]


@pytest.mark.parametrize(("patience", "chosen", "asked"), [(10**6, [1, 1], 11), (5, [1, 2], 6)])
def test_a_sampler_of_the_user_is_asked_ten_times_then_its_proposal_is_trained(
    tmp_path: Path, patience: int, chosen: list[int], asked: int
) -> None:
    sampler = Stubborn(patience)
    space = {"per_device_train_batch_size": Categorical([1, 2, 4])}
    best = search(tmp_path, 2, space=space, sampler=sampler)
    assert [each["per_device_train_batch_size"] for each in params_of(best)] == chosen
    assert sampler.asked == asked


def test_a_failed_configuration_is_tried_again_by_the_next_call_only(tmp_path: Path) -> None:
    disk_is_full = threading.Event()
    disk_is_full.set()

    def fail_with_four(trial: Any) -> None:
        if trial.arguments["per_device_train_batch_size"] == 4 and disk_is_full.is_set():
            raise OSError("no space left")

    options = {
        "space": {"per_device_train_batch_size": Categorical([2, 4, 8])},
        "trainer": {"model_init": CountsModels(fail_with_four)},
    }
    first = search(tmp_path, 9, **options)
    assert sorted(states(first)) == ["complete", "complete", "failed"]
    disk_is_full.clear()
    second = search(tmp_path, 9, **options)
    assert len(params_of(second)) == 4
    assert params_of(second)[-1] == {"per_device_train_batch_size": 4}
    assert states(second)[-1] == "complete"


@pytest.mark.parametrize("run", [3, 5])
def test_a_killed_search_with_a_failed_configuration_makes_the_choices_of_one_that_was_not(
    tmp_path: Path, run: int
) -> None:
    space = {"per_device_train_batch_size": Int(1, 4), "num_train_epochs": Int(1, 2)}

    def fail_with_four(trial: Any) -> None:
        if trial.arguments["per_device_train_batch_size"] == 4:
            raise ValueError("four")

    def searched(folder: str, *callbacks: Any) -> Any:
        trainer = {"model_init": CountsModels(fail_with_four)}
        return search(tmp_path / folder, 10, callbacks, space=space, trainer=trainer)

    at_once = searched("at once")
    assert states(at_once).count("failed") == 2
    with pytest.raises(SearchInterrupted) as interrupted:
        searched("in parts", AtStep(interrupt, run=run, step=1))
    assert "failed" in states(interrupted.value.best_run)
    in_parts = searched("in parts")
    assert params_of(in_parts) == params_of(at_once)
    assert states(in_parts) == states(at_once)


def test_results_of_shorter_trials_are_not_known(tmp_path: Path) -> None:
    options = {"space": {"per_device_train_batch_size": Categorical([2, 4])}, "trainer": {"num_train_epochs": 2}}
    assert states(search(tmp_path, 9, trial_max_epochs=1, **options)) == ["stopped"] * 2
    assert states(search(tmp_path, 9, trial_max_epochs=1, **options)) == ["stopped"] * 2
    assert states(search(tmp_path, 9, **options)) == ["stopped"] * 2 + ["complete"] * 2
    assert len(states(search(tmp_path, 9, trial_max_epochs=1, **options))) == 4


def test_results_under_other_arguments_or_data_are_not_known(tmp_path: Path) -> None:
    space = {"per_device_train_batch_size": Categorical([2, 4])}
    assert len(params_of(search(tmp_path, 9, space=space))) == 2
    assert len(params_of(search(tmp_path, 9, space=space, trainer={"weight_decay": 0.5}))) == 4
    data = {"weight_decay": 0.5, "train_dataset": points(4, seed=7)}
    assert len(params_of(search(tmp_path, 9, space=space, trainer=data))) == 6


def test_what_model_init_suggests_is_part_of_the_configuration(tmp_path: Path) -> None:
    model_init = CountsModels(lambda trial: trial.suggest_int("model.width", 1, 10**6))
    space = {"per_device_train_batch_size": Categorical([2])}
    best = search(tmp_path, 3, space=space, trainer={"model_init": model_init})
    assert len(params_of(best)) == 3
