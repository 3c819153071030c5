"""Trials of TRL's trainers that pause, or are interrupted, make the numbers of those that train without a break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file

from hpsearch import BestRun, Float, SearchInterrupted, TrialState, tune
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from tests.support.interrupting import InterruptsOnce

pytestmark = [
    pytest.mark.packages,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SFT": ("supervised", {}),
    "DPO": ("preference", {}),
    "DPO with an updated reference model": ("preference", {"sync_ref_model": True, "ref_model_sync_steps": 2}),
    "DPO with reference log-probabilities": ("preference", {"precompute_ref_log_probs": True}),
    "KTO": ("unpaired_preference", {}),
    "Reward": ("reward", {}),
    "GRPO": ("group_relative", {}),
    "GRPO with two iterations": ("group_relative", {"num_iterations": 2}),
    "GRPO that generates for several steps": (
        "group_relative",
        {"prompts": 8, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
    ),
    "GRPO with an updated reference model": (
        "group_relative",
        {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2},
    ),
    "RLOO": ("leave_one_out", {}),
    "RLOO with two iterations": ("leave_one_out", {"num_iterations": 2}),
}


def make_function(name: str, **changes: Any) -> Callable[[Any], transformers.Trainer]:
    from tests.support import trl_trainers

    kind, arguments = TRAINERS[name]
    make: Callable[[Any], transformers.Trainer] = getattr(trl_trainers, kind)(**arguments, **changes)
    return make


def search(make: Callable[[Any], Any], output_dir: str, n_trials: int, **options: Any) -> BestRun:
    best: BestRun = tune(
        make,
        {"learning_rate": Float(1e-3, 1e-2, log=True)},
        output_dir=output_dir,
        n_trials=n_trials,
        compute_objective="loss",
        direction="minimize",
        keep_checkpoints=None,
        progress=False,
        storage="journal",
        **options,
    )
    return best


def assert_same(record: Any, whole: Any) -> None:
    """Check that two trials have the same reports, all of their metrics but the times, and the same weights."""
    assert [numbers(report) for report in record.reports] == [numbers(report) for report in whole.reports]
    weights, expected = (load_file(Path(each.checkpoint, "model.safetensors")) for each in (record, whole))
    assert weights.keys() == expected.keys()
    assert all(weights[name].equal(expected[name]) for name in expected)


def numbers(report: Any) -> dict[str, float]:
    is_time = ("_runtime", "_per_second")
    return {"step": report.step, **{k: v for k, v in report.metrics.items() if not k.endswith(is_time)}}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_paused_trial_makes_the_numbers_of_an_uninterrupted_one(name: str) -> None:
    make = make_function(name)
    paused = search(make, "paused", 4, pruner=LADDER_OF_0_8_0).run_summary.records
    resumed = [each for each in paused if each.state is TrialState.COMPLETE and len(each.spans) > 1]
    assert resumed, "no trial has paused and trained to its end"
    whole = search(make, "whole", len(resumed), pruner=None, start_with=[each.params for each in resumed])
    for record, expected in zip(resumed, whole.run_summary.records, strict=True):
        assert_same(record, expected)


@pytest.mark.parametrize("name", ["GRPO", "GRPO with two iterations", "RLOO"])
def test_an_interrupted_trial_makes_the_numbers_of_an_uninterrupted_one(name: str) -> None:
    make = make_function(name, save_strategy="steps", save_steps=1)

    def interrupted(trial: Any) -> transformers.Trainer:
        trainer = make(trial)
        trainer.add_callback(InterruptsOnce(at=5))
        return trainer

    with pytest.raises(SearchInterrupted):
        search(interrupted, "interrupted", 1)
    [record] = search(interrupted, "interrupted", 1).run_summary.records
    [expected] = search(make, "whole", 1, start_with=record.params).run_summary.records
    assert_same(record, expected)
