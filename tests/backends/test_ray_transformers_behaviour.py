"""What transformers' own test of `hyperparameter_search` on Ray asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ray import tune
from transformers.utils.hp_naming import TrialShortNamer

from tests.support.models import Line, line_data
from tests.support.small_trainer import small_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


class ShortNames(TrialShortNamer):
    DEFAULTS = {"a": 0, "b": 0}


def space(trial: Any) -> dict[str, Any]:
    return {"a": tune.randint(-4, 4), "b": tune.randint(-4, 4)}


def line_from(config: Any) -> Line:
    """A line that begins with the numbers of the trial; without one, at zero."""
    a, b = (0, 0) if config is None else (config["a"], config["b"])
    line = Line()
    torch.nn.init.constant_(line.linear.weight, float(a))
    torch.nn.init.constant_(line.linear.bias, float(b))
    return line


def short_name(params: Any) -> str:
    return str(ShortNames.shortname(params))


def test_plain_names_of_the_space_are_for_model_init_and_name_the_runs(tmp_path: Path) -> None:
    trainer = small_trainer(
        tmp_path,
        model_init=line_from,
        train_dataset=line_data(16),
        eval_dataset=line_data(8, seed=1),
        compute_metrics=None,
        learning_rate=0.1,
        logging_steps=1,
        save_strategy="epoch",
        num_train_epochs=4,
        load_best_model_at_end=True,
        run_name="test",
    )
    best = trainer.hyperparameter_search(
        direction="minimize", hp_space=space, hp_name=short_name, backend="ray", n_trials=4
    )
    assert best is not None
    assert best.run_summary.study.objective.direction == "minimize"
    records = best.run_summary.records
    assert len(records) == 4
    for record in records:
        assert set(record.params) == {"a", "b"}
        assert all(-4 <= value < 4 for value in record.params.values())
        assert record.name == short_name(record.params)
    assert best.objective == min(record.value for record in records if record.state.has_result)
