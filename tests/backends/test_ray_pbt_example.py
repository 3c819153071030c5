"""Ray's example of population-based training with transformers, with its import swapped, and a small model and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune import CheckpointConfig, CLIReporter
from ray.tune.schedulers import PopulationBasedTraining

from hpsearch import BestRun, StudyError, Trainer, TrainingArguments
from tests.support.models import bert_classifier, classification_data
from tests.support.searching import states

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]

BATCH_SIZE = "per_device_train_batch_size"
# In newer versions of the example, and in older ones.
CHECKPOINTS = (
    {"checkpoint_config": CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="training_iteration")},
    {"keep_checkpoints_num": 1, "checkpoint_score_attr": "training_iteration"},
)


def acc(prediction: Any) -> dict[str, float]:
    return {"acc": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())}


def search(folder: Path, is_smoke_test: bool, checkpoints: dict[str, Any], **mutations: Any) -> BestRun:
    """Make the calls of the example; its batch size is in the space, unless the `mutations` name it."""
    args = TrainingArguments(
        output_dir=str(folder),
        learning_rate=1e-5,
        do_train=True,
        do_eval=True,
        use_cpu=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        num_train_epochs=2,
        max_steps=-1,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        warmup_steps=0,
        weight_decay=0.1,
        skip_memory_metrics=True,
        report_to="none",
    )
    trainer = Trainer(
        model_init=bert_classifier,
        args=args,
        train_dataset=classification_data(32),
        eval_dataset=classification_data(16, seed=1),
        compute_metrics=acc,
    )
    space = {
        BATCH_SIZE: 32 if BATCH_SIZE in mutations else tune.choice([16, 32]),
        "per_device_eval_batch_size": 32,
        "num_train_epochs": tune.choice([2, 3]),
        "max_steps": 1 if is_smoke_test else -1,
    }
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="eval_acc",
        mode="max",
        perturbation_interval=1,
        hyperparam_mutations={
            "weight_decay": tune.uniform(0.0, 0.3),
            "learning_rate": tune.uniform(1e-5, 5e-5),
            **mutations,
        },
    )
    return trainer.hyperparameter_search(
        hp_space=lambda _: space,
        backend="ray",
        n_trials=1 if is_smoke_test else 3,
        resources_per_trial={"cpu": 1, "gpu": 0},
        scheduler=scheduler,
        stop={"training_iteration": 1} if is_smoke_test else None,
        progress_reporter=CLIReporter(parameter_columns={"weight_decay": "w_decay"}, metric_columns=["eval_acc"]),
        local_dir="~/ray_results/",
        name="tune_transformer_pbt",
        log_to_file=True,
        **checkpoints,
    )


def test_it_is_refused_by_one_error_about_the_only_thing_to_change(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as caught:
        search(tmp_path, False, CHECKPOINTS[0], **{BATCH_SIZE: [16, 32, 64]})
    assert "scheduler=PopulationBasedTraining perturbs 'per_device_train_batch_size': " in str(caught.value)
    assert str(caught.value).endswith(
        "Move it from the scheduler to hp_space, where it does not change during a trial."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("is_smoke_test", "checkpoints"), list(zip((True, False), CHECKPOINTS, strict=True)))
def test_with_the_batch_size_in_the_space_it_runs(
    tmp_path: Path, is_smoke_test: bool, checkpoints: dict[str, Any]
) -> None:
    best = search(tmp_path, is_smoke_test, checkpoints)
    assert best.run_summary.study.folder == tmp_path / "tune_transformer_pbt"
    assert states(best) == ["complete"] * (1 if is_smoke_test else 3)
    assert best.run_summary.study.objective.direction == "maximize"
    assert best.objective == max(record.value for record in best.run_summary.records)
    assert set(best.hyperparameters) >= {BATCH_SIZE, "num_train_epochs", "weight_decay", "learning_rate"}
    assert best.load_model().config.num_labels == 2
