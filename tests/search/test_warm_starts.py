"""Searches that start with known parameters or from another study, and searches that end early."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.terminator import BaseTerminator

from hpsearch import (
    BestRun,
    Categorical,
    Float,
    Int,
    SearchInterrupted,
    SearchSpace,
    SpaceError,
    StudyError,
    TrainingArguments,
)
from hpsearch.search.start import resolve_start
from tests.backends.contract import RATE, AtStep, Events, interrupt, states
from tests.search.small_trainer import TwoLayers, points, small_trainer

BRANCHES = {
    "learning_rate": Float(1e-4, 1.0, log=True),
    "optim": Categorical({"adamw_torch": {}, "sgd": {"optim.momentum": Float(0.0, 0.9)}}),
}


def search(folder: Path, n_trials: int = 3, callbacks: Sequence[Any] = (), **options: Any) -> Any:
    """One epoch on four points a trial; the objective is the evaluation loss."""
    changes = {"num_train_epochs": 1, "train_dataset": points(4, seed=0), **options.pop("trainer", {})}
    settings = {"progress": False, "pruner": "none", "storage": "journal", **options}
    objective = settings.pop("objective", "loss")
    space = settings.pop("space", RATE)
    return small_trainer(folder, *callbacks, **changes).hyperparameter_search(
        space, objective, n_trials=n_trials, **settings
    )


def params_of(best: BestRun) -> list[dict[str, Any]]:
    return [record.params for record in best.run_summary.records]


def rates(best: BestRun) -> list[float]:
    return [record.params["learning_rate"] for record in best.run_summary.records]


# Known parameters.


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


# Another study.


WIDE = {"weight_decay": Float(0.0, 100.0)}


def distance(metrics: dict[str, float]) -> float:
    """How far the rate of the running trial is from 70."""
    return metrics["eval_distance"]


class Measures:
    """`compute_metrics` that tells the distance of a trial's parameter from 70, without any training."""

    def __init__(self) -> None:
        self.value = math.nan

    def __call__(self, prediction: Any) -> dict[str, float]:
        return {"distance": abs(self.value - 70.0), "one": 1.0}


def search_for_70(folder: Path, n_trials: int, **options: Any) -> BestRun:
    measures = Measures()

    def model_init(trial: Any) -> Any:
        measures.value = trial.params["weight_decay"]
        return TwoLayers(2)

    settings = {"objective": "distance", "direction": "minimize", "space": WIDE, **options}
    changes = {"compute_metrics": measures, "model_init": model_init, **settings.pop("trainer", {})}
    best: BestRun = search(folder, n_trials, trainer=changes, **settings)
    return best


def study_about_70(n_trials: int = 30, direction: str = "minimize") -> optuna.Study:
    study = optuna.create_study(direction=direction, study_name="about 70")
    for number in range(n_trials):
        value = 100.0 * (number + 0.5) / n_trials
        study.add_trial(
            optuna.trial.create_trial(
                params={"weight_decay": value},
                distributions={"weight_decay": optuna.distributions.FloatDistribution(0.0, 100.0)},
                value=abs(value - 70.0),
            )
        )
    return study


def test_the_trials_of_another_study_teach_the_sampler(tmp_path: Path) -> None:
    events = Events()
    taught = search_for_70(tmp_path / "taught", 6, start_from=study_about_70(), progress=events)
    untaught = search_for_70(tmp_path / "untaught", 6)
    near = [abs(params["weight_decay"] - 70.0) < 20.0 for params in params_of(taught)]
    assert sum(near) >= 5
    assert sum(abs(params["weight_decay"] - 70.0) < 20.0 for params in params_of(untaught)) < sum(near)
    assert "learns from 30 trials of 'about 70'" in events.notes


def test_they_do_not_count_and_none_of_them_is_the_best(tmp_path: Path) -> None:
    other = study_about_70()
    best = search_for_70(tmp_path, 3, start_from=other)
    assert len(best.run_summary.records) == 3
    assert [record.number for record in best.run_summary.records] == [30, 31, 32]
    assert best.objective == min(record.value for record in best.run_summary.records)
    assert best.run_id in {"30", "31", "32"}
    assert best.load_model() is not None
    assert len(other.trials) == 30
    assert {path.parent.name for path in (tmp_path / "study").glob("*/trial.json")} == {"run-30", "run-31", "run-32"}


def test_the_next_session_does_not_take_them_in_again(tmp_path: Path) -> None:
    whole = search_for_70(tmp_path / "whole", 4, start_from=study_about_70())
    for n_trials in (1, 2, 4):
        events = Events()
        best = search_for_70(tmp_path / "parts", n_trials, start_from=study_about_70(), progress=events)
    assert not any("learns" in note for note in events.notes)
    assert params_of(best) == params_of(whole)
    again = search_for_70(tmp_path / "parts", 4)
    assert params_of(again) == params_of(whole)
    assert len(again.run_summary.engine_study.trials) == 34


@pytest.mark.parametrize("kind", ["best run", "summary", "study"])
def test_a_search_may_start_from_another_search(tmp_path: Path, kind: str) -> None:
    first = search_for_70(tmp_path, 12, study_name="first")
    given = {"best run": first, "summary": first.run_summary, "study": first.run_summary.engine_study}[kind]
    events = Events()
    second = search_for_70(tmp_path, 2, study_name="second", start_from=given, progress=events)
    assert "learns from 12 trials of 'first'" in events.notes
    assert len(second.run_summary.records) == 2
    assert len(second.run_summary.engine_study.trials) == 14
    assert not set(map(str, params_of(first))) & set(map(str, params_of(second)))


def near_70(params: Mapping[str, Any]) -> bool:
    return bool(abs(params["weight_decay"] - 70.0) < 15.0)


WITH_RUNGS = {"pruner": "rungs", "trainer": {"num_train_epochs": 3}}


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_with_rungs_they_teach_the_model_of_curves_from_the_second_trial_on(tmp_path: Path, n_jobs: int) -> None:
    events = Events()
    options = {**WITH_RUNGS, "n_jobs": n_jobs}
    taught = search_for_70(tmp_path / "taught", 9, start_from=study_about_70(), progress=events, **options)
    untaught = search_for_70(tmp_path / "untaught", 9, **options)
    assert any("sampler CurveSampler" in note for note in events.notes)
    assert sum(map(near_70, params_of(taught)[n_jobs:][:4])) >= 3
    assert sum(map(near_70, params_of(untaught)[n_jobs:][:4])) < 3
    assert len(taught.run_summary.records) == 9


def test_trials_that_were_pruned_teach_what_they_had_shown(tmp_path: Path) -> None:
    first = search_for_70(tmp_path, 12, study_name="first", **WITH_RUNGS)
    assert states(first).count("pruned") > 4
    events = Events()
    second = search_for_70(tmp_path, 6, study_name="second", start_from=first, progress=events, **WITH_RUNGS)
    assert "learns from 12 trials of 'first'" in events.notes
    taught = second.run_summary.engine_study.trials[:12]
    shown = {each.number: each.reports for each in first.run_summary.records}
    for trial in taught:
        curve = trial.user_attrs["hpsearch:curve"]
        assert [cost for _, cost in curve] == [report.value for report in shown[trial.number]]
        assert [share for share, _ in curve] == pytest.approx([1 / 3, 2 / 3, 1.0][: len(curve)])
    assert len({len(trial.user_attrs["hpsearch:curve"]) for trial in taught}) > 1


def test_the_first_trial_has_the_prior_whatever_another_study_has_taught(tmp_path: Path) -> None:
    space = {"weight_decay": Float(0.0, 100.0, prior=25.0)}
    best = search_for_70(tmp_path, 4, space=space, start_from=study_about_70(), **WITH_RUNGS)
    first, *_ = params_of(best)
    assert first == {"weight_decay": 25.0}


def test_of_choices_the_best_that_another_study_knows_is_tried_soon(tmp_path: Path) -> None:
    weights = [40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0, 120.0, 130.0]
    space = {"weight_decay": Categorical(weights)}
    other = optuna.create_study(study_name="about 70")
    between = {"weight_decay": optuna.distributions.CategoricalDistribution(weights)}
    for weight in weights[:8]:
        params = {"weight_decay": weight}
        other.add_trial(optuna.trial.create_trial(params=params, distributions=between, value=abs(weight - 70.0)))
    best = search_for_70(tmp_path, 6, space=space, start_from=other, **WITH_RUNGS)
    assert {"weight_decay": 70.0} in params_of(best)[:3]


def test_to_maximize_they_teach_where_most_is(tmp_path: Path) -> None:
    other = optuna.create_study(study_name="about 70", direction="maximize")
    for trial in study_about_70().trials:
        other.add_trial(
            optuna.trial.create_trial(params=trial.params, distributions=trial.distributions, value=-trial.value)
        )
    options = {**WITH_RUNGS, "objective": lambda metrics: -metrics["eval_distance"], "direction": "maximize"}
    best = search_for_70(tmp_path, 6, start_from=other, **options)
    assert sum(map(near_70, params_of(best)[1:5])) >= 3


def test_what_breaks_a_constraint_is_not_taught_as_good(tmp_path: Path) -> None:
    other = optuna.create_study(study_name="about 70")
    for trial in study_about_70().trials:
        weight = trial.params["weight_decay"]
        other.add_trial(
            optuna.trial.create_trial(
                params=trial.params,
                distributions=trial.distributions,
                value=trial.value,
                constraints={"small": weight - 40.0},
            )
        )
    best = search_for_70(tmp_path, 5, start_from=other, **WITH_RUNGS)
    assert all(params["weight_decay"] < 55.0 for params in params_of(best)[1:4])


def test_what_a_study_was_taught_it_teaches(tmp_path: Path) -> None:
    first = search_for_70(tmp_path, 9, study_name="first", **WITH_RUNGS)
    second = search_for_70(tmp_path, 4, study_name="second", start_from=first, **WITH_RUNGS)
    events = Events()
    third = search_for_70(tmp_path, 4, study_name="third", start_from=second, progress=events, **WITH_RUNGS)
    assert "learns from 13 trials of 'second'" in events.notes

    def curves(best: BestRun) -> list[Any]:
        return [trial.user_attrs["hpsearch:curve"] for trial in best.run_summary.engine_study.trials[:9]]

    assert curves(third) == curves(second)


def test_a_study_that_was_taught_by_an_older_version_goes_on(tmp_path: Path) -> None:
    options = {**WITH_RUNGS, "start_from": study_about_70()}
    search_for_70(tmp_path, 1, **options)
    file = tmp_path / "study" / "study.log"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = [line for line in lines if "hpsearch:is_learned" in line.get("user_attr", {})]
    assert len(told) == 2
    lines = [line for line in lines if line not in told]
    curves = [line.get("user_attrs", {}).pop("hpsearch:curve", None) for line in lines]
    assert sum(curve is not None for curve in curves) == 30
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    events = Events()
    best = search_for_70(tmp_path, 5, progress=events, **options)
    assert not any("learns" in note for note in events.notes)
    assert sum(map(near_70, params_of(best)[1:])) >= 3


def test_a_search_that_was_killed_while_it_learnt_takes_in_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    add, added = optuna.Study.add_trial, []

    def add_some(study: optuna.Study, trial: Any) -> None:
        if "hpsearch:origin" in trial.user_attrs:
            added.append(trial)
            if len(added) == 12:
                raise Killed
        add(study, trial)

    whole = search_for_70(tmp_path / "whole", 4, start_from=study_about_70(), **WITH_RUNGS)
    given = study_about_70()
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "add_trial", add_some)
        with pytest.raises(Killed):
            search_for_70(tmp_path / "killed", 4, start_from=given, **WITH_RUNGS)
    best = search_for_70(tmp_path / "killed", 4, start_from=given, **WITH_RUNGS)
    assert params_of(best) == params_of(whole)
    assert len(best.run_summary.engine_study.trials) == 34


def test_a_function_without_what_another_study_had_learns_nothing_of_it(tmp_path: Path) -> None:
    def other_name(trial: Any) -> dict[str, Any]:
        return {"adam_beta1": trial.suggest_float("adam_beta1", 0.5, 0.9)}

    best = search(
        tmp_path, 6, space=other_name, start_from=study_about_70(), pruner="rungs", trainer={"num_train_epochs": 3}
    )
    sampler = best.run_summary.engine_study.sampler
    assert not sampler.knows_enough(best.run_summary.engine_study, best.run_summary.records)
    assert len({params["adam_beta1"] for params in params_of(best)}) == 6


def test_a_function_of_other_ranges_may_start_from_another_search(tmp_path: Path) -> None:
    def other_ranges(trial: Any) -> dict[str, Any]:
        return {"weight_decay": trial.suggest_float("weight_decay", 60.0, 90.0), "optim": choice(trial)}

    def choice(trial: Any) -> Any:
        return trial.suggest_categorical("optim", ["adamw_torch", "sgd"])

    best = search_for_70(tmp_path, 8, space=other_ranges, start_from=study_about_70(), **WITH_RUNGS)
    assert all(60 <= params["weight_decay"] <= 90 for params in params_of(best))


def test_trials_that_do_not_fit_the_space_are_left_out_and_said(tmp_path: Path) -> None:
    events = Events()
    narrow = {"weight_decay": Float(50.0, 100.0)}
    best = search_for_70(tmp_path, 2, space=narrow, start_from=study_about_70(), progress=events)
    assert "learns from 15 trials of 'about 70' (15 do not fit this space)" in events.notes
    assert all(params["weight_decay"] >= 50.0 for params in params_of(best))


def test_known_parameters_still_come_first(tmp_path: Path) -> None:
    best = search_for_70(tmp_path, 2, start_from=study_about_70(), start_with={"weight_decay": 12.0})
    assert params_of(best)[0] == {"weight_decay": 12.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (study_about_70(1, "maximize"), "'about 70' was to maximize, but this search is to minimize"),
        (optuna.create_study(directions=["minimize", "maximize"], study_name="two"), "2 objectives"),
        ("first", "'first'"),
        (5, "5"),
    ],
)
def test_what_cannot_teach_is_refused_before_anything_is_written(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        search_for_70(tmp_path, 1, start_from=given)
    assert not list(tmp_path.iterdir())


def test_a_search_cannot_start_from_itself(tmp_path: Path) -> None:
    best = search_for_70(tmp_path, 1)
    with pytest.raises(StudyError, match="this study itself"):
        search_for_70(tmp_path, 2, start_from=best)
    assert len(best.run_summary.engine_study.trials) == 1


# The early end.


def stagnation(after: int) -> BaseTerminator:
    """A terminator for when so many trials have found nothing better."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.terminator.Terminator(
            optuna.terminator.BestValueStagnationEvaluator(max_stagnation_trials=after),
            optuna.terminator.StaticErrorEvaluator(0.0),
            min_n_trials=2,
        )


class Hears(Events):
    """Remembers what was announced, too."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def on_notice(self, notice: str) -> None:
        self.said.append(notice)


def test_a_terminator_ends_the_search_says_so_and_the_same_command_ends_at_once(tmp_path: Path) -> None:
    given = [{"weight_decay": value} for value in (60.0, 71.0, 10.0, 20.0, 30.0, 40.0, 50.0)]
    options = {"start_with": given, "terminator": stagnation(2)}
    events = Hears()
    best = search_for_70(tmp_path, 20, **options, progress=events)
    ran = len(best.run_summary.records)
    assert ran < 7
    assert best.run_id == "1"
    assert events.said == ["the search ends early: the terminator expects no further improvement"]
    events = Hears()
    again = search_for_70(tmp_path, 20, **options, progress=events)
    assert not events.begun
    assert len(events.said) == 1
    assert len(again.run_summary.records) == ran
    assert (again.run_id, again.objective) == (best.run_id, best.objective)
    assert "terminator Terminator" in events.notes
    more = search_for_70(tmp_path, ran + 1, start_with=given)
    assert len(more.run_summary.records) == ran + 1


def test_the_terminator_by_default_ends_after_thirty_trials_without_anything_better(tmp_path: Path) -> None:
    given = [{"weight_decay": 70.0}]
    best = search_for_70(
        tmp_path,
        60,
        start_with=given,
        terminator=True,
        sampler=optuna.samplers.RandomSampler(seed=1),
        storage=optuna.storages.InMemoryStorage(),
    )
    assert 30 <= len(best.run_summary.records) <= 33
    assert best.run_id == "0"


@pytest.mark.parametrize(
    ("given", "said"),
    [("yes", "'yes'"), (3, "3"), (BaseTerminator, "BaseTerminator")],
)
def test_what_is_no_terminator_is_refused(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        search(tmp_path, terminator=given)
    assert not list(tmp_path.iterdir())


def test_a_terminator_that_needs_a_cross_validation_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        default = optuna.terminator.Terminator()
    with pytest.raises(StudyError, match="cross-validation"):
        search(tmp_path, terminator=default)
    assert not list(tmp_path.iterdir())
