"""The cost of a trial is the number of operations of its training run, the same whenever it is trained."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hpsearch import Categorical, Report, SearchInterrupted, Trainer, tune
from hpsearch.search.store.stored_record import record_from_json
from hpsearch.search.trial_record import TrialRecord, TrialState
from hpsearch.training.flops import operations_per_token
from tests.support.models import bert_classifier, classification_data
from tests.support.searching import AtStep, interrupt
from tests.support.small_trainer import small_trainer, transformers_trainer

LENGTH, SAMPLES = 12, 16
DATA = {
    "train_dataset": classification_data(SAMPLES, length=LENGTH),
    "eval_dataset": classification_data(4, length=LENGTH, seed=1),
}
QUIET: dict[str, Any] = {"progress": False, "preflight": False, "storage": "journal", "pruner": None}


def frozen_encoder() -> Any:
    model = bert_classifier(hidden=8)
    model.bert.requires_grad_(False)
    return model


def counts(found: Any) -> list[list[float]]:
    return [[each.operations for each in record.reports] for record in found.run_summary.records]


def image_classifier() -> Any:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=2)
    )


IMAGES = [{"pixel_values": torch.full((3, 8, 8), 0.1 * at), "labels": at % 2} for at in range(SAMPLES)]
IMAGE_DATA = {"train_dataset": IMAGES, "eval_dataset": IMAGES[:4], "compute_metrics": None}


@pytest.mark.parametrize(
    ("make", "per_token"),
    [
        (bert_classifier, 6 * 9730),
        (frozen_encoder, 2 * 688 + 4 * 16 + 6 * 2),  # encoder, weight and bias of the classifier
    ],
)
def test_every_report_has_the_operations_up_to_it(tmp_path: Path, make: Any, per_token: int) -> None:
    trainer = small_trainer(tmp_path, model_init=make, **DATA)
    best = trainer.hyperparameter_search({"per_device_train_batch_size": Categorical([4, 8])}, "loss", 2, **QUIET)
    assert counts(best) == [[per_token * SAMPLES * LENGTH, per_token * 2 * SAMPLES * LENGTH]] * 2


def test_trainers_of_transformers_count_the_same(tmp_path: Path) -> None:
    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer(tmp_path / "made", bert_classifier(), **DATA, **trial.params)

    space = {"learning_rate": Categorical([0.01, 0.02])}
    theirs = tune(make, space, output_dir=str(tmp_path / "out"), compute_objective="loss", n_trials=1, **QUIET)
    trainer = small_trainer(tmp_path, model_init=bert_classifier, **DATA)
    assert counts(theirs) == counts(trainer.hyperparameter_search(space, "loss", 1, **QUIET))
    assert counts(theirs)[0][0] > 0


@pytest.mark.parametrize(
    ("make", "data"), [(bert_classifier, DATA), (frozen_encoder, DATA), (image_classifier, IMAGE_DATA)]
)
def test_a_trial_that_was_interrupted_has_the_operations_of_one_that_was_not(
    tmp_path: Path, make: Any, data: dict[str, Any]
) -> None:
    def search(folder: str, *callbacks: Any) -> Any:
        trainer = small_trainer(
            tmp_path / folder, *callbacks, model_init=make, save_strategy="steps", save_steps=3, **data
        )
        return trainer.hyperparameter_search({"learning_rate": Categorical([0.01])}, "loss", 1, **QUIET)

    whole = search("whole")
    with pytest.raises(SearchInterrupted):
        search("parts", AtStep(interrupt, run=0, step=5))
    assert counts(search("parts")) == counts(whole)


def test_a_model_that_is_not_of_transformers_is_not_counted(tmp_path: Path) -> None:
    best = small_trainer(tmp_path).hyperparameter_search({"learning_rate": Categorical([0.01])}, "loss", 1, **QUIET)
    assert counts(best) == [[0.0, 0.0]]


@pytest.mark.parametrize("batch_size", [4, 5])
def test_images_count_by_sample_not_by_pixel(tmp_path: Path, batch_size: int) -> None:
    per_sample = operations_per_token(image_classifier())
    changes = {"per_device_train_batch_size": batch_size, **IMAGE_DATA}
    trainer = small_trainer(tmp_path / "ours", model_init=image_classifier, **changes)
    space = {"learning_rate": Categorical([0.01])}
    best = trainer.hyperparameter_search(space, "loss", 1, **QUIET)
    assert counts(best) == [[per_sample * SAMPLES, per_sample * 2 * SAMPLES]]

    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer(tmp_path / "made", image_classifier(), **changes, **trial.params)

    theirs = tune(make, space, output_dir=str(tmp_path / "out"), compute_objective="loss", n_trials=1, **QUIET)
    assert counts(theirs) == counts(best)


def test_a_count_of_the_users_own_is_taken_as_it_is(tmp_path: Path) -> None:
    class Counts(Trainer):
        def floating_point_ops(self, inputs: Any) -> int:
            return 1000

    class CountsToo(transformers.Trainer):
        def floating_point_ops(self, inputs: Any) -> int:
            return 1000

    class Model(transformers.BertForSequenceClassification):
        def floating_point_ops(self, inputs: Any) -> int:
            return 1000

    def frozen_model() -> Any:
        model = Model(frozen_encoder().config)
        model.bert.requires_grad_(False)
        return model

    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer(tmp_path / "made", frozen_encoder(), kind=CountsToo, **DATA, **trial.params)

    space = {"learning_rate": Categorical([0.01])}
    ours = small_trainer(tmp_path / "ours", kind=Counts, model_init=frozen_encoder, **DATA)
    models = small_trainer(tmp_path / "models", model_init=frozen_model, **DATA)
    found = [each.hyperparameter_search(space, "loss", 1, **QUIET) for each in (ours, models)]
    found.append(tune(make, space, output_dir=str(tmp_path / "out"), compute_objective="loss", n_trials=1, **QUIET))
    assert [counts(each) for each in found] == [[[4000, 8000]]] * 3  # of four batches an epoch


def test_a_report_of_0_8_0_is_read_without_operations(tmp_path: Path) -> None:
    record = TrialRecord(
        0, "run-0", TrialState.COMPLETE, {}, values=(0.5,), reports=(Report((0.5,), 1, 1, 1.0, {}, operations=9.0),)
    )
    written = record.to_json()
    assert record_from_json(written, tmp_path).reports == record.reports
    del written["reports"][0]["operations"]
    [read] = record_from_json(written, tmp_path).reports
    assert asdict(read) == {**asdict(record.reports[0]), "operations": 0.0}
