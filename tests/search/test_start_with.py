"""Searches that start with known parameters, or with the defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpsearch import Categorical, Float, Int, SearchInterrupted, SearchSpace, SpaceError, TrainingArguments
from hpsearch.search.space.initial_trials import resolve_start
from tests.support.searching import AtStep, Events, HearsNotices, interrupt, states
from tests.support.short_searches import params_of, rates, search
from tests.support.small_trainer import TwoLayers

BRANCHES = {
    "learning_rate": Float(1e-4, 1.0, log=True),
    "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.9)}}),
}


def test_a_dict_is_the_first_trial_and_the_sampler_chooses_the_others(tmp_path: Path) -> None:
    best = search(tmp_path, 3, start_with={"learning_rate": 0.0123})
    assert rates(best)[0] == 0.0123
    assert len(set(rates(best))) == 3
    assert best.run_summary.records[0].arguments == {"learning_rate": 0.0123}


def test_a_list_keeps_its_order_and_partial_dicts_are_filled_in(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [
        {"optim": "sgd", "optim.momentum": 0.5},
        {"learning_rate": 0.5},
        {},
        {"optim": "adamw_torch"},
        {"learning_rate": 0.5},
    ]
    best = search(tmp_path, 6, space=BRANCHES, start_with=given)
    found = params_of(best)
    for start, params in zip(given, found, strict=False):
        assert {name: params[name] for name in start} == start
        assert SearchSpace(BRANCHES).contains(params)
    assert len({params["learning_rate"] for params in found}) == 5
    assert states(best) == ["complete"] * 6


def test_more_starts_than_trials_leave_the_rest_for_later(tmp_path: Path) -> None:
    given = [{"learning_rate": rate} for rate in (0.01, 0.02, 0.03)]
    assert rates(search(tmp_path, 2, start_with=given)) == [0.01, 0.02]
    best = search(tmp_path, 4, start_with=given)
    assert rates(best)[:3] == [0.01, 0.02, 0.03]
    assert rates(best)[3] not in (0.01, 0.02, 0.03)


def test_they_are_not_run_again_when_the_study_goes_on(tmp_path: Path) -> None:
    given = {"learning_rate": 0.0123}
    for n_trials in (1, 2, 4):
        best = search(tmp_path, n_trials, start_with=given)
    assert rates(best)[0] == 0.0123
    assert rates(best).count(0.0123) == 1
    undisturbed = search(tmp_path / "undisturbed", 4, start_with=given)
    assert rates(best) == rates(undisturbed)


def test_a_study_may_be_given_more_of_them_later(tmp_path: Path) -> None:
    search(tmp_path, 1)
    search(tmp_path, 2, start_with=[{"learning_rate": 0.01}])
    best = search(tmp_path, 3, start_with=[{"learning_rate": 0.01}, {"learning_rate": 0.02}])
    assert rates(best)[1:] == [0.01, 0.02]


def test_an_interrupted_start_goes_on_and_is_not_run_twice(tmp_path: Path) -> None:
    given = [{"learning_rate": 0.01}, {"learning_rate": 0.02}]
    for _ in range(2):
        with pytest.raises(SearchInterrupted):
            search(tmp_path, 3, [AtStep(interrupt, run=0, step=1)], start_with=given)
    best = search(tmp_path, 3, start_with=given)
    assert states(best) == ["complete"] * 3
    assert rates(best)[:2] == [0.01, 0.02]
    assert rates(best)[2] not in (0.01, 0.02)


class DiesOnce(optuna.storages.InMemoryStorage):
    """Dies right after a trial was enqueued, before it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.has_died = False

    def create_new_trial(self, study_id: int, template_trial: optuna.trial.FrozenTrial | None = None) -> int:
        trial = super().create_new_trial(study_id, template_trial)
        if template_trial is not None and not self.has_died:
            self.has_died = True
            raise SystemExit("killed between enqueue and ask")
        return trial


def test_after_a_kill_between_enqueue_and_ask_nothing_is_run_twice(tmp_path: Path) -> None:
    given = [{"learning_rate": 0.01}, {"learning_rate": 0.02}]
    storage = DiesOnce()
    with pytest.raises(SystemExit):
        search(tmp_path / "killed", 4, start_with=given, storage=storage)
    best = search(tmp_path / "killed", 4, start_with=given, storage=storage)
    assert rates(best) == rates(search(tmp_path / "undisturbed", 4, start_with=given))
    assert [trial.state.name for trial in storage.get_all_trials(0)] == ["COMPLETE"] * 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lerning_rate": 0.01}, r"lerning_rate=0\.01.*Did you mean 'learning_rate'"),
        ({"learning_rate": 2.0}, r"learning_rate=2\.0, which is not in Float"),
        ({"learning_rate": "0.01"}, "learning_rate='0.01'"),
        ({"learning_rate": True}, "learning_rate=True"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"optim": "adam"}, "optim='adam', which is not in Categorical"),
        ({"optim": "sgd", "optim.momentum": 1.0}, r"optim\.momentum=1\.0"),
        ({"optim": "adamw_torch", "optim.momentum": 0.5}, r"optim\.momentum=0\.5, .*optim='sgd'"),
        ({"optim.momentum": 0.5}, r"optim\.momentum=0\.5, .*optim='sgd'"),
        ([{"learning_rate": 0.01}, {"learning_rate": 5}], "learning_rate=5"),
        ("default", "'default'"),
        (["defaults", "x"], "'x'"),
        (5, "5"),
        ([None], "None"),
    ],
)
def test_what_does_not_lie_in_the_space_is_refused_before_anything_is_written(
    tmp_path: Path, given: Any, said: str
) -> None:
    with pytest.raises(SpaceError, match=said):
        search(tmp_path, start_with=given, space=BRANCHES)
    assert not list(tmp_path.iterdir())


def by_function(trial: Any) -> dict[str, Any]:
    rate = trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True)
    if trial.suggest_categorical("optim", ["adamw_torch", "sgd"]) == "sgd":
        return {"learning_rate": rate, "optim": "sgd", "optim.momentum": trial.suggest_float("optim.momentum", 0, 0.9)}
    return {"learning_rate": rate, "optim": "adamw_torch", "weight_decay": trial.suggest_int("tenths", 0, 5) / 10}


def test_a_define_by_run_space_may_be_given_them_too(tmp_path: Path) -> None:
    given = [{"optim": "sgd", "optim.momentum": 0.5}, {"learning_rate": 0.01, "optim": "adamw_torch", "tenths": 3}]
    first, second = params_of(search(tmp_path, 2, space=by_function, start_with=given))
    assert (first["optim"], first["optim.momentum"]) == ("sgd", 0.5)
    assert (second["learning_rate"], second["optim"], second["tenths"]) == (0.01, "adamw_torch", 3)


def test_what_model_init_suggests_may_be_among_them(tmp_path: Path) -> None:
    def model_init(trial: Any) -> Any:
        return TwoLayers(trial.suggest_int("hidden", 2, 9))

    best = search(tmp_path, 1, space=by_function, start_with={"hidden": 7}, trainer={"model_init": model_init})
    assert params_of(best)[0]["hidden"] == 7
    assert best.load_model().hidden.out_features == 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rate": 0.5}, r"learning_rate=0\.5"),
        ({"optim": "adam"}, "optim='adam'"),
        ({"tenths": 2.5, "optim": "adamw_torch"}, r"tenths=2\.5"),
        ({"lerning_rate": 0.01}, r"lerning_rate.*Did you mean 'learning_rate'"),
        ({"optim": "adamw_torch", "optim.momentum": 0.5}, r"optim\.momentum"),
    ],
)
def test_what_a_define_by_run_space_cannot_take_ends_the_search_with_what_is_wrong(
    tmp_path: Path, given: Mapping[str, Any], said: str
) -> None:
    events = Events()
    with pytest.raises(SpaceError, match=said):
        search(tmp_path, space=by_function, start_with=given, progress=events)
    assert [record.state.is_counted for record in events.ended] == [False]
    # It neither counts nor is in the way once the mistake is mended.
    best = search(tmp_path, 2, space=by_function, start_with={"learning_rate": 0.02})
    complete = [record for record in best.run_summary.records if record.state.is_counted]
    assert [record.state.value for record in complete] == ["complete"] * 2
    assert complete[0].params["learning_rate"] == 0.02


# Defaults.


def test_a_default_outside_of_its_range_is_left_to_the_sampler_and_the_search_says_so(tmp_path: Path) -> None:
    space = {"learning_rate": Float(0.1, 1.0), "weight_decay": Float(0.0, 1.0)}
    events = HearsNotices()
    best = search(tmp_path, 1, space=space, start_with="defaults", trainer={"learning_rate": 0.05}, progress=events)
    assert best.hyperparameters["weight_decay"] == 0.0
    said = "start_with='defaults': the sampler chooses learning_rate, as its default, 0.05, is outside of its range"
    assert [each for each in events.notices if "start_with" in each] == [said]


def test_defaults_are_those_of_the_parameters_first_then_the_arguments(tmp_path: Path) -> None:
    space = {
        "learning_rate": Float(1e-4, 1.0, log=True),
        "weight_decay": Float(0.0, 0.3, default=0.1),
        "warmup_steps": Int(1, 5, default=2),
        "max_grad_norm": Float(2.0, 3.0),
        "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.9, default=0.7)}}),
        "lr_scheduler_type": Categorical(["linear", "cosine"]),
    }
    changes = {"learning_rate": 0.05, "weight_decay": 0.2, "optim": "sgd", "lr_scheduler_type": "cosine"}
    best = search(tmp_path, 2, space=space, start_with=["defaults", {}], trainer=changes)
    first = params_of(best)[0]
    expected = {
        "learning_rate": 0.05,  # the trainer's
        "weight_decay": 0.1,  # its own
        "warmup_steps": 2,
        "optim": "sgd",
        "optim.momentum": 0.7,
        "lr_scheduler_type": "cosine",
    }
    assert {name: first[name] for name in expected} == expected
    assert 2.0 <= first["max_grad_norm"] <= 3.0  # the trainer's 1.0 is not in it: the sampler chooses
    assert params_of(best)[1] != first


@pytest.mark.parametrize(("optim", "opened"), [("sgd", True), ("adamw_torch", False), ("adafactor", False)])
def test_defaults_follow_the_branch_of_the_default_choice(tmp_path: Path, optim: str, opened: bool) -> None:
    space = SearchSpace(
        {"optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0, 1, default=0.5)}})}
    )
    [found] = resolve_start("defaults", space, TrainingArguments(str(tmp_path), optim=optim, use_cpu=True))
    assert found == {
        **({} if optim == "adafactor" else {"optim": optim}),
        **({"optim.momentum": 0.5} if opened else {}),
    }


def test_a_default_of_false_none_or_zero_is_a_default(tmp_path: Path) -> None:
    space = SearchSpace(
        {
            "weight_decay": Float(0.0, 0.3, default=0.0),
            "model.bias": Categorical([True, False], default=False),
            "model.seed": Int(0, 3, default=0),
        }
    )
    [found] = resolve_start("defaults", space, TrainingArguments(str(tmp_path), weight_decay=0.3, use_cpu=True))
    assert found == {"weight_decay": 0.0, "model.bias": False, "model.seed": 0}


def test_the_defaults_of_a_function_are_the_trainers_arguments_that_it_can_take(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        if trial.suggest_categorical("optim", ["sgd", "adamw_torch"]) == "adamw_torch":
            trial.suggest_float("adam_beta1", 0.5, 0.95)
        return {
            "optim": trial.params["optim"],
            "learning_rate": trial.suggest_float("learning_rate", 1.0, 2.0),
            "weight_decay": Float(0.0, 1.0),
        }

    args = TrainingArguments(str(tmp_path), optim="adamw_torch", weight_decay=0.25, learning_rate=0.1, use_cpu=True)
    [found] = resolve_start("defaults", space, args)
    assert found == {"optim": "adamw_torch", "adam_beta1": 0.9, "weight_decay": 0.25}
