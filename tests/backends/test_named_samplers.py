"""Samplers of Optuna by name."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from hpsearch.ledger.named_samplers import SAMPLERS, as_sampler
from hpsearch.ledger.quiet import quiet_optuna


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_every_name_makes_the_sampler_of_optuna_with_the_seed(name: str) -> None:
    distributions = {"rate": FloatDistribution(0.0, 1.0, step=0.25), "size": IntDistribution(1, 9, step=2)}

    def first_choices(sampler: optuna.samplers.BaseSampler) -> list[dict[str, Any]]:
        with quiet_optuna():
            study = optuna.create_study(sampler=sampler)
            return [study.ask(distributions).params for _ in range(3)]

    made = as_sampler(name, seed=5, runs_several=False)
    assert type(made) is SAMPLERS[name]
    with quiet_optuna():
        same = SAMPLERS[name](seed=5)  # type: ignore[call-arg]
    assert first_choices(made) == first_choices(same)


@pytest.mark.parametrize("runs_several", [True, False])
def test_tpe_by_name_keeps_away_from_running_trials_if_trials_are_parallel(runs_several: bool) -> None:
    assert as_sampler("tpe", 5, runs_several)._constant_liar is runs_several  # type: ignore[attr-defined]
