"""Metrics of the `evaluate` library, from a file of ours: by hand and as `compute_metrics` of our trainer (row 137)."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpsearch import Trainer
from tests.support.line_trainer import line_trainer
from tests.support.models import bert_classifier, classification_data

evaluate = pytest.importorskip("evaluate")

SCRIPT = Path(__file__).parents[2] / "studies" / "metrics" / "accuracy_and_f1.py"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`evaluate.load` of our metric, with its caches in the test's folder."""
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path / "modules")
    return lambda **options: evaluate.load(str(SCRIPT), cache_dir=str(tmp_path / "cache"), **options)


def classifier_trainer(folder: Path, compute_metrics: Any = None, **changes: Any) -> Trainer:
    data = classification_data(40)
    trainer = {
        "model_init": bert_classifier,
        "train_dataset": data,
        "eval_dataset": classification_data(29, seed=1),
        "compute_metrics": compute_metrics,
    }
    return line_trainer(folder, trainer, **changes)


def test_the_metric_gives_the_numbers_of_its_definition(load: Any) -> None:
    scores = load().compute(predictions=[1, 1, 0, 0, 1], references=[1, 0, 0, 1, 1])
    assert scores == pytest.approx({"accuracy": 3 / 5, "f1": 2 * 2 / (3 + 3)})
    assert load().compute(predictions=[0, 0], references=[0, 0]) == {"accuracy": 1.0, "f1": 0.0}


@pytest.mark.feature(137)
def test_the_metric_agrees_with_scikit_learn(load: Any) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    predictions, references = random.integers(0, 2, size=(2, 100))
    scores = load().compute(predictions=predictions, references=references)
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(references, predictions))
    assert scores["f1"] == pytest.approx(metrics.f1_score(references, predictions))


@pytest.mark.feature(137)
def test_a_loop_over_batches_gives_what_our_trainer_evaluates_to(tmp_path: Path, load: Any) -> None:
    metric = load()

    def compute_metrics(prediction: Any) -> dict[str, float]:
        return load().compute(predictions=prediction.predictions.argmax(-1), references=prediction.label_ids)

    trainer = classifier_trainer(tmp_path / "out", compute_metrics, eval_strategy="epoch")
    trainer.train()
    evaluated = trainer.evaluate()
    for batch in trainer.get_eval_dataloader():
        with torch.no_grad():
            logits = trainer.model.eval()(**batch).logits
        metric.add_batch(predictions=logits.argmax(-1), references=batch["labels"])
    by_hand = metric.compute()
    assert 0 < by_hand["accuracy"] < 1
    assert {f"eval_{name}": value for name, value in by_hand.items()} == pytest.approx(
        {name: evaluated[name] for name in ("eval_accuracy", "eval_f1")}
    )


@pytest.mark.feature(137)
def test_a_metric_that_collects_batch_by_batch_gives_the_same_numbers(tmp_path: Path, load: Any) -> None:
    metric = load()

    def batch_by_batch(prediction: Any, compute_result: bool) -> dict[str, float]:
        metric.add_batch(predictions=prediction.predictions.argmax(-1), references=prediction.label_ids)
        return metric.compute() if compute_result else {}

    def at_once(prediction: Any) -> dict[str, float]:
        return load().compute(predictions=prediction.predictions.argmax(-1), references=prediction.label_ids)

    names = ("eval_accuracy", "eval_f1")
    collected = classifier_trainer(tmp_path / "out", batch_by_batch, batch_eval_metrics=True).evaluate()
    whole = classifier_trainer(tmp_path / "out", at_once).evaluate()
    assert {name: collected[name] for name in names} == {name: whole[name] for name in names}


def test_the_metric_steers_the_best_model(tmp_path: Path, load: Any) -> None:
    trainer = classifier_trainer(
        tmp_path / "out",
        lambda prediction: load().compute(
            predictions=prediction.predictions.argmax(-1), references=prediction.label_ids
        ),
        eval_strategy="epoch",
        save_strategy="epoch",
        num_train_epochs=3,
        load_best_model_at_end=True,
        metric_for_best_model="f1",
    )
    trainer.train()
    scores = [entry["eval_f1"] for entry in trainer.state.log_history if "eval_f1" in entry]
    assert len(scores) == 3
    assert trainer.state.best_metric == max(scores)


def test_the_file_is_a_metric_and_nothing_else() -> None:
    from studies.metrics.accuracy_and_f1 import AccuracyAndF1

    assert issubclass(AccuracyAndF1, evaluate.Metric)
    assert inspect.getdoc(AccuracyAndF1)
