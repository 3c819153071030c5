"""What cannot be searched, or would let trials share something, is refused before the first trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import EarlyStoppingCallback

from hpsearch import ArgumentError, Categorical, Float, SearchPlan, SpaceError, StudyError, tune
from tests.support.small_trainer import CountsModels, TwoLayers, small_trainer, transformers_trainer
from tests.support.small_tune import RATE, make_trainer, search


def assert_refused(match: str, make: Callable[[Any], Any], space: Any = None, error: Any = StudyError, **options: Any):
    with pytest.raises(error, match=match):
        search(make, space, **options)
    assert not Path("out/study").exists()


def test_a_parameter_that_nobody_reads_is_refused() -> None:
    assert_refused(
        r"Parameter 'weight_decay' is never used: .* make_trainer\(trial\) must read trial\.params\['weight_decay'\]",
        lambda trial: transformers_trainer("made", TwoLayers(), learning_rate=trial.params["learning_rate"]),
        {**RATE, "weight_decay": Float(0.0, 0.1)},
        SpaceError,
    )


def test_a_misspelt_parameter_is_named() -> None:
    assert_refused(
        r"There is no parameter 'learning_rat': the trial has 'learning_rate'\. Did you mean 'learning_rate'\?",
        lambda trial: transformers_trainer("made", TwoLayers(), learning_rate=trial.params["learning_rat"]),
        error=SpaceError,
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True: it would train trials with other batch sizes"),
        ({"eval_dataset": None, "eval_strategy": "no"}, "needs an eval_dataset"),
        ({"train_dataset": None}, "needs a train_dataset"),
        (
            {"save_strategy": "best", "metric_for_best_model": "loss"},
            "save_strategy='best', which leaves a paused trial without a checkpoint",
        ),
    ],
)
def test_a_trainer_that_cannot_be_searched_is_refused(changes: dict[str, Any], told: str) -> None:
    assert_refused(told, lambda trial: transformers_trainer("made", TwoLayers(), **changes, **trial.params))


def test_early_stopping_without_a_metric_is_refused() -> None:
    assert_refused(
        "EarlyStoppingCallback compares metric_for_best_model, which is None",
        lambda trial: transformers_trainer("made", TwoLayers(), EarlyStoppingCallback(), **trial.params),
        error=ArgumentError,
    )


def test_something_else_than_a_trainer_of_transformers_is_refused() -> None:
    assert_refused("must return a transformers.Trainer, .* but returned None", lambda trial: trial.params and None)
    ours = lambda trial: small_trainer("made", model_init=CountsModels(), **trial.params)  # noqa: E731
    assert_refused("returned an hpsearch.Trainer, which searches itself", ours)
    with pytest.raises(StudyError, match="tune needs a function of a trial, but got 3"):
        tune(3)  # type: ignore[arg-type]


def test_a_function_that_makes_trainers_cannot_read_its_study() -> None:
    def make(trial: Any) -> transformers.Trainer:
        assert trial.study.study_name == "study"
        return make_trainer(trial)

    assert_refused(r"make_trainer\(trial\) reads trial.study or trial.datetime_start; only plain functions can", make)


def test_what_trials_would_share_is_refused() -> None:
    model, stops = TwoLayers(), EarlyStoppingCallback()
    args = transformers_trainer("made", model).args

    def same_args(trial: Any) -> transformers.Trainer:
        args.learning_rate = trial.params["learning_rate"]
        data = transformers_trainer("made", model)
        return transformers.Trainer(TwoLayers(), args, train_dataset=data.train_dataset, eval_dataset=data.eval_dataset)

    for part, make in {
        "model": lambda trial: transformers_trainer("made", model, **trial.params),
        "args": same_args,
        "callback EarlyStoppingCallback": lambda trial: transformers_trainer(
            "made", TwoLayers(), stops, metric_for_best_model="loss", **trial.params
        ),
    }.items():
        with pytest.raises(StudyError, match=f"returned the same {part} as for an earlier trial"):
            search(make, output_dir=part)


def test_what_trials_would_share_in_part_or_later_is_refused() -> None:
    made: dict[int, Any] = {}

    def cached(trial: Any) -> transformers.Trainer:
        width = trial.params["width"]
        return transformers_trainer("made", made.setdefault(width, TwoLayers(width)))

    widths = {"width": Categorical([4, 8])}
    with pytest.raises(StudyError, match="returned the same model as for an earlier trial"):
        search(cached, widths, n_trials=4, start_with=[{"width": each} for each in (4, 8, 4, 8)])
    base = TwoLayers()

    def with_a_new_head(trial: Any) -> transformers.Trainer:
        model = TwoLayers()
        model.hidden = base.hidden
        return transformers_trainer("made", model, **trial.params)

    with pytest.raises(StudyError, match=r"returned the same weights hidden\.weight as for an earlier trial"):
        search(with_a_new_head, output_dir="head")
    base.requires_grad_(False)  # nothing of it is trained, so nothing can be left in it
    assert len(search(with_a_new_head, output_dir="frozen").run_summary.records) == 3


def test_folders_that_depend_on_the_trial_need_one_for_the_study() -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer(f"made/{trial.params['learning_rate']:.4f}", TwoLayers(), **trial.params)

    with pytest.raises(StudyError, match=r"gives each trial another output_dir .*: pass output_dir= to tune"):
        search(make, output_dir=None)
    assert len(search(make).run_summary.records) == 3


def test_what_a_space_returns_without_having_suggested_it_is_refused() -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"learning_rate": trial.suggest_float("learning_rate", 1e-3, 0.1), "weight_decay": 0.1}

    assert_refused("returns weight_decay=0.1, which it has not suggested", make_trainer, space, SpaceError)


def test_what_needs_our_trainer_is_refused() -> None:
    assert_refused("oom_fallback=True needs hpsearch.Trainer", make_trainer, oom_fallback=True)


def test_an_error_of_make_trainer_says_with_what_it_was_called() -> None:
    def fails(trial: Any) -> transformers.Trainer:
        raise OSError(f"no model of that name, {len(trial.params)}")

    assert_refused(r"raised OSError: no model of that name, 1\. It was called with \{'learning_rate': 0\.", fails)


def test_arguments_are_for_make_trainer_to_set() -> None:
    plan = SearchPlan(make_trainer, RATE)
    with pytest.raises(Exception, match="seed cannot be set from outside: make_trainer"):
        plan.trainer({"seed": 3})
