"""Random spaces and random bad spaces: either a search runs inside the space, or an error names the culprit."""

from __future__ import annotations

import itertools
import keyword
import math
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from transformers import TrainerCallback

from hpsearch import (
    Categorical,
    FixedTrial,
    Float,
    Int,
    InvalidInputError,
    NoCompletedTrialError,
    SearchSpace,
    TrialState,
)
from hpsearch.search.space.parameters import Parameter
from hpsearch.search.space.tried_configurations import leaves
from tests.support.small_trainer import TwoLayers, points, small_trainer

examples = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# Training arguments and what they take.
REAL = {
    "learning_rate": (1e-6, 1.0),
    "weight_decay": (0.0, 0.5),
    "max_grad_norm": (0.1, 5.0),
    "adam_beta1": (0.1, 0.99),
}
WHOLE = {"per_device_train_batch_size": (1, 8), "warmup_steps": (0, 9), "seed": (0, 2**31), "max_steps": (1, 2)}
CHOSEN = {
    "lr_scheduler_type": ["linear", "cosine", "constant", "constant_with_warmup"],
    "optim": ["adamw_torch", "sgd", "rmsprop", "adagrad"],
    "logging_first_step": [True, False],
}
TEXTS = st.text(alphabet="abcXYZ_ é", min_size=1, max_size=6)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-2.0, 2.0, allow_nan=False), TEXTS)


@st.composite
def floats_in(draw: Any, low: float, high: float) -> Float:
    first, second = sorted((draw(st.floats(low, high)), draw(st.floats(low, high))))
    kind = draw(st.sampled_from(["plain", "log", "step"]))
    if kind == "log":
        return Float(max(first, 1e-9), max(second, 1e-9), log=True, default=_default(draw, max(first, 1e-9)))
    if kind == "step" and second - first > 1e-3:
        step = draw(st.floats((second - first) / 20, second - first))
        return Float(first, second, step=step, default=_default(draw, first))
    return Float(first, second, default=_default(draw, second))


@st.composite
def ints_in(draw: Any, low: int, high: int) -> Int:
    first, second = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    if first >= 1 and draw(st.booleans()):
        return Int(first, second, log=True, default=_default(draw, second))
    step = draw(st.integers(1, max(1, min(7, second - first))))
    return Int(first, second, step=step, default=_default(draw, first))


@st.composite
def choices_of(draw: Any, allowed: list[Any]) -> Categorical:
    found = draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=len(allowed), unique=True))
    return Categorical(found, default=_default(draw, found[-1]))


@st.composite
def any_choices(draw: Any) -> Categorical:
    found: list[Any] = []
    for each in draw(st.lists(SCALARS, min_size=1, max_size=4)):
        if each not in found:
            found.append(each)
    return Categorical(found)


def _default(draw: Any, value: Any) -> Any:
    return value if draw(st.booleans()) else None


@st.composite
def parameters(draw: Any, name: str) -> Parameter:
    if name in REAL:
        return draw(floats_in(*REAL[name]))
    if name in WHOLE:
        return draw(ints_in(*WHOLE[name]))
    if name in CHOSEN:
        return draw(choices_of(CHOSEN[name]))
    return draw(st.one_of(floats_in(-10.0, 10.0), ints_in(-20, 20), any_choices()))


FREE = st.builds(
    lambda group, word: f"{group}.{word}",
    st.sampled_from(["model", "data", "lora"]),
    st.text(alphabet="abcde_", min_size=1, max_size=4).filter(lambda word: not keyword.iskeyword(word)),
)
NAMES = st.one_of(st.sampled_from([*REAL, *WHOLE, *CHOSEN]), FREE)


@st.composite
def spaces(draw: Any, depth: int = 2, taken: frozenset[str] = frozenset()) -> dict[str, Parameter]:
    """A space whose every value the trainer can take; names in branches differ from those outside."""
    found: dict[str, Parameter] = {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        if name in taken:
            continue
        parameter = draw(parameters(name))
        if isinstance(parameter, Categorical) and depth and draw(st.booleans()):
            inside = taken | found.keys() | {name}
            branches: dict[Any, dict[str, Parameter]] = {choice: {} for choice in parameter.choices}
            if len(branches) == len(parameter.choices):
                opened = draw(st.sampled_from(parameter.choices))
                branches[opened] = draw(spaces(depth=depth - 1, taken=frozenset(inside)))
                if name == "optim" and opened == "sgd":
                    branches[opened]["optim.momentum"] = Float(0.0, 0.9)
                parameter = Categorical(branches, default=parameter.default)
        found[name] = parameter
        taken = taken | SearchSpace({name: parameter}).all_parameters().keys()
    return found


def names_of(space: Mapping[str, Parameter]) -> set[str]:
    return set(SearchSpace(space).all_parameters()) if space else set()


def outcome(make: Callable[[], Any]) -> tuple[Any, str | None]:
    """What was made, or None and what the error says."""
    try:
        return make(), None
    except (InvalidInputError, NoCompletedTrialError) as error:
        return None, str(error)


class Remembers(TrainerCallback):
    """Remembers the arguments of every run."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.append(args)


def search(folder: str, space: Any, n_trials: int = 2, **options: Any) -> tuple[Any, list[Any]]:
    """Search; return the best run, and the arguments of the runs."""

    def model_init(trial: Any) -> TwoLayers:
        for name in trial.params:
            if name.startswith(("model.", "data.", "lora.")):
                trial.params[name]
        return TwoLayers(2)

    remembers = Remembers()
    changes = {"num_train_epochs": 1, "train_dataset": points(4, seed=0), "eval_dataset": points(4, seed=1)}
    trainer = small_trainer(folder, remembers, model_init=model_init, **changes)
    found = trainer.hyperparameter_search(
        space, "loss", n_trials=n_trials, storage=optuna.storages.InMemoryStorage(), progress=False, **options
    )
    return found, remembers.seen


@pytest.mark.slow
@settings(examples, max_examples=25)
@given(space=spaces(), start=st.sampled_from([None, "defaults"]), seed=st.integers(0, 99))
def test_a_search_in_a_good_space_runs_inside_it(space: dict[str, Parameter], start: str | None, seed: int) -> None:
    assume(space)
    with tempfile.TemporaryDirectory() as folder:
        best, runs = search(folder, space, start_with=start, seed=seed)
        records = best.run_summary.records
        first = list(itertools.islice(leaves(SearchSpace(space).suggest, 0), 2))
        trials = 2 if first[0].is_endless else len(first)  # a space of one configuration is tried once
        assert [record.state for record in records] == [TrialState.COMPLETE] * trials, [each.reason for each in records]
        for record, args in zip(records, runs, strict=True):
            assert SearchSpace(space).contains(record.params)
            for name, value in record.params.items():
                if "." not in name:
                    assert getattr(args, name) == value, name
        if start == "defaults":
            for name, value in SearchSpace(space).defaults().items():
                if name in records[0].params and space.get(name) is not None:
                    assert records[0].params[name] == value
        # What is on disk is what was returned, and the same command has nothing left to do.
        kept = {path.parent.name for path in Path(folder, "study").glob("*/trial.json")}
        assert kept == {record.name for record in records}


@settings(examples, max_examples=150)
@given(space=spaces(depth=3), seed=st.integers(0, 999))
def test_a_space_draws_values_that_it_contains_and_describes_itself_stably(
    space: dict[str, Parameter], seed: int
) -> None:
    assume(space)
    whole = SearchSpace(space)
    drawn = whole.sample(random.Random(seed))
    assert whole.contains(drawn)
    assert not whole.contains({**drawn, "data.not_there": 1})
    assert not any(whole.contains({each: drawn[each] for each in drawn if each != name}) for name in drawn)
    trial = FixedTrial(drawn)
    assert whole.suggest(trial) == drawn
    assert whole.describe() == SearchSpace(dict(space)).describe()
    for name, parameter, _ in whole.walk():
        assert all(parameter.contains(edge) for edge in parameter.edges()), name


# What no parameter may be.


@pytest.mark.parametrize("kind", [Float, Int])
@settings(examples, max_examples=150)
@given(
    low=st.one_of(st.integers(-9, 9), st.floats(), st.booleans(), st.none(), st.just("1")),
    high=st.one_of(st.integers(-9, 9), st.floats(), st.none(), st.just("9")),
    log=st.booleans(),
    step=st.one_of(st.none(), st.integers(-2, 3), st.floats(-1.0, 2.0)),
    default=st.one_of(st.none(), st.integers(-9, 9), st.floats()),
)
def test_bounds_make_a_parameter_that_contains_them_or_an_error_that_names_one(
    kind: type, low: Any, high: Any, log: bool, step: Any, default: Any
) -> None:
    extra = {} if step is None else {"step": step}
    parameter, said = outcome(lambda: kind(low, high, log=log, default=default, **extra))
    if said is not None:
        assert kind.__name__ in said
        assert any(name in said for name in ("low", "high", "step", "default"))
        return
    assert math.isfinite(parameter.low)
    assert parameter.low <= parameter.high
    assert parameter.contains(parameter.low)
    assert not log or parameter.low > 0
    assert not log or step in (None, 1)
    assert default is None or parameter.contains(default)


NOT_SCALARS = st.sampled_from([(1,), [1], {"a": 1}, b"x", 1j, len, object])


@settings(examples, max_examples=150)
@given(choices=st.lists(st.one_of(SCALARS, NOT_SCALARS), max_size=5))
def test_choices_make_a_parameter_or_an_error_that_names_one(choices: list[Any]) -> None:
    parameter, said = outcome(lambda: Categorical(choices))
    if said is not None:
        assert not choices or any(repr(choice) in said for choice in choices)
        return
    assert list(parameter.choices) == choices
    assert all(parameter.contains(choice) for choice in choices)


# What no space may hold: (name, parameter, what the message must say).

BAD: list[tuple[Any, Any, str]] = [
    ("lerning_rate", Float(0.1, 0.2), "learning_rate"),
    ("optmi", Categorical(["sgd"]), "optmi"),
    ("modell.hidden", Int(1, 2), "modell.hidden"),
    ("learning_rate", Float(-1.0, 0.1), "learning_rate=-1.0"),
    ("learning_rate", Categorical(["fast"]), "learning_rate='fast'"),
    ("learning_rate", Categorical([True]), "learning_rate=True"),
    ("per_device_train_batch_size", Int(-3, 4), "per_device_train_batch_size=-3"),
    ("per_device_train_batch_size", Int(0, 4), "per_device_train_batch_size=0"),
    ("per_device_train_batch_size", Float(1.5, 4.0), "per_device_train_batch_size=1.5"),
    ("gradient_accumulation_steps", Int(0, 1), "gradient_accumulation_steps=0"),
    ("num_train_epochs", Categorical(["three"]), "num_train_epochs='three'"),
    ("warmup_steps", Int(-2, 4), "warmup_steps=-2"),
    ("seed", Int(-1, 4), "seed=-1"),
    ("adam_beta2", Float(0.5, 1.5), "adam_beta2=1.5"),
    ("weight_decay", Categorical([None]), "weight_decay=None"),
    ("optim", Categorical(["sgd", "adm"]), "optim='adm'"),
    ("lr_scheduler_type", Categorical(["linear", "cosinus"]), "lr_scheduler_type='cosinus'"),
    ("logging_first_step", Categorical(["no"]), "logging_first_step='no'"),
    ("optim", Categorical({"adamw_torch": {"optim.momentum": Float(0.1, 0.2)}}), "optim.momentum"),
    ("output_dir", Categorical(["elsewhere"]), "output_dir"),
    ("run_name", Categorical(["mine"]), "run_name"),
    ("learning_rate", 0.1, "learning_rate"),
    ("learning_rate", [0.1, 0.2], "learning_rate"),
    ("learning_rate", optuna.distributions.FloatDistribution(0.1, 0.2), "learning_rate"),
    ("learning_rate", None, "learning_rate"),
    ("", Float(0.1, 0.2), "''"),
    (3, Float(0.1, 0.2), "3"),
    (None, Float(0.1, 0.2), "None"),
    ("model", Int(1, 2), "model"),
    ("optim.", Int(1, 2), "optim."),
    (".hidden", Int(1, 2), ".hidden"),
]


def planted(space: dict[str, Any], name: Any, parameter: Any, nested: bool) -> Any:
    """The space with something bad in it: at its top, or under a choice."""
    others = {each: value for each, value in space.items() if each != name}
    if not nested:
        return {**others, name: parameter}
    return {**others, "data.kind": Categorical({"a": {}, "b": {name: parameter}})}


def assert_refused(make: Callable[[], Any], culprit: str) -> None:
    """The search is refused with the culprit in the message, before anything ran or was written."""
    with tempfile.TemporaryDirectory() as folder:
        ran, said = outcome(lambda: search(folder, make()))
        assert said is not None, f"{culprit} was not refused: {ran}"
        assert culprit in said
        assert not list(Path(folder).iterdir())


@pytest.mark.parametrize(("name", "parameter", "culprit"), BAD, ids=lambda value: repr(value)[:40])
@settings(examples, max_examples=10)
@given(space=spaces(depth=1), nested=st.booleans())
def test_a_space_with_something_bad_in_it_is_refused_with_the_culprit(
    name: Any, parameter: Any, culprit: str, space: dict[str, Any], nested: bool
) -> None:
    assume(name not in names_of(space) and "data.kind" not in names_of(space))
    # A choice of the optimizer decides which of its parameters there are: keep it as the bad one has it.
    assume(not ({"optim"} & names_of(space) and str(name).startswith("optim")))
    assert_refused(lambda: planted(space, name, parameter, nested), culprit)


@settings(examples, max_examples=60)
@given(space=spaces(depth=1), data=st.data())
def test_a_name_that_means_two_things_is_refused_with_the_name(space: dict[str, Parameter], data: Any) -> None:
    assume(space and "data.kind" not in names_of(space))
    name = data.draw(st.sampled_from(sorted(space)))
    same = data.draw(st.booleans())
    again = space[name] if same else Categorical(["another"])
    assume(same or again != space[name])
    assert_refused(lambda: {**space, "data.kind": Categorical({"a": {name: again}, "b": {}})}, repr(name))


@settings(examples, max_examples=60)
@given(name=st.text(min_size=1, max_size=12))
def test_a_name_that_is_no_argument_is_refused_with_the_name(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        known = set(vars(small_trainer(folder).args))
    assume(name not in known and not name.startswith(("model.", "lora.", "data.", "optim.")))
    assume(not name.isidentifier())  # that model_init(trial) might read
    assert_refused(lambda: {name: Float(0.1, 0.2)}, repr(name))


@pytest.mark.slow
@settings(examples, max_examples=30)
@given(
    name=st.sampled_from(["learning_rate", "seed", "lerning_rate", "optim", "per_device_train_batch_size"]),
    value=st.one_of(SCALARS, NOT_SCALARS),
)
def test_what_a_define_by_run_function_returns_is_taken_or_an_error_names_it(name: str, value: Any) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {name: value}

    with tempfile.TemporaryDirectory() as folder:
        found, said = outcome(lambda: search(folder, space))
        if said is not None:
            assert name in said
            return
        best, runs = found
        assert all(getattr(args, name) == value for args in runs)
        for record in best.run_summary.records:
            assert record.state is TrialState.COMPLETE or name in (record.reason or "")
