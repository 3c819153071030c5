"""The bar and the table that show a training run in a notebook."""

from __future__ import annotations

from typing import Any

from transformers import TrainerControl, TrainerState
from transformers import TrainingArguments as TransformersArguments
from transformers.utils.notebook import NotebookProgressCallback


class NotebookProgress(NotebookProgressCallback):
    """transformers' bar and table, which removes no metrics from those that `evaluate` returns."""

    def on_evaluate(
        self,
        args: TransformersArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add a row of a copy of the metrics."""
        super().on_evaluate(args, state, control, metrics=dict(metrics or {}), **kwargs)
