"""Options of `ray.tune.run`, which transformers passes through: taken, taken with a notice, or refused in one error."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import ray.tune
from ray.tune import CheckpointConfig, CLIReporter

from hpsearch import StudyError, Trainer
from hpsearch.backends.engine_options import take_options
from hpsearch.backends.ray_backend import RayBackend
from hpsearch.executors.ray_executor.stopping import as_stop, reason_to_stop
from tests.support.on_ray import ON_RAY
from tests.support.searching import RATE, HearsNotices, states
from tests.support.small_trainer import small_trainer


def taken(**options: Any) -> tuple[dict[str, Any], list[str]]:
    return take_options("ray", options, RayBackend.options, RayBackend.engine_options, ["n_trials"])


def test_each_option_of_tune_is_one_of_the_search_or_known_to_be_taken_or_refused() -> None:
    of_tune = {each for each in inspect.signature(ray.tune.run).parameters if not each.startswith("_")}
    of_search = inspect.signature(Trainer.hyperparameter_search).parameters.keys()
    left = of_tune - of_search - set(RayBackend.options) - RayBackend.engine_options.keys()
    assert left == {"run_or_experiment"}
    for name, option in RayBackend.engine_options.items():
        assert option.notice or option.instead, name


@pytest.mark.parametrize(
    ("options", "notice"),
    [
        ({"log_to_file": True}, "log_to_file: what trials print is in the logs of Ray"),
        ({"progress_reporter": CLIReporter()}, "progress_reporter: progress= decides what is shown"),
        ({"verbose": 0}, "verbose: progress= decides what is shown"),
        ({"reuse_actors": False}, "reuse_actors: workers are always reused"),
        ({"checkpoint_score_attr": "training_iteration"}, "checkpoint_score_attr: the best trial keeps its selected"),
        ({"keep_checkpoints_num": 1}, "keep_checkpoints_num: the best trial keeps its selected checkpoint"),
        (
            {"checkpoint_config": CheckpointConfig(num_to_keep=1)},
            "checkpoint_config: the best trial keeps its selected",
        ),
        ({"checkpoint_config": CheckpointConfig()}, "checkpoint_config: the best trial keeps its selected"),
        ({"checkpoint_freq": 0}, "checkpoint_freq: save_strategy decides"),
        ({"local_dir": "~/ray_results"}, "local_dir: the study's folder is in the trainer's output_dir"),
        ({"fail_fast": False}, "fail_fast: max_failures= ends a search"),
        ({"resume": "AUTO"}, "resume: the same call continues the study"),
        ({"gc_after_trial": True}, "gc_after_trial: the memory of a trial is always released"),
    ],
)
def test_an_option_that_changes_no_result_is_taken_with_a_notice(options: dict[str, Any], notice: str) -> None:
    passed_on, [said] = taken(**options)
    assert passed_on == {}
    assert said.startswith(f"Options of ray, and what the search does: {notice}")


def test_an_option_that_is_none_was_not_given() -> None:
    assert taken(stop=None, metric=None, time_budget_s=None, keep_checkpoints_num=None, name=None) == ({}, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 3}, "num_samples=3 is not taken: pass n_trials"),
        ({"n_jobs": 2}, "n_jobs=2 is not taken: pass max_concurrent_trials"),
        ({"keep_checkpoints_num": 2}, "keep_checkpoints_num=2 is not taken: pass keep_checkpoints=None"),
        ({"checkpoint_config": CheckpointConfig(num_to_keep=2)}, "is not taken: pass keep_checkpoints=None"),
        ({"checkpoint_config": CheckpointConfig(checkpoint_at_end=True)}, "set save_strategy"),
        ({"checkpoint_config": 1}, "checkpoint_config=1 is not taken"),
        ({"fail_fast": True}, "fail_fast=True is not taken: pass max_failures=1"),
        ({"resume": False}, "resume=False is not taken: .* pass another study_name"),
        ({"stop": lambda trial, result: True}, "stop=.* is not taken: pass a dict such as"),
        ({"max_concurrent_trial": None}, "is unknown. Did you mean 'max_concurrent_trials'"),
    ],
)
def test_an_option_that_would_change_the_result_is_refused_with_what_to_pass(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        taken(**options)


def test_all_options_that_are_refused_are_named_in_one_error_before_anything_is_written(tmp_path: Path) -> None:
    refused = {"num_samples": 3, "metric": "objective", "mode": "max", "time_budget_s": 60}
    with pytest.raises(StudyError) as caught:
        small_trainer(tmp_path).hyperparameter_search(RATE, "loss", **ON_RAY, **refused, log_to_file=True)
    assert str(caught.value).splitlines() == [
        "hyperparameter_search(backend='ray') does not take 4 of its options:",
        "  num_samples=3 is not taken: pass n_trials.",
        "  metric='objective' is not taken: pass compute_objective.",
        "  mode='max' is not taken: pass direction.",
        "  time_budget_s=60 is not taken: pass timeout, in seconds.",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ({"training_iteratoin": 1}, "stop has key='training_iteratoin'.*Did you mean 'training_iteration'"),
        ({"training_iteration": "1"}, r"stop\['training_iteration'\] must be a number, but got '1'"),
        ({"training_iteration": True}, "must be a number, but got True"),
        ({7: 1}, "stop has key=7, which the reports do not have"),
    ],
)
def test_a_stop_that_no_trial_could_come_to_is_refused(stop: Any, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        as_stop(stop)


def test_a_trial_stops_where_a_number_has_come_to_its_limit() -> None:
    stop = as_stop({"training_iteration": 2, "eval_accuracy": 0.9})
    assert reason_to_stop(stop, {"training_iteration": 1, "eval_accuracy": 0.8}) is None
    assert reason_to_stop(stop, {"training_iteration": 2, "eval_accuracy": 0.8}) == "stop={'training_iteration': 2}"
    assert reason_to_stop(stop, {"training_iteration": 1, "eval_accuracy": 0.9}) == "stop={'eval_accuracy': 0.9}"
    with pytest.raises(StudyError, match="key='eval_accuracy', which the reports do not have; they have training_it"):
        reason_to_stop(stop, {"training_iteration": 1})


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_a_search_stops_its_trials_there_and_takes_the_name_of_the_study(tmp_path: Path) -> None:
    heard = HearsNotices()
    options = {**ON_RAY, "progress": heard, "preflight": False, "pruner": "none", "n_trials": 2}
    trainer = small_trainer(tmp_path, num_train_epochs=5)
    best = trainer.hyperparameter_search(RATE, "loss", stop={"training_iteration": 2}, name="by Tune", **options)
    assert best.run_summary.study.folder == tmp_path / "by Tune"
    assert states(best) == ["stopped"] * 2
    for record in best.run_summary.records:
        assert record.reason == "stop={'training_iteration': 2}"
        assert [report.epoch for report in record.reports] == [1, 2]
    assert "a trial ends at training_iteration=2 (stop)" in heard.notes
    assert heard.notices == ["Options of ray, and what the search does: name: it is the study_name."]
    again = trainer.replay("by Tune", progress=False)
    assert again.is_equal, again.first_difference
    with pytest.raises(StudyError, match="name='by Tune' and study_name='mine' both name the study"):
        trainer.hyperparameter_search(RATE, "loss", name="by Tune", study_name="mine", **options)
