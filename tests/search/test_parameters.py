"""Parameters are checked when they are made, and say what was wrong."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch import Categorical, Float, Int, SearchSpace, SpaceError

OPTIONS = st.sampled_from(["log", "step", "default", "prior", "branches"])


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: Float(2.0, 1.0), ["low=2.0", "high=1.0", "must not be above"]),
        (lambda: Float(math.nan, 1.0), ["low", "finite", "nan"]),
        (lambda: Float(0.0, math.inf), ["high", "finite", "inf"]),
        (lambda: Float("0", 1.0), ["low", "finite number", "'0'"]),
        (lambda: Float(None, 1.0), ["low", "finite number", "None"]),
        (lambda: Float(False, True), ["low", "finite number", "False"]),
        (lambda: Float(0.0, 1.0, log=True), ["log=True", "low > 0", "low=0.0"]),
        (lambda: Float(-1.0, 1.0, log=True), ["log=True", "low > 0", "low=-1.0"]),
        (lambda: Float(0.0, 1.0, step=0.0), ["step", "above 0", "0.0"]),
        (lambda: Float(0.0, 1.0, step=-0.1), ["step", "above 0", "-0.1"]),
        (lambda: Float(0.0, 1.0, step="0.1"), ["step", "above 0", "'0.1'"]),
        (lambda: Float(0.1, 1.0, step=0.1, log=True), ["log=True", "step=0.1", "cannot be combined"]),
        (lambda: Float(0.0, 1.0, default=1.5), ["default=1.5", "[0.0, 1.0]"]),
        (lambda: Float(0.0, 1.0, default="0.5"), ["default='0.5'", "[0.0, 1.0]"]),
        (lambda: Float(0.0, 1.0, default=math.nan), ["default=nan", "[0.0, 1.0]"]),
        (lambda: Float(0.0, 1.0, step=0.25, default=0.3), ["default=0.3", "[0.0, 1.0]", "0.25"]),
        (lambda: Float(0.0, 1.0, prior=1.5), ["prior=1.5", "[0.0, 1.0]"]),
        (lambda: Float(1e-5, 1e-3, log=True, prior="2e-5"), ["prior='2e-5'", "[1e-05, 0.001]"]),
        (lambda: Int(2, 8, step=2, prior=3), ["prior=3", "[2, 8]", "steps of 2"]),
        (lambda: Categorical([1, 2], prior=3), ["prior=3", "(1, 2)"]),
        (lambda: Int(4, 2), ["low=4", "high=2", "must not be above"]),
        (lambda: Int(1.5, 4), ["low", "whole number", "1.5", "Float"]),
        (lambda: Int(1, "4"), ["high", "whole number", "'4'"]),
        (lambda: Int(1, True), ["high", "whole number", "True"]),
        (lambda: Int(math.nan, 4), ["low", "nan"]),
        (lambda: Int(1, math.inf), ["high", "inf"]),
        (lambda: Int(0, 4, log=True), ["log=True", "low > 0", "low=0"]),
        (lambda: Int(1, 4, step=0), ["step", "above 0", "0"]),
        (lambda: Int(1, 4, step=-1), ["step", "above 0", "-1"]),
        (lambda: Int(1, 4, step=0.5), ["step", "whole number", "0.5"]),
        (lambda: Int(1, 4, step=2, log=True), ["log=True", "step=2", "cannot be combined"]),
        (lambda: Int(1, 4, default=5), ["default=5", "[1, 4]"]),
        (lambda: Int(1, 4, default=2.5), ["default=2.5", "[1, 4]"]),
        (lambda: Int(1, 4, default=math.nan), ["default=nan", "[1, 4]"]),
        (lambda: Int(2, 8, step=2, default=3), ["default=3", "[2, 8]", "steps of 2"]),
        (lambda: Categorical([]), ["no choices", "at least one"]),
        (lambda: Categorical({}), ["no choices", "at least one"]),
        (lambda: Categorical("adamw"), ["'adamw'", "list, a tuple or a mapping"]),
        (lambda: Categorical(3), ["3", "list, a tuple or a mapping"]),
        (lambda: Categorical({"a", "b"}), ["list, a tuple or a mapping"]),
        (lambda: Categorical([1, 2, 1]), ["1", "twice", "(1, 2, 1)"]),
        (lambda: Categorical([[1], [2]]), ["[1]", "list", "None, bool, int, float and str"]),
        (lambda: Categorical([print]), ["print", "None, bool, int, float and str"]),
        (lambda: Categorical([1, 2], default=3), ["default=3", "(1, 2)"]),
        (lambda: Categorical({"a": 115433}), ["'a'", "115433", "int", "mapping", "Categorical(['a', 'b'])"]),
        (lambda: Categorical({"a": 0}), ["'a'", "branch 0", "mapping"]),
        (lambda: Categorical({"a": ["x"]}), ["'a'", "['x']", "mapping"]),
        (lambda: Categorical({"a": Float(0.0, 1.0)}), ["'a'", "Float", "mapping"]),
        (lambda: Categorical(["a"], branches=3), ["branches", "3", "mapping"]),
        (lambda: Categorical(["a"], branches={"a": "x"}), ["'a'", "'x'", "mapping"]),
        (lambda: Categorical([1.0, math.nan]), ["nan", "finite"]),
        (lambda: Categorical([math.inf]), ["inf", "finite"]),
        (lambda: Float(0.0, 10**400), ["high", "finite number"]),
        (lambda: Int(0, 10**400), ["high", "whole number"]),
        (lambda: Int(0, 9, default=10**400), ["default=1000", "[0, 9]"]),
        (lambda: Float(0.0, 1.0, step=math.inf), ["step", "above 0", "inf"]),
        (lambda: Categorical([1, 2], default=True), ["default=True", "(1, 2)"]),
    ],
)
def test_a_contradiction_is_refused_with_the_value_received_and_what_is_allowed(make: Any, shown: list[str]) -> None:
    with pytest.raises(SpaceError) as caught:
        make()
    for text in shown:
        assert text in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(print),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=5,
)


@pytest.mark.slow
@given(st.sampled_from([Float, Int, Categorical]), st.lists(VALUES, max_size=2), st.dictionaries(OPTIONS, VALUES))
@settings(max_examples=300, deadline=None)
def test_whatever_a_parameter_is_given_the_error_is_one_of_the_space(
    kind: Any, values: list[Any], options: dict[str, Any]
) -> None:
    if kind is not Categorical:
        values, options = [*values, 1][:2], {name: each for name, each in options.items() if name != "branches"}
    else:
        values, options = [*values, ["a"]][:1], {name: options[name] for name in options if name not in ("log", "step")}
    with contextlib.suppress(SpaceError):
        parameter = kind(*(values if len(values) == 2 or kind is Categorical else [0, 1]), **options)
        SearchSpace({"x": parameter}).describe()
        SearchSpace({"x": parameter}).sample(random.Random(0))
        parameter.edges()


def test_a_branch_for_a_choice_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpaceError, match="sgdd"):
        Categorical(("sgd", "adamw"), branches={"sgdd": {"optim.momentum": Float(0.0, 1.0)}})


def test_bounds_are_included() -> None:
    assert Float(0.5, 1.0).contains(0.5)
    assert Float(0.5, 1.0).contains(1.0)
    assert Int(1, 4).contains(1)
    assert Int(1, 4).contains(4)
    assert Float(1.0, 1.0).contains(1)
    assert not Float(0.5, 1.0).contains(1.0 + 1e-9)
    assert not Int(1, 4).contains(5)


@pytest.mark.parametrize("value", ["1", True, None, math.nan, math.inf, [1]])
@pytest.mark.parametrize("parameter", [Float(0.0, 2.0), Int(0, 2)])
def test_only_finite_numbers_are_contained_in_a_range(parameter: Any, value: Any) -> None:
    assert not parameter.contains(value)


def test_steps_are_counted_from_the_lower_bound() -> None:
    assert Float(0.1, 1.0, step=0.2).contains(0.1 + 3 * 0.2)
    assert not Float(0.1, 1.0, step=0.2).contains(0.2)
    assert Int(3, 9, step=3).contains(6)
    assert not Int(3, 9, step=3).contains(4)
    assert not Int(3, 9).contains(4.5)
    assert Int(3, 9).contains(4.0)


def test_a_choice_is_contained_only_with_its_own_type() -> None:
    parameter = Categorical([1, 2, "1", None])
    assert parameter.contains(1)
    assert parameter.contains("1")
    assert parameter.contains(None)
    assert not parameter.contains(True)
    assert not parameter.contains(1.0)
    assert not parameter.contains("2")


def test_a_mapping_gives_choices_and_their_branches() -> None:
    momentum = Float(0.0, 0.99)
    parameter = Categorical({"sgd": {"optim.momentum": momentum}, "adamw": {}, "adafactor": None})
    assert parameter.choices == ("sgd", "adamw", "adafactor")
    assert parameter.branches == {"sgd": {"optim.momentum": momentum}, "adamw": {}, "adafactor": {}}


def test_parameters_cannot_be_changed() -> None:
    for parameter in (Float(0.0, 1.0), Int(0, 1)):
        with pytest.raises(AttributeError):
            parameter.low = -1  # type: ignore[misc]


def test_edges_are_values_the_parameter_contains() -> None:
    for parameter in (Float(0, 1), Int(2, 7), Int(1, 100, log=True), Categorical(["a", None, 3])):
        assert parameter.edges()
        assert all(parameter.contains(value) for value in parameter.edges())
