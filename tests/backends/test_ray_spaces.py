"""Domains of Ray Tune and our parameters have the same values; what has no counterpart is drawn, and repeats."""

from __future__ import annotations

import copy
import json
import logging
import math
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ray import cloudpickle, tune
from ray.tune.search import sample
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.variant_generator import generate_variants

from hpsearch import (
    Categorical,
    FixedTrial,
    Float,
    Int,
    SearchInterrupted,
    SearchSpace,
    SpaceError,
    TrialRecord,
    TrialState,
)
from hpsearch.coordinator.study_records import StudyRecords
from hpsearch.executors.ray_executor.ray_domains import from_searcher, to_ray
from hpsearch.executors.ray_executor.ray_spaces import RaySpace, drawn, from_ray
from hpsearch.search.space.initial_trials import resolve_start
from hpsearch.search.store.study_folder import StudyFolder
from hpsearch.search.study import Study, as_space
from tests.support.optuna_logging import optuna_logs
from tests.support.searching import AtStep, interrupt
from tests.support.small_trainer import small_trainer

N_DRAWS = 2000


class AnyTrial(FixedTrial):
    """A trial without a study: it chooses at random, from its number and the parameter's name."""

    def __init__(self, number: int = 0) -> None:
        super().__init__({}, number)

    def _choose(self, name: str, parameter: Any) -> Any:
        return SearchSpace({name: parameter}).sample(random.Random(f"{self.number}/{name}"))[name]


def arguments(hp_space: Any, number: int = 0, seed: int = 42) -> dict[str, Any]:
    """What a study gets from the space for a trial."""
    space = as_space(from_ray(hp_space, seed))
    study = Study("study", Path("unused"), space, objectives=(), n_trials=1)
    return study.suggest(AnyTrial(number))


def by_ray(domain: sample.Domain, n_draws: int = N_DRAWS) -> list[Any]:
    """Draws of Ray's own sampler."""
    stream = np.random.default_rng(0)
    return [domain.sample(random_state=stream) for _ in range(n_draws)]


def translated(domain: Any) -> Any:
    space = from_ray({"x": domain}, 42)
    assert isinstance(space, SearchSpace)
    return space["x"]


def values_of(parameter: Any) -> list[Any]:
    """All values of a discrete parameter."""
    if isinstance(parameter, Categorical):
        return list(parameter.choices)
    n_steps = round((parameter.top - parameter.low) / parameter.step)
    return [parameter.low + place * parameter.step for place in range(n_steps + 1)]


# From Ray: exact counterparts.

CONTINUOUS = {
    "uniform": (tune.uniform(-1, 2), Float(-1.0, 2.0)),
    "loguniform": (tune.loguniform(1e-6, 1e-4), Float(1e-6, 1e-4, log=True)),
    "of_numpy": (tune.uniform(np.float64(0.5), np.int64(2)), Float(0.5, 2.0)),
    "without_a_sampler": (sample.Float(0.0, 1.0), Float(0.0, 1.0)),
}
DISCRETE = {
    "quniform": (tune.quniform(0.1, 0.3, 0.1), Float(0.1, 0.3, step=0.1)),
    "quniform_below_zero": (tune.quniform(-0.5, 0.5, 0.25), Float(-0.5, 0.5, step=0.25)),
    "quniform_of_thirds": (tune.quniform(0, 1, 1 / 3), Float(0.0, 0.9999999999999999, step=1 / 3)),
    "quniform_of_whole_numbers": (tune.quniform(2, 10, 2), Float(2.0, 10.0, step=2.0)),
    "quniform_of_one_value": (tune.quniform(0.2, 0.2, 0.1), Float(0.2, 0.2, step=0.1)),
    "randint": (tune.randint(3, 7), Int(3, 6)),
    "randint_of_one_value": (tune.randint(3, 4), Int(3, 3)),
    "randint_of_numpy": (tune.randint(np.int64(-2), np.int64(2)), Int(-2, 1)),
    "lograndint": (tune.lograndint(1, 6), Int(1, 5, log=True)),
    "qrandint": (tune.qrandint(2, 10, 2), Int(2, 10, step=2)),
    "qrandint_between_multiples": (tune.qrandint(3, 11, 4), Int(4, 8, step=4)),
    "qrandint_below_zero": (tune.qrandint(-7, 7, 3), Int(-6, 6, step=3)),
    "qrandint_of_one": (tune.qrandint(2, 6, 1), Int(2, 5)),
    "qlograndint_of_one": (tune.qlograndint(2, 6, 1), Int(2, 5, log=True)),
    "choice": (tune.choice([None, "a", 2, 0.5, True]), Categorical((None, "a", 2, 0.5, True))),
    "choice_of_numpy": (tune.choice(np.array([4, 8])), Categorical((4, 8))),
    "choice_without_a_sampler": (sample.Categorical(["a", "b"]), Categorical(("a", "b"))),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_continuous_domain_becomes_the_parameter_with_its_values(name: str) -> None:
    domain, expected = CONTINUOUS[name]
    parameter = translated(domain)
    assert parameter == expected
    assert type(parameter.low) is float
    values = by_ray(domain)
    assert all(parameter.contains(value) for value in values)
    middle = math.sqrt(parameter.low * parameter.high) if parameter.log else (parameter.low + parameter.high) / 2
    assert 0.45 < sum(value < middle for value in values) / N_DRAWS < 0.55


@pytest.mark.feature(5)
@pytest.mark.parametrize("name", DISCRETE)
def test_a_discrete_domain_becomes_the_parameter_with_exactly_its_values(name: str) -> None:
    domain, expected = DISCRETE[name]
    parameter = translated(domain)
    assert parameter == expected
    drawn_by_ray = {repr(from_searcher("x", parameter, value)) for value in by_ray(domain)}
    assert {repr(from_searcher("x", parameter, value)) for value in values_of(parameter)} == drawn_by_ray
    ours = SearchSpace({"x": parameter})
    stream = random.Random(0)
    assert {repr(from_searcher("x", parameter, ours.sample(stream)["x"])) for _ in range(N_DRAWS)} == drawn_by_ray
    numbers = [value for value in by_ray(domain) if isinstance(value, float)]
    assert all(math.isclose(value, from_searcher("x", parameter, value)) for value in numbers)


@pytest.mark.parametrize("base", [2, 10])
def test_the_base_of_a_logarithm_makes_no_difference(base: int) -> None:
    with pytest.warns(Warning, match="base"):
        domains = tune.loguniform(1e-3, 1e-1, base), tune.lograndint(1, 100, base)
    assert [translated(domain) for domain in domains] == [Float(1e-3, 1e-1, log=True), Int(1, 99, log=True)]


@settings(max_examples=60, deadline=None)
@given(low=st.integers(-40, 40), size=st.integers(0, 40), q=st.integers(1, 9))
def test_whole_steps_have_the_values_of_ray_or_are_refused_as_ray_refuses_them(low: int, size: int, q: int) -> None:
    domain = tune.qrandint(low, low + size, q)
    try:
        values = set(by_ray(domain, 400))
    except ValueError:
        with pytest.raises(SpaceError, match="'x': the range from"):
            translated(domain)
    else:
        assert set(values_of(translated(domain))) == values


@settings(max_examples=60, deadline=None)
@given(low=st.integers(-12, 12), size=st.integers(0, 12), q=st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.05, 1e-3, 2.5]))
def test_real_steps_have_the_values_of_ray(low: int, size: int, q: float) -> None:
    domain = tune.quniform(low * q, (low + size) * q, q)
    parameter = translated(domain)
    values = {round(value / q) for value in by_ray(domain, 600)}
    assert {round(value / q) for value in values_of(parameter)} == values == set(range(low, low + size + 1))
    assert parameter.top == parameter.high


def test_ours_and_those_of_ray_make_one_space() -> None:
    ours = Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": tune.uniform(0, 0.9)}}, default="sgd")
    space = from_ray({"optim": ours, "seed": Int(1, 9), "learning_rate": tune.loguniform(1e-5, 1e-3)}, 42)
    assert isinstance(space, SearchSpace)
    assert list(space) == ["optim", "seed", "learning_rate"]
    assert space.all_parameters()["optim.momentum"] == Float(0.0, 0.9)
    assert space.defaults() == {"optim": "sgd"}
    assert drawn(space) == []


OURS = {"seed": Int(1, 9)}


@pytest.mark.parametrize("given_space", [None, OURS, SearchSpace(OURS), {}, 3, FixedTrial, {"x": {"y": [1]}}])
def test_what_has_nothing_of_ray_is_returned_as_it_is(given_space: Any) -> None:
    assert from_ray(given_space, 42) is given_space
    assert drawn(given_space) == []


# From Ray: functions of a trial.


def test_constants_are_passed_on_and_the_rest_is_suggested() -> None:
    space = from_ray({"seed": tune.randint(1, 5), "weight_decay": 0.1, "optim_args": {"a": [1]}, "x": Int(1, 3)}, 42)
    trial = AnyTrial()
    returned = space(trial)
    assert list(returned) == ["seed", "weight_decay", "optim_args", "x"]
    assert (returned["weight_decay"], returned["optim_args"]) == (0.1, {"a": [1]})
    assert set(trial.params) == {"seed", "x"}
    assert (trial.params["seed"], trial.params["x"]) == (returned["seed"], returned["x"])
    returned["optim_args"]["a"].append(2)
    assert space(AnyTrial(1))["optim_args"] == {"a": [1]}
    assert repr(space) == "RaySpace(suggested: seed, x; constant: weight_decay, optim_args)"
    assert space.parameters == {"seed": Int(1, 4), "x": Int(1, 3)}


def function() -> None:
    """A choice."""


class Thing:
    """A choice whose text has an address in it."""


@pytest.mark.parametrize(
    ("choices", "texts"),
    [
        ([[0.9, 0.99], [0.8, 0.9]], ["[0.9, 0.99]", "[0.8, 0.9]"]),
        ([None, {"a": 1}], [None, "{'a': 1}"]),
        ([1, True, 1.0], [1, "True", "1.0"]),
        (["x", "x", "y"], ["x", "'x'", "y"]),
        ([[1], "[1]"], ["[1]", "'[1]'"]),
        ([function, Thing], ["<function function>", "<class 'tests.backends.test_ray_spaces.Thing'>"]),
        ([Thing(), Thing()], [f"<{__name__}.Thing object>", f"<{__name__}.Thing object> (1)"]),
        ([math.nan, 1.0], ["nan", 1.0]),
        ([["x" * 200], ["x" * 201]], ["['" + "x" * 78, "['" + "x" * 78 + " (1)"]),
    ],
)
def test_choices_that_a_study_cannot_store_are_suggested_by_their_texts(choices: list[Any], texts: list[Any]) -> None:
    space = from_ray({"x": tune.choice(choices)}, 42)
    assert isinstance(space, RaySpace)
    assert space.parameters is not None
    assert repr(space.parameters["x"].choices) == repr(tuple(texts))
    seen = {}
    for number in range(60):
        trial = AnyTrial(number)
        returned = space(trial)["x"]
        seen[repr(trial.params["x"])] = returned
        place = next(place for place, text in enumerate(texts) if repr(text) == repr(trial.params["x"]))
        assert type(returned) is type(choices[place])
        assert returned == choices[place] or isinstance(returned, Thing) or math.isnan(returned)
    assert set(seen) == set(map(repr, texts))
    assert drawn(space) == []


def test_a_chosen_list_is_the_trials_own() -> None:
    space = from_ray({"x": tune.choice([[1]]), "y": tune.grid_search([[2]])}, 42)
    for number in range(2):
        returned = space(AnyTrial(number))
        assert returned == {"x": [1], "y": [2]}
        returned["x"].append(3)
        returned["y"].append(3)


DRAWN: dict[str, Any] = {
    "randn": tune.randn(3.0, 0.5),
    "qrandn": tune.qrandn(0.0, 1.0, 0.25),
    "qloguniform": tune.qloguniform(0.1, 1.0, 0.1),
    "qlograndint": tune.qlograndint(5, 100, 5),
    "sample_from_python": tune.sample_from(lambda config: random.uniform(0, 1)),
    "sample_from_numpy": tune.sample_from(lambda: np.random.normal()),
    "sample_from_torch": tune.sample_from(lambda _: torch.rand(1).item()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_has_no_counterpart_is_drawn_and_the_same_in_each_session(name: str) -> None:
    hp_space = {name: DRAWN[name], "other": DRAWN[name]}
    values = [arguments(hp_space, number) for number in range(30)]
    streams = random.random(), np.random.rand(), torch.rand(1)
    assert len({each[name] for each in values}) > 5
    assert sum(each[name] == each["other"] for each in values) < 15
    random.seed(len(streams))
    np.random.seed(7)
    assert [arguments(hp_space, number) for number in reversed(range(30))] == values[::-1]
    assert [arguments(hp_space, number, seed=43) for number in range(30)] != values
    assert drawn(hp_space) == drawn(from_ray(hp_space, 42)) == [name, "other"]


@pytest.mark.parametrize("name", ["randn", "qrandn", "qloguniform", "qlograndint"])
def test_what_is_drawn_is_distributed_as_ray_draws_it(name: str) -> None:
    space = from_ray({"x": DRAWN[name]}, 42)
    ours, rays = [space(AnyTrial(number))["x"] for number in range(N_DRAWS)], by_ray(DRAWN[name])
    for value in {*ours, *rays}:
        assert abs(sum(each <= value for each in ours) - sum(each <= value for each in rays)) < 0.06 * N_DRAWS


def test_drawing_leaves_the_streams_of_the_program_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    arguments(DRAWN)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda config: config["learning_rate"] * 2,
        lambda config: config.learning_rate * 2,
        lambda spec: spec.config.learning_rate * 2,
        lambda spec: spec["config"]["learning_rate"] * 2,
        lambda config: config.get("learning_rate", 0) * 2,
        lambda config: dict(config)["learning_rate"] * 2,
        lambda config: copy.deepcopy(config)["learning_rate"] * 2,
        lambda config: {**config}["learning_rate"] * 2 if "learning_rate" in config and "x" not in config else None,
    ],
)
def test_sample_from_sees_the_other_values(function: Any) -> None:
    hp_space = {"x": tune.sample_from(function), "learning_rate": tune.loguniform(1e-5, 1e-3)}
    for number in range(5):
        returned = arguments(hp_space, number)
        assert returned["x"] == 2 * returned["learning_rate"]


def test_sample_from_sees_constants_grids_texts_draws_and_other_functions_in_any_order() -> None:
    seen = arguments(
        {
            "all": tune.sample_from(lambda c: [c["half"], c["constant"], c["grid"], c["list"], c["noise"], c["ours"]]),
            "half": tune.sample_from(lambda spec: spec.config.noise / 2),
            "noise": tune.randn(),
            "constant": 3,
            "grid": tune.grid_search(["a", "b"]),
            "list": tune.choice([[1]]),
            "ours": Int(4, 4),
        },
        number=1,
    )
    assert seen["all"] == [seen["noise"] / 2, 3, "b", [1], seen["noise"], 4]
    assert list(seen) == ["all", "half", "noise", "constant", "grid", "list", "ours"]


def test_trials_go_through_the_points_of_all_grids_and_begin_again() -> None:
    hp_space = {
        "b": tune.grid_search(["x", "y", "z"]),
        "learning_rate": tune.loguniform(1e-5, 1e-3),
        "a": {"grid_search": np.array([10, 20])},
        "c": sample.Categorical([None]).grid(),
    }
    space = from_ray(hp_space, 42)
    assert space.n_points == 6
    points = [(each["a"], each["b"], each["c"]) for each in (space(AnyTrial(number)) for number in range(8))]
    expected = [(a, b, None) for b in "xyz" for a in (10, 20)]
    assert points == [*expected, *expected[:2]]
    assert type(points[0][0]) is int
    assert len({space(AnyTrial(number))["learning_rate"] for number in range(8)}) == 8


def test_the_order_of_the_points_is_that_of_ray() -> None:
    grids = {"b": tune.grid_search([1, 2, 3]), "a": tune.grid_search(["x", "y"]), "c": tune.grid_search([True, False])}
    space = from_ray(grids, 42)
    points = [spec for _, spec in generate_variants(grids)]
    assert [space(AnyTrial(number)) for number in range(space.n_points)] == points


@pytest.mark.feature(5)
@pytest.mark.parametrize("kind", ["ignores_the_trial", "object", "method"])
def test_a_function_may_return_domains(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def made() -> dict[str, Any]:
        return {
            "learning_rate": tune.loguniform(1e-6, 1e-4),
            "num_train_epochs": tune.choice([2, 3]),
            "seed": tune.grid_search([7, 8]),
            "noise": tune.randn(),
            "ours": Float(0.0, 1.0),
            "constant": "c",
        }

    class Asks:
        def __call__(self, trial: Any) -> dict[str, Any]:
            return made()

    given_space = {"ignores_the_trial": lambda _: made(), "object": Asks(), "method": Asks().__call__}[kind]
    space = from_ray(given_space, 42)
    assert drawn(space) == []
    with caplog.at_level(logging.WARNING):
        trials = [AnyTrial(number) for number in range(4)]
        returned = [space(trial) for trial in trials]
    for trial, values in zip(trials, returned, strict=True):
        assert set(trial.params) == {"learning_rate", "num_train_epochs", "ours"}
        assert all(values[name] == trial.params[name] for name in trial.params)
        assert 1e-6 <= values["learning_rate"] <= 1e-4
    assert [values["seed"] for values in returned] == [7, 8, 7, 8]
    assert drawn(space) == ["noise"]
    assert [record.getMessage() for record in caplog.records] == [
        "hp_space: drawn at random in each trial, not learned from other trials: noise"
    ]
    assert [from_ray(given_space, 42)(AnyTrial(number)) for number in range(4)] == returned
    assert repr(space) == repr(given_space)
    assert from_ray(space, 42) is space


def test_a_function_that_suggests_works_as_before() -> None:
    def suggests(trial: Any) -> None:
        trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)
        trial.suggest_categorical("optim", ["adamw_torch", "sgd"])

    space = from_ray(suggests, 42)
    assert space.__name__ == "suggests"
    assert space(AnyTrial()) is None
    assert set(arguments(suggests)) == {"learning_rate", "optim"}
    returned = {"seed": Int(1, 9), "x": [1]}
    assert from_ray(lambda trial: returned, 42)(AnyTrial()) is returned
    assert from_ray(lambda trial: 3, 42)(AnyTrial()) == 3


def test_a_function_may_suggest_and_return_domains() -> None:
    def both(trial: Any) -> dict[str, Any]:
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)
        return {
            "learning_rate": rate,
            "warmup_steps": tune.randint(0, 1 + (rate > 1e-4)),
            "twice": tune.sample_from(lambda config: 2 * config["learning_rate"]),
        }

    found = [arguments(both, number) for number in range(20)]
    assert all(each["twice"] == 2 * each["learning_rate"] for each in found)
    assert {each["warmup_steps"] for each in found} == {0, 1}


def test_a_resumed_search_knows_that_a_function_returns_a_grid_before_its_first_trial(tmp_path: Path) -> None:
    def function() -> Any:
        return from_ray(lambda trial: {"size": tune.grid_search([2, 4]), "seed": tune.choice([1])}, 42)

    study = Study("study", tmp_path, function(), objectives=(), n_trials=4)
    records = StudyRecords(study, StudyFolder(study))
    params = [{"size": size, "seed": 1} for size in (2, 4)]
    records.records = [
        TrialRecord(number, f"run-{number}", TrialState.COMPLETE, each, each, each)
        for number, each in enumerate(params)
    ]
    assert {each.configuration for each in records.records} == set(records.tried().known)
    assert not records.is_everything_tried(2, ())


def test_the_defaults_of_the_trainer_can_start_a_space_of_ray() -> None:
    class Arguments:
        learning_rate = 5e-5
        seed = 77

    hp_space = {"learning_rate": tune.loguniform(1e-6, 1e-4), "seed": tune.randint(1, 9), "noise": tune.randn()}
    assert resolve_start("defaults", from_ray(hp_space, 42), Arguments()) == ({"learning_rate": 5e-5},)


def test_a_space_can_be_sent_to_another_process() -> None:
    hp_space = {"x": tune.sample_from(lambda config: config["seed"] + random.random()), "seed": tune.randint(1, 99)}
    for space in (from_ray(hp_space, 42), from_ray(lambda _: hp_space, 42)):
        sent = pickle.loads(cloudpickle.dumps(space))
        assert [sent(AnyTrial(number)) for number in range(5)] == [space(AnyTrial(number)) for number in range(5)]


def test_an_interrupted_search_goes_on_with_what_was_drawn_and_enumerated(tmp_path: Path) -> None:
    def search(folder: str, *callbacks: Any) -> list[dict[str, Any]]:
        hp_space = {
            "learning_rate": tune.loguniform(1e-4, 1e-2),
            "per_device_train_batch_size": tune.grid_search([4, 8]),
            "lr_scheduler_kwargs": tune.choice([None, {}]),
            "weight_decay": tune.sample_from(lambda config: config["learning_rate"] * np.random.rand()),
            "max_grad_norm": tune.qloguniform(0.5, 2.0, 0.25),
            "warmup_steps": 1,
        }
        best = small_trainer(tmp_path / folder, *callbacks, num_train_epochs=1).hyperparameter_search(
            from_ray(hp_space, 42), "loss", n_trials=4, progress=False, pruner="none"
        )
        records = best.run_summary.records
        assert all(record.state == "complete" for record in records)
        return [record.arguments for record in records]

    whole = search("whole")
    with pytest.raises(SearchInterrupted):
        search("parts", AtStep(interrupt, run=2, step=1))
    random.seed(5)
    np.random.seed(5)
    assert search("parts") == whole
    assert [each["per_device_train_batch_size"] for each in whole] == [4, 8, 4, 8]
    assert {each["warmup_steps"] for each in whole} == {1}
    assert {repr(each["lr_scheduler_kwargs"]) for each in whole} == {"None", "{}"}
    assert len({json.dumps(each) for each in whole}) == 4


# From Ray: errors.

NESTED = "there is a domain of Ray inside"
WRONG: dict[str, tuple[Any, str]] = {
    "empty_randint": (tune.randint(5, 5), "the range from 5 to 5 is empty, as Ray excludes 5"),
    "empty_qrandint_of_one": (tune.qrandint(5, 5, 1), "the range from 5 to 5 is empty"),
    "empty_lograndint": (tune.lograndint(5, 5), "is empty, as Ray excludes"),
    "no_multiple": (tune.qrandint(11, 19, 10), "the range from 11 to 19 has no multiple of q=10"),
    "no_multiple_of_log": (tune.qlograndint(11, 19, 10), "the range from 11 to 19 has no multiple of q=10"),
    "q_of_zero": (tune.qrandint(1, 9, 0), "q must be above 0, but got 0"),
    "q_below_zero": (tune.quniform(0, 1, -0.5), "q must be above 0, but got -0.5"),
    "q_not_whole": (tune.qrandint(1, 9, 1.5), "must be whole, but got 1.5"),
    "bound_not_whole": (tune.randint(1, 9.5), "must be whole, but got 9.5"),
    "reversed": (tune.uniform(2, 1), "low must not be above high"),
    "infinite": (sample.Float(0.0, None), "high must be a finite number"),
    "infinite_steps": (sample.Float(None, 1.0).quantized(0.5), "the bounds must be finite"),
    "no_choices": (tune.choice([]), "the list of choices is empty"),
    "no_grid": (tune.grid_search([]), "grid_search takes a list of at least one value, but got []"),
    "grid_of_text": (tune.grid_search("abc"), "grid_search takes a list of at least one value, but got 'abc'"),
    "grid_of_number": (tune.grid_search(3), "grid_search takes a list of at least one value, but got 3"),
    "grid_of_generator": (tune.grid_search(x for x in "ab"), "grid_search takes a list"),
    "in_a_dict": ({"momentum": tune.uniform(0, 1)}, NESTED),
    "in_a_list": ([0.9, tune.uniform(0, 1)], NESTED),
    "in_a_choice": (tune.choice([{"momentum": tune.uniform(0, 1)}, None]), NESTED),
    "in_a_grid": (tune.grid_search([tune.uniform(0, 1), 2]), NESTED),
    "grid_in_a_dict": ({"momentum": tune.grid_search([1, 2])}, NESTED),
    "text_to_evaluate": ({"eval": "spec.config.y"}, NESTED),
    "cannot_be_drawn": (sample.Float(0.0, 1.0).normal(1.0, 1.0), "Ray cannot draw from Float(0.0, 1.0)"),
    "drawn_in_a_branch": (Categorical({"sgd": {"momentum": tune.randn()}}), "its branch 'sgd' can hold"),
    "wrong_in_a_branch": (
        Categorical({"sgd": {"momentum": tune.randint(1, 1)}}),
        "'momentum': the range from 1 to 1 is empty",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_entry_that_cannot_be_searched_is_refused_by_name(name: str) -> None:
    entry, message = WRONG[name]
    for hp_space in ({name: entry, "seed": tune.randint(1, 9)}, {"y": 3, name: entry}):
        with pytest.raises(SpaceError) as raised:
            from_ray(hp_space, 42)
        assert str(raised.value).startswith(f"{name!r}: ")
        assert message in str(raised.value)
        with pytest.raises(SpaceError) as raised:
            arguments(lambda _, hp_space=hp_space: hp_space)
        assert str(raised.value).startswith(f"{name!r}: ")


def test_a_name_must_be_text_and_mean_one_thing() -> None:
    for name in (3, "", None):
        with pytest.raises(SpaceError, match="A parameter's name must be text, but got"):
            from_ray({name: tune.randn()}, 42)
    with pytest.raises(SpaceError, match=r"'optim\.momentum' is 0\.9, and a parameter of a branch as well; drop one\."):
        from_ray(
            {
                "optim": Categorical({"sgd": {"optim.momentum": Float(0.0, 1.0)}}),
                "seed": tune.randint(1, 4),
                "optim.momentum": 0.9,
            },
            42,
        )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda config: config["y"], r"'x': its sample_from function raised KeyError: 'y'\. It can read \['seed'\]"),
        (lambda config: config.y, "'x': its sample_from function raised AttributeError: there is no 'y'"),
        (lambda: 1 / 0, "'x': its sample_from function raised ZeroDivisionError"),
        (lambda config: config["x"], "'x' depends on itself: the sample_from function of 'x' reads it"),
        (lambda _: tune.uniform(0, 1), "'x': its sample_from function must return a value, but returned <"),
        (lambda _: [{"grid_search": [1]}], "'x': its sample_from function must return a value, but returned"),
    ],
)
def test_a_function_of_sample_from_that_fails_is_named(function: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        arguments({"x": tune.sample_from(function), "seed": tune.randint(1, 9)})


def test_functions_of_sample_from_that_wait_for_each_other_are_named() -> None:
    hp_space = {
        "a": tune.sample_from(lambda config: config["b"]),
        "b": tune.sample_from(lambda config: config["c"]),
        "c": tune.sample_from(lambda spec: spec.config.a),
    }
    with pytest.raises(SpaceError, match="'a' depends on itself: the sample_from function of 'c' reads it"):
        arguments(hp_space)


# To Ray.

TO_RAY = {
    "float": Float(-1.0, 2.0),
    "float_log": Float(1e-6, 1e-4, log=True),
    "float_step": Float(0.1, 0.7, step=0.1),
    "float_step_below_the_end": Float(-0.5, 0.7, step=0.25),
    "float_step_with_an_offset": Float(0.05, 0.3, step=0.1),
    "int": Int(-3, 4),
    "int_of_one_value": Int(3, 3),
    "int_log": Int(1, 9, log=True),
    "int_step": Int(0, 9, step=3),
    "int_step_below_the_end": Int(4, 11, step=4),
    "int_step_with_an_offset": Int(1, 10, step=2),
    "categorical": Categorical((None, "a", 2, 0.5, True)),
    "categorical_without_open_branches": Categorical({"a": {}, "b": {}}),
}


@pytest.mark.parametrize("name", TO_RAY)
def test_a_domain_for_ray_has_exactly_the_values_of_the_parameter(name: str) -> None:
    parameter = TO_RAY[name]
    [domain] = to_ray(SearchSpace({"x": parameter})).values()
    values = by_ray(domain)
    if isinstance(parameter, Float) and parameter.step is None:
        assert all(from_searcher("x", parameter, value) == value for value in values)
        assert translated(domain) == parameter
        return
    assert all(math.isclose(value, from_searcher("x", parameter, value)) for value in values if type(value) is float)
    found = {repr(from_searcher("x", parameter, value)) for value in values}
    assert found == {repr(from_searcher("x", parameter, value)) for value in values_of(parameter)}


@settings(max_examples=60, deadline=None)
@given(low=st.integers(-20, 20), size=st.integers(0, 20), step=st.integers(1, 5), is_real=st.booleans())
def test_steps_for_ray_have_exactly_the_values_of_the_parameter(low: int, size: int, step: int, is_real: bool) -> None:
    parameter = Float(low / 20, (low + size) / 20, step=step / 20) if is_real else Int(low, low + size, step=step)
    unit = 20 if is_real else 1
    [domain] = to_ray(SearchSpace({"x": parameter})).values()
    values = {round(value * unit) for value in by_ray(domain, 500)}
    assert values == set(range(low, low + size + 1, step))
    assert isinstance(domain, sample.Categorical) == (low % step != 0)


@pytest.mark.parametrize("name", [name for name in TO_RAY if "offset" not in name and "branches" not in name])
def test_there_and_back_is_the_same_parameter(name: str) -> None:
    parameter = TO_RAY[name]
    back = translated(to_ray(SearchSpace({"x": parameter}))["x"])
    if isinstance(parameter, Categorical):
        assert back == parameter
    else:
        assert (back.low, back.high, back.step, back.log) == (
            parameter.low,
            parameter.top,
            parameter.step,
            parameter.log,
        )


def test_branches_are_refused_for_the_searchers_of_ray() -> None:
    space = SearchSpace({"optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.9)}})})
    with pytest.raises(SpaceError, match="'optim' has branches, which Ray's searchers do not support; leave out"):
        to_ray(space)


def test_more_values_than_ray_can_be_told_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"'x' is Int.* with 5000 values .* make low a multiple of 2"):
        to_ray(SearchSpace({"x": Int(1, 10_000, step=2)}))
    assert set(to_ray(SearchSpace({"x": Int(0, 10_000, step=2)}))) == {"x"}


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        (Float(0.1, 0.3, step=0.1), 0.30000000000000004, 0.3),
        (Float(0.0, 1.0, step=0.25), 0.6, 0.5),
        (Float(1e-6, 1e-4, log=True), math.nextafter(1e-6, 0.0), 1e-6),
        (Float(1e-6, 1e-4, log=True), math.nextafter(1e-4, 1.0), 1e-4),
        (Float(1e-6, 1e-4, log=True), np.float64(5e-5), 5e-5),
        (Float(0.0, 2.0), 1, 1.0),
        (Int(1, 9), 3.0, 3),
        (Int(1, 9), np.int64(9), 9),
        (Int(0, 9, step=3), 9.4, 9),
        (Int(1, 9, log=True), 8.6, 9),
        (Categorical((1, 2)), 2.0, 2),
        (Categorical((False, 2)), np.bool_(False), False),
        (Categorical((None, "a")), np.str_("a"), "a"),
        (Categorical((0, 0.5)), 0.0, 0),
    ],
)
def test_what_a_searcher_proposes_becomes_the_parameters_own_value(parameter: Any, value: Any, expected: Any) -> None:
    found = from_searcher("x", parameter, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        (Float(0.0, 1.0), 1.01),
        (Float(0.0, 1.0), math.nan),
        (Float(0.0, 1.0, step=0.5), -0.3),
        (Float(0.0, 1.0), "0.5"),
        (Int(1, 9), 10),
        (Int(1, 9), True),
        (Int(0, 9, step=4), 11),
        (Categorical(("a", "b")), "c"),
    ],
)
def test_a_proposal_outside_the_parameter_is_refused(parameter: Any, value: Any) -> None:
    with pytest.raises(SpaceError, match=r"The searcher proposed x=.*, which is not in"):
        from_searcher("x", parameter, value)


def test_a_searcher_of_ray_searches_our_space() -> None:
    space = SearchSpace({name: parameter for name, parameter in TO_RAY.items() if "branches" not in name})
    with optuna_logs(optuna.logging.WARNING):
        searcher = OptunaSearch(seed=3)
        assert searcher.set_search_properties("loss", "min", to_ray(space))
        for number in range(40):
            proposed = searcher.suggest(str(number))
            values = {name: from_searcher(name, space[name], value) for name, value in proposed.items()}
            assert space.contains(values)
            searcher.on_trial_complete(str(number), {"loss": values["float"] ** 2})


@pytest.mark.process
def test_hpsearch_does_not_import_ray() -> None:
    script = "import sys, hpsearch, hpsearch.backends, hpsearch.trainer.trainer; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# With the default backend.


@pytest.mark.parametrize(
    ("domain", "write"),
    [
        (tune.uniform(1e-4, 1e-2), "Float(low, high)"),
        (tune.qloguniform(1e-4, 1e-2, 1e-4), "Float(low, high, log=True)"),
        (tune.randint(1, 9), "Int(low, high)"),
        (tune.choice([1, 2]), "Categorical([...])"),
        (tune.grid_search([1, 2]), "Categorical([...])"),
        (tune.sample_from(lambda spec: 1), "pass backend='ray'"),
        (tune.randn(), "Float(low, high)"),
    ],
    ids=["uniform", "qloguniform", "randint", "choice", "grid", "sample_from", "randn"],
)
@pytest.mark.parametrize("where", ["mapping", "branch", "function"])
def test_domains_are_refused_by_the_default_backend_with_what_to_write(
    tmp_path: Path, domain: Any, write: str, where: str
) -> None:
    space: Any = {"warmup_steps": domain}
    if where == "branch":
        space = {"optim": Categorical({"sgd": {"warmup_steps": domain}})}
    elif where == "function":
        space = lambda trial: {"warmup_steps": domain}  # noqa: E731
    models: list[Any] = []
    trainer = small_trainer(tmp_path, model_init=models.append)
    with pytest.raises(SpaceError, match=r"'warmup_steps'.* Ray Tune") as caught:
        trainer.hyperparameter_search(space, "loss", n_trials=3, progress=False)
    assert write in str(caught.value)
    assert "backend='ray'" in str(caught.value)
    assert models == []
