"""A search learns where trials fail, and does not go there again and again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float
from hpsearch.ledger.curve_data import CurveData
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from tests.support.searching import states, without_result
from tests.support.short_searches import params_of, search, weight_is_measured
from tests.support.small_trainer import TwoLayers


def test_a_trial_that_fails_before_it_has_all_its_parameters_says_nothing_of_them(tmp_path: Path) -> None:
    def model_init(trial: Any) -> Any:
        if trial.number in (2, 5):
            raise OSError("the weights cannot be downloaded")
        if trial.params["weight_decay"] < 10 or trial.number == 7:
            trial.suggest_int("hidden", 2, 9)
            raise RuntimeError("unlucky")
        return TwoLayers(trial.suggest_int("hidden", 2, 9))

    space = {"weight_decay": Float(0.0, 100.0)}
    best = search(
        tmp_path, 12, pruner=LADDER_OF_0_8_0, space=space, trainer={"model_init": model_init, "num_train_epochs": 3}
    )
    study, records = best.run_summary.engine_study, best.run_summary.records
    data = CurveData(best.run_summary.objective)
    data.read(study)
    curves = data.seen(records, data.space).curves
    assert len(curves) == 10
    as_bad_as_can_be = [curve for curve in curves if curve.reports == [(1.0, math.inf)]]
    failed = [each for each in records if each.state.value == "failed"]
    assert len(as_bad_as_can_be) == len(failed) - 2 >= 1


def test_a_search_in_which_all_trials_fail_says_so_and_not_more(tmp_path: Path) -> None:
    def model_init(trial: Any) -> Any:
        raise RuntimeError("no such model")

    best = without_result(
        search,
        tmp_path,
        14,
        pruner=LADDER_OF_0_8_0,
        max_failures=None,
        preflight=False,
        trainer={"model_init": model_init},
    )
    assert states(best) == ["failed"] * 14
    assert len({params["learning_rate"] for params in params_of(best)}) == 14


MOST = 55.0  # from where on a model cannot be made; the best weight would be 70


@pytest.mark.slow
def test_with_rungs_the_place_where_models_cannot_be_made_is_left_although_it_is_promising(
    tmp_path: Path,
) -> None:
    def check(trial: Any) -> None:
        if trial.params["weight_decay"] > MOST:
            raise RuntimeError("CUDA out of memory")

    settings = weight_is_measured(check)
    best = search(tmp_path, 27, pruner=LADDER_OF_0_8_0, max_failures=None, **settings)
    tried = [params["weight_decay"] for params in params_of(best)]
    failed = [state == "failed" for state in states(best)]
    assert sum(failed[9:]) <= 6, list(zip(tried, failed, strict=True))  # 17 of them, if nobody learns of failures
    assert max(weight for weight, has_failed in zip(tried, failed, strict=True) if not has_failed) > 45.0
