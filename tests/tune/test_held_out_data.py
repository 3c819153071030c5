"""A test set of a search of trainers that someone else wrote, and of plain functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpsearch import BestRun, Float, StudyError, tune
from tests.support.searching import HearsNotices
from tests.support.small_trainer import TwoLayers, points, transformers_trainer
from tests.support.small_tune import make_trainer, search

HELD_OUT = points(32, seed=2)
WITH_DEFAULTS = {"learning_rate": Float(1e-3, 0.3, log=True, default=1e-2)}


def test_the_trainer_of_the_function_evaluates_best_and_defaults() -> None:
    best: BestRun = search(make_trainer, WITH_DEFAULTS, n_trials=2, test_dataset=HELD_OUT)
    by_hand = transformers_trainer("alone", best.load_model()).evaluate(HELD_OUT)
    assert best.test_metrics is not None
    assert best.test_metrics["test_loss"] == by_hand["eval_loss"]
    assert best.test_metrics["test_accuracy"] == by_hand["eval_accuracy"]
    defaults = best.run_summary.held_out.defaults
    at_default = search(make_trainer, n_trials=1, start_with={"learning_rate": 1e-2}, study_name="at_default")
    assert defaults.values == (at_default.objective,)
    assert (
        defaults.metrics["test_loss"]
        == transformers_trainer("a", at_default.load_model()).evaluate(HELD_OUT)["eval_loss"]
    )


@pytest.mark.parametrize("space", [None, {**WITH_DEFAULTS, "weight_decay": Float(0.0, 0.3)}])
def test_defaults_that_only_the_function_knows_are_left_out_with_a_notice(space: Any) -> None:
    listener = HearsNotices()
    best = search(make_trainer, space, n_trials=1, test_dataset=HELD_OUT, progress=listener)
    assert best.test_metrics is not None
    assert best.run_summary.held_out.defaults is None
    assert listener.notices[0].startswith("the defaults are not evaluated on the test set: only make_trainer(trial)")


def test_the_data_of_the_trainers_are_no_test_set() -> None:
    def with_own_data(trial: Any) -> Any:
        return transformers_trainer("made", TwoLayers(), eval_dataset=HELD_OUT, **trial.params)

    with pytest.raises(StudyError, match="test_dataset is the eval_dataset itself"):
        search(with_own_data, n_trials=1, test_dataset=HELD_OUT)


def test_a_plain_function_has_nothing_to_evaluate_with() -> None:
    with pytest.raises(StudyError, match="test_dataset needs a trainer"):
        tune(
            lambda trial: trial.suggest_float("x", -1, 1) ** 2,
            direction="minimize",
            n_trials=2,
            output_dir="out",
            progress=False,
            test_dataset=HELD_OUT,
        )
    assert not Path("out/study").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test_dataset": "glue"}, "must be a dataset"),
        ({"test_dataset": HELD_OUT, "test_defaults": 3}, "test_defaults m"),
    ],
)
def test_a_wrong_test_set_is_refused_before_the_function_is_called(options: dict[str, Any], said: str) -> None:
    def never(trial: Any) -> Any:
        raise AssertionError("it is called")

    with pytest.raises(StudyError, match=said):
        search(never, n_trials=1, **options)
