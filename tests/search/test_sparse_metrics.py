"""A metric that is absent, or NaN, at some evaluations: value, checkpoint, BestRun and the disk agree all the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hpsearch import Float, MissingMetricError
from hpsearch.search.decisions.ladder import LADDER_OF_0_8_0
from tests.support.small_trainer import small_trainer

# After epochs 1 to 6; None: not there.
QUALITY = [0.5, None, 0.9, math.nan, 0.7, None]


class Sparse:
    """The metrics of one trial after the other, each evaluated six times."""

    def __init__(self, values: list[float | None]) -> None:
        self._values, self._calls = values, 0

    def __call__(self, prediction: Any) -> dict[str, float]:
        value = self._values[self._calls % len(self._values)]
        self._calls += 1
        return {"other": 0.0} if value is None else {"quality": value}


@pytest.mark.parametrize(
    ("scope", "value", "step"), [("last", 0.7, 20), ("all", 0.9, 12), ("avg", 0.7, 20), ("last-5-avg", 0.7, 20)]
)
@pytest.mark.parametrize("save_strategy", ["no", "epoch"])
def test_every_scope_looks_at_the_reports_there_are(
    tmp_path: Path, scope: str, value: float, step: int, save_strategy: str
) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=6, compute_metrics=Sparse(QUALITY), save_strategy=save_strategy)
    best = trainer.hyperparameter_search(
        {"learning_rate": Float(1e-3, 1e-1)},
        "quality",
        2,
        scope=scope,
        pruner="none",
        storage="journal",
        preflight=False,
        progress=False,
    )
    assert best.objective == pytest.approx(value)
    assert [record.value for record in best.run_summary.records] == [pytest.approx(value)] * 2
    assert best.checkpoint is not None
    assert best.checkpoint.name == f"checkpoint-{step}"
    assert sorted(path.name for path in (tmp_path / "study").glob("run-*/checkpoint-*")) == [f"checkpoint-{step}"]
    assert best.load_model() is not None
    stored = best.run_summary.engine_study.trials[0]
    assert stored.value == pytest.approx(value)
    assert sorted(stored.intermediate_values) == [1, 3, 5]


def test_a_metric_that_is_missing_at_the_very_first_evaluation_is_a_mistake(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, compute_metrics=Sparse([None, 0.5]))
    with pytest.raises(MissingMetricError, match="eval_quality"):
        trainer.hyperparameter_search(
            {"learning_rate": Float(1e-3, 1e-1)}, "quality", 2, storage="journal", progress=False
        )


def quality_of_each_third(metrics: dict[str, float]) -> float:
    """The accuracy, after every third epoch: a function that finds no metric says nothing."""
    return metrics["eval_accuracy" if round(metrics["epoch"]) % 3 == 1 else "eval_quality"]


@pytest.mark.slow
def test_with_rungs_trials_are_judged_at_the_next_report_that_has_the_metric(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, num_train_epochs=18)
    best = trainer.hyperparameter_search(
        {"learning_rate": Float(1e-4, 1.0, log=True)},
        quality_of_each_third,
        12,
        "maximize",
        storage="journal",
        pruner=LADDER_OF_0_8_0,
        preflight=False,
        progress=False,
    )
    records = best.run_summary.records
    assert {len(each.reports) for each in records} <= {1, 4, 10, 18}  # the rungs are after 1, 3 and 9 epochs
    assert {len(each.reports) for each in records} >= {1, 4, 18}
