"""Search spaces: branches exist only under their choice; what is sampled is contained."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hpsearch import Categorical, FixedTrial, Float, Int, SearchSpace, SpaceError
from hpsearch.search.space.search_space import default_space

MOMENTUM = Float(0.0, 0.99, default=0.9)


def nested_space() -> SearchSpace:
    """Two levels of branches, and one name (`optim.momentum`) in two branches."""
    return SearchSpace(
        {
            "learning_rate": Float(1e-5, 1e-3, log=True, default=1e-4),
            "optim": Categorical(
                {
                    "adamw_torch": {},
                    "sgd": {
                        "optim.momentum": MOMENTUM,
                        "optim.nesterov": Categorical(
                            {True: {"optim.dampening": Float(0.0, 0.0)}, False: {"warmup_steps": Int(1, 64, log=True)}},
                            default=False,
                        ),
                    },
                    "rmsprop": {"optim.momentum": MOMENTUM, "optim.alpha": Float(0.5, 1.0, step=0.1)},
                },
                default="sgd",
            ),
            "num_train_epochs": Int(1, 9, step=2),
        }
    )


class ListensToSuggestions(FixedTrial):
    """A trial with given values that remembers what it was asked for."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__(params)
        self.asked: list[str] = []

    def suggest(self, name: str, parameter: Any) -> Any:
        self.asked.append(name)
        return super().suggest(name, parameter)


def test_walk_gives_every_parameter_with_the_choices_it_exists_under() -> None:
    walked = [(name, conditions) for name, _, conditions in nested_space().walk()]
    assert walked == [
        ("learning_rate", {}),
        ("optim", {}),
        ("optim.momentum", {"optim": "sgd"}),
        ("optim.nesterov", {"optim": "sgd"}),
        ("optim.dampening", {"optim": "sgd", "optim.nesterov": True}),
        ("warmup_steps", {"optim": "sgd", "optim.nesterov": False}),
        ("optim.momentum", {"optim": "rmsprop"}),
        ("optim.alpha", {"optim": "rmsprop"}),
        ("num_train_epochs", {}),
    ]
    assert list(nested_space().all_parameters()) == list(dict.fromkeys(name for name, _ in walked))


@pytest.mark.parametrize(
    "parameters",
    [
        {"x": Float(0.0, 0.3, step=0.1)},
        {"x": Float(-1.0, 2.3, step=0.7)},
        {"x": Float(0.05, 1.0, step=0.05)},
        {"x": Float(1e-6, 1e-1, log=True)},
        {"x": Float(0.3, 0.3)},
        {"x": Int(1, 3)},
        {"x": Int(1, 1000, log=True)},
        {"x": Int(5, 20, step=4)},
        {"x": Int(2, 2)},
        {"x": Categorical([None, True, 0, 0.5, "a"])},
        dict(nested_space()),
    ],
)
def test_whatever_is_sampled_is_contained(parameters: dict[str, Any]) -> None:
    space = SearchSpace(parameters)
    for seed in range(300):
        values = space.sample(random.Random(seed))
        assert space.contains(values), values


def test_whole_numbers_are_sampled_as_int_and_reach_both_bounds_equally_often() -> None:
    for parameter in (Int(1, 4), Int(1.0, 4.0), Int(1, 4, log=True)):  # type: ignore[arg-type]
        space = SearchSpace({"x": parameter})
        values = [space.sample(random.Random(seed))["x"] for seed in range(400)]
        assert {type(value) for value in values} == {int}
        assert set(values) == {1, 2, 3, 4}
    counts = [
        [SearchSpace({"x": Int(1, 4)}).sample(random.Random(seed))["x"] for seed in range(400)].count(n)
        for n in (1, 2, 3, 4)
    ]
    assert min(counts) > 60


def test_a_logarithmic_parameter_is_sampled_uniformly_in_its_logarithm() -> None:
    space = SearchSpace({"x": Float(1e-6, 1.0, log=True)})
    below = sum(space.sample(random.Random(seed))["x"] < 1e-3 for seed in range(400))
    assert 150 < below < 250


def test_sampling_follows_the_generator_alone() -> None:
    space = nested_space()
    assert space.sample(random.Random(3)) == space.sample(random.Random(3))
    assert any(space.sample(random.Random(3)) != space.sample(random.Random(seed)) for seed in (4, 5))


def test_only_complete_and_existing_values_in_range_are_contained() -> None:
    space = nested_space()
    plain = {"learning_rate": 1e-4, "optim": "adamw_torch", "num_train_epochs": 3}
    deep = {**plain, "optim": "sgd", "optim.momentum": 0.5, "optim.nesterov": False, "warmup_steps": 8}
    assert space.contains(plain)
    assert space.contains(deep)
    assert not space.contains({**plain, "optim.momentum": 0.5})
    assert not space.contains({**deep, "optim.dampening": 0.0})
    assert not space.contains({**deep, "optim.nesterov": True})
    assert not space.contains({**deep, "warmup_steps": 65})
    assert not space.contains({**plain, "num_train_epochs": 2})
    assert not space.contains({name: value for name, value in plain.items() if name != "learning_rate"})
    assert not space.contains({**plain, "seed": 1})
    assert not space.contains({**plain, "optim": "lion"})


def test_a_trial_is_only_asked_for_what_exists_under_its_choices() -> None:
    values = {
        "learning_rate": 1e-4,
        "optim": "rmsprop",
        "optim.momentum": 0.5,
        "optim.alpha": 0.6,
        "num_train_epochs": 3,
    }
    trial = ListensToSuggestions({**values, "warmup_steps": 8, "optim.nesterov": False})
    assert nested_space().suggest(trial) == values
    assert trial.asked == ["learning_rate", "optim", "optim.momentum", "optim.alpha", "num_train_epochs"]


def test_defaults_follow_the_branches_of_default_choices() -> None:
    assert nested_space().defaults() == {
        "learning_rate": 1e-4,
        "optim": "sgd",
        "optim.momentum": 0.9,
        "optim.nesterov": False,
    }
    assert SearchSpace({"x": Int(1, 4)}).defaults() == {}


def test_without_a_default_choice_no_branch_gives_defaults() -> None:
    space = SearchSpace({"a": Categorical({None: {"b": Float(0.0, 1.0, default=0.5)}, "x": {}})})
    assert space.defaults() == {}


def test_a_default_of_false_or_zero_is_a_default() -> None:
    space = SearchSpace({"a": Categorical([True, False], default=False), "b": Int(0, 4, default=0)})
    assert space.defaults() == {"a": False, "b": 0}


def test_a_description_survives_json_and_differs_between_different_spaces() -> None:
    described = nested_space().describe()
    assert json.loads(json.dumps(described)) == described
    assert described == nested_space().describe()
    others = [
        {"x": Float(0.0, 1.0)},
        {"x": Float(0.0, 2.0)},
        {"x": Float(0.0, 1.0, step=0.5)},
        {"x": Int(0, 1)},
        {"y": Float(0.0, 1.0)},
        {"x": Categorical(["a", "b"])},
        {"x": Categorical(["a", "c"])},
        {"x": Categorical({"a": {}, "b": {"y": Int(0, 1)}})},
        {"x": Categorical({"a": {"y": Int(0, 1)}, "b": {}})},
    ]
    descriptions = [json.dumps(SearchSpace(each).describe(), sort_keys=True) for each in others]
    assert len(set(descriptions)) == len(others)


def test_a_space_is_a_mapping_that_later_changes_to_its_source_do_not_reach() -> None:
    source = {"x": Int(0, 1)}
    space = SearchSpace(source)
    source["y"] = Int(0, 1)
    assert list(space) == ["x"]
    assert len(space) == 1
    assert space["x"] == Int(0, 1)


@pytest.mark.parametrize(
    ("parameters", "shown"),
    [
        ({}, ["empty", "at least one"]),
        ([("x", Int(0, 1))], ["mapping", "Float, Int or Categorical"]),
        ({"x": 3}, ["'x'", "3", "Float, an Int or a Categorical"]),
        ({"x": [1, 2]}, ["'x'", "[1, 2]", "list"]),
        ({"x": {"y": Int(0, 1)}}, ["'x'", "dict"]),
        ({"x": Int}, ["'x'", "Float, an Int or a Categorical"]),
        ({3: Int(0, 1)}, ["name", "3"]),
        ({" ": Int(0, 1)}, ["name", "' '"]),
        ({"x": Categorical({"a": {"y": {"b": {"z": 7}}}})}, ["'y'", "dict"]),
        ({"x": Categorical({"a": {"y": Categorical({"b": {"z": 7}})}})}, ["'z'", "7"]),
    ],
)
def test_what_is_no_space_is_refused(parameters: Any, shown: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        SearchSpace(parameters)
    for text in shown:
        assert text in str(caught.value)


def test_a_name_may_come_up_in_branches_that_exclude_each_other() -> None:
    space = SearchSpace({"a": Categorical({1: {"x": Int(0, 1)}, 2: {"x": Int(0, 1)}, 3: {}})})
    assert space.contains({"a": 1, "x": 0})
    assert space.contains({"a": 2, "x": 0})
    assert not space.contains({"a": 3, "x": 0})


@pytest.mark.parametrize(
    ("parameters", "shown"),
    [
        (
            {"a": Categorical({1: {"x": Int(0, 1)}, 2: {"x": Int(0, 2)}})},
            ["'x'", "two different", "Int(0, 1)", "Int(0, 2)"],
        ),
        ({"x": Int(0, 1), "a": Categorical({1: {"x": Int(0, 1)}})}, ["'x'", "twice"]),
        ({"a": Categorical({1: {"x": Int(0, 1)}}), "x": Int(0, 1)}, ["'x'", "twice"]),
        ({"a": Categorical({1: {"x": Int(0, 1)}}), "b": Categorical({1: {"x": Int(0, 1)}})}, ["'x'", "twice"]),
        ({"a": Categorical({1: {"a": Int(0, 1)}})}, ["'a'", "own branch"]),
        ({"a": Categorical({1: {"b": Categorical({2: {"a": Int(0, 1)}})}})}, ["'a'", "own branch"]),
        (
            # Each pair of the last two is in conflict, but neither is with the first.
            {
                "a": Categorical(
                    {1: {"x": Int(0, 1)}, 2: {"x": Int(0, 1), "b": Categorical({3: {"x": Int(0, 1)}, 4: {}})}}
                )
            },
            ["'x'", "twice"],
        ),
    ],
)
def test_a_name_that_would_mean_two_things_at_once_is_refused(parameters: dict[str, Any], shown: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        SearchSpace(parameters)
    for text in shown:
        assert text in str(caught.value)


@pytest.mark.feature(5)
def test_the_default_space_is_the_one_of_transformers() -> None:
    from transformers.trainer_utils import default_hp_space_optuna

    class Recorder:
        def __init__(self) -> None:
            self.seen: dict[str, Any] = {}

        def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
            self.seen[name] = Float(low, high, log=log)
            return low

        def suggest_int(self, name: str, low: int, high: int) -> int:
            self.seen[name] = Int(low, high)
            return low

        def suggest_categorical(self, name: str, choices: Any) -> Any:
            self.seen[name] = Categorical(tuple(choices))
            return choices[0]

    recorder = Recorder()
    default_hp_space_optuna(recorder)
    assert recorder.seen == dict(default_space())
