"""Accuracy and F1 of two classes, as a metric of the `evaluate` library.

evaluate.load("studies/metrics/accuracy_and_f1.py")
"""

from __future__ import annotations

from typing import Any

import datasets
import evaluate
import numpy as np


class AccuracyAndF1(evaluate.Metric):
    """`accuracy`: the fraction that is right; `f1`: the harmonic mean of precision and recall of class 1."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Accuracy, and F1 of class 1.",
            citation="",
            inputs_description="predictions, references: class numbers, 0 or 1",
            features=datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}),
        )

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        found, true = np.asarray(predictions) == 1, np.asarray(references) == 1
        either = int(found.sum() + true.sum())
        return {
            "accuracy": float((found == true).mean()),
            "f1": 2 * float((found & true).sum()) / either if either else 0.0,
        }
