"""Training arguments that are set for all trials are taken out of the space."""

from __future__ import annotations

from typing import Any

import pytest

from hpsearch import Categorical, Float, Int, SearchPlan, SearchSpace, SpaceError
from hpsearch.errors import UnknownArgumentError
from hpsearch.search.space.set_arguments import check_set_names
from hpsearch.search.space.set_arguments import without_set_arguments as without

DECAY, RATE, SEED = Float(0.0, 0.1), Float(1e-5, 1e-3), Int(1, 9)
SPACE = SearchSpace(
    {"optim": Categorical({"adamw_torch": {"learning_rate": RATE}, "sgd": {"weight_decay": DECAY}}), "seed": SEED}
)


def test_what_is_not_in_the_space_leaves_it_as_it_is() -> None:
    assert without(SPACE, {}) == (SPACE, [])
    assert without(SPACE, {"output_dir": "out"}) == (SPACE, [])
    assert without(None, {"output_dir": "out"}) == (None, [])


def test_an_argument_of_the_default_space_is_taken_out_of_it() -> None:
    space, names = without(None, {"seed": 1})
    assert names == ["seed"]
    assert space.keys() == {"learning_rate", "num_train_epochs", "per_device_train_batch_size"}


def test_a_choice_that_is_set_leaves_what_is_searched_under_it() -> None:
    assert without(SPACE, {"optim": "sgd"}) == ({"weight_decay": DECAY, "seed": SEED}, ["optim"])
    assert without(SPACE, {"optim": "adafactor"}) == ({"seed": SEED}, ["optim"])


@pytest.mark.parametrize("names", [["optim", "learning_rate"], ["learning_rate", "optim"]])
def test_what_is_set_under_a_choice_that_is_set_goes_too_in_any_order(names: list[str]) -> None:
    values = {"optim": "adamw_torch", "learning_rate": 2e-5}
    assert without(SPACE, {name: values[name] for name in names}) == ({"seed": SEED}, ["optim", "learning_rate"])


def test_what_is_not_under_a_choice_that_is_set_is_no_hindrance() -> None:
    space, names = without(SPACE, {"optim": "sgd", "learning_rate": 1.0})
    assert space.keys() == {"weight_decay", "seed"}
    assert names == ["optim"]


def test_a_value_that_is_no_choice_at_all_is_left_to_the_check_of_arguments() -> None:
    assert without(SPACE, {"optim": ["sgd"]})[1] == ["optim"]
    assert without(SPACE, {"seed": [1, 2]})[1] == ["seed"]


def test_a_parameter_in_a_branch_that_is_open_cannot_be_taken_out() -> None:
    with pytest.raises(SpaceError, match="weight_decay is set, but the space searches it in a branch"):
        without(SPACE, {"weight_decay": 0.0})
    domains: Any = {"optim": Categorical({"a": {}, "b": {"x": object()}})}  # of Ray, say
    assert without(domains, {"output_dir": "out"}) == (domains, [])
    with pytest.raises(SpaceError, match="x is set"):
        without(domains, {"x": 1})


def test_what_model_init_reads_stays_in_the_space_with_one_value() -> None:
    width, deep = Categorical((8, 16)), {"model.depth": Int(1, 9)}
    space = {"seed": SEED, "model.width": width, "model.kind": Categorical({"deep": deep, "flat": {}})}
    assert without(space, {"model.width": 16}, {"model.width"}) == (
        {"model.width": Categorical((16,), default=16), "seed": SEED, "model.kind": space["model.kind"]},
        ["model.width"],
    )
    assert without(space, {"model.kind": "deep"}, {"model.kind"})[0] == {
        "model.kind": Categorical(("deep",), default="deep"),
        **deep,
        "seed": SEED,
        "model.width": width,
    }
    with pytest.raises(SpaceError, match=r"Nothing is left to search: model\.width is set"):
        without({"model.width": width}, {"model.width": 16}, {"model.width"})
    with pytest.raises(SpaceError, match=r"model\.width=\[16\] cannot be set: .* is a list"):
        without(space, {"model.width": [16]}, {"model.width"})


@pytest.mark.parametrize(
    ("name", "space", "said"),
    [
        ("model.widht", {"seed": SEED, "model.width": SEED}, "nor in the search space. Did you mean 'model.width'?"),
        ("nonexist", {"seed": SEED}, "it is neither a training argument nor in the search space."),
        ("lerning", {"seed": SEED}, "nor in the search space. Did you mean 'learning_rate'?"),
        ("model.width", lambda trial: None, "it is no training argument, and hp_space is a function"),
    ],
)
def test_a_set_name_without_an_effect_is_refused_with_the_nearest_one(name: str, space: Any, said: str) -> None:
    with pytest.raises(UnknownArgumentError) as refused:
        check_set_names(["seed", name], {name}, space, ["learning_rate"])
    assert str(refused.value).startswith(f"{name!r} cannot be set: it is ")
    assert said in str(refused.value)


def test_a_set_name_that_a_branch_or_the_arguments_have_is_not_refused() -> None:
    check_set_names(["weight_decay", "bf16"], {"weight_decay"}, SPACE, ["bf16"])


def test_something_must_be_left_to_search() -> None:
    with pytest.raises(SpaceError, match="Nothing is left to search: seed is set"):
        without({"seed": SEED}, {"seed": 1})


def test_the_trials_that_a_search_starts_with_do_not_give_what_is_set() -> None:
    starts = [{"optim": "sgd", "weight_decay": 0.05}, "defaults", {"optim": "adamw_torch"}]
    plan = SearchPlan(lambda: None, SPACE, n_trials=7, start_with=starts)
    settings, names = plan.settings({"optim": "sgd", "output_dir": "out"}, {"n_trials": 8})
    assert names == ["optim"]
    assert settings == {
        "hp_space": {"weight_decay": DECAY, "seed": SEED},
        "n_trials": 8,
        "start_with": [{"weight_decay": 0.05}, "defaults"],
    }
    closed, _ = plan.settings({"optim": "adamw_torch"})
    assert closed["start_with"] == ["defaults"]
    assert plan.settings({"seed": 1}, {"start_with": {"seed": 2}})[0]["start_with"] is None
    assert plan.settings({"seed": 1}, {"start_with": {"seed": 2, "optim": "sgd"}})[0]["start_with"] == {"optim": "sgd"}
    assert plan.settings({"output_dir": "out"})[0]["start_with"] == starts  # with its mistakes, if it has any


def test_a_space_that_is_given_takes_the_place_of_the_plans() -> None:
    settings, names = SearchPlan(lambda: None, SPACE).settings({"seed": 1}, {"hp_space": {"seed": SEED, "rate": RATE}})
    assert (settings, names) == ({"hp_space": {"rate": RATE}}, ["seed"])
