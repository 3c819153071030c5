"""Searches that learn from another study."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from hpsearch import BestRun, Categorical, Float, StudyError
from hpsearch.ledger.warm_starts import can_be_compared, far_off
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from hpsearch.search.metrics.objective import resolve_objectives
from tests.support.searching import Events, HearsNotices, states
from tests.support.short_searches import params_of, search, search_for_70, study_about_70


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


WITH_RUNGS = {"pruner": LADDER_OF_0_8_0, "trainer": {"num_train_epochs": 3}}


@pytest.mark.slow
def test_with_rungs_they_teach_the_model_of_curves_from_the_second_trial_on(tmp_path: Path) -> None:
    events = Events()
    taught = search_for_70(tmp_path / "taught", 9, start_from=study_about_70(), progress=events, **WITH_RUNGS)
    untaught = search_for_70(tmp_path / "untaught", 9, **WITH_RUNGS)
    assert any("sampler CurveSampler" in note for note in events.notes)
    assert sum(map(near_70, params_of(taught)[1:5])) >= 3
    assert sum(map(near_70, params_of(untaught)[1:5])) < 3
    assert len(taught.run_summary.records) == 9


def test_trials_that_were_pruned_teach_what_they_had_shown(tmp_path: Path) -> None:
    first = search_for_70(tmp_path, 9, study_name="first", **WITH_RUNGS)
    assert states(first).count("pruned") > 2
    events = Events()
    second = search_for_70(tmp_path, 4, study_name="second", start_from=first, progress=events, **WITH_RUNGS)
    assert "learns from 9 trials of 'first'" in events.notes
    taught = second.run_summary.engine_study.trials[:9]
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("shown", "own", "is_far"),
    [
        ([0.31], [0.30, 0.32, 0.33], False),
        ([0.31, 0.5], [0.7, 0.9, 1.1], True),
        ([0.31, 0.5], [0.2, 3.0, 5.0], False),
        ([0.31, 0.5, 2e100], [30.0, 31.0, 32.0], True),  # one that breaks a constraint
    ],
)
def test_values_are_far_from_those_of_another_study_if_none_is_near(
    shown: list[float], own: list[float], is_far: bool
) -> None:
    def trial(value: float, **attributes: Any) -> Any:
        return optuna.trial.create_trial(value=value, user_attrs=attributes)

    taught = [trial(0.0, **{"hpsearch:origin": "first/0", "hpsearch:curve": [(1.0, cost)]}) for cost in shown]
    [objective] = resolve_objectives("loss", "minimize", has_metrics=False)
    assert can_be_compared([*taught, *map(trial, own)])
    assert not can_be_compared([*taught, *map(trial, own[:2])])
    assert (far_off([*taught, *map(trial, own)], objective) is not None) == is_far


def a_hundred_times_as_far(metrics: dict[str, float]) -> float:
    return 100.0 * metrics["eval_distance"] + 1000.0


@pytest.mark.parametrize("options", [{}, WITH_RUNGS])
def test_values_far_from_all_that_the_other_study_has_shown_are_said_once(tmp_path: Path, options: Any) -> None:
    events = HearsNotices()
    other = {**options, "start_from": study_about_70(), "objective": a_hundred_times_as_far, "progress": events}
    best = search_for_70(tmp_path / "other", 5 if options else 3, **other)
    values = {f"{each.value:.4g}" for each in best.run_summary.records if each.value is not None}
    [said] = [each for each in events.notices if "start_from" in each]
    found = re.fullmatch(
        r"the 3 trials that have ended have (\S+) to (\S+), those of 'about 70' had 1.667 to 68.33: if they are from "
        "another task, a new study without start_from is better",
        said,
    )
    assert found is not None, said
    assert {*found.groups()} <= values
    events = HearsNotices()
    search_for_70(tmp_path / "same", 5 if options else 3, start_from=study_about_70(), progress=events, **options)
    assert not any("start_from" in each for each in events.notices)


def test_a_function_without_what_another_study_had_learns_nothing_of_it(tmp_path: Path) -> None:
    def other_name(trial: Any) -> dict[str, Any]:
        return {"adam_beta1": trial.suggest_float("adam_beta1", 0.5, 0.9)}

    best = search(
        tmp_path,
        6,
        space=other_name,
        start_from=study_about_70(),
        pruner=LADDER_OF_0_8_0,
        trainer={"num_train_epochs": 3},
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
