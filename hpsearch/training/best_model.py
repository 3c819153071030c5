"""The best model of one run by `metric_for_best_model`: tracked at every evaluation, loaded at the end."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer_utils import SaveStrategy, sort_checkpoints

from ..errors import MissingMetricError
from ..system.files import remove_folder
from ..system.spelling import nearest_name
from .weights import load_weights

if TYPE_CHECKING:
    from .run import TrainingRun

logger = logging.getLogger(__name__)


def metric_value(metrics: Mapping[str, float], name: str) -> float:
    """Return the metric `name`, with or without its ``eval_`` prefix.

    Raises:
        MissingMetricError: evaluation did not produce it; the message lists what it did.
    """
    key = name if name.startswith("eval_") else f"eval_{name}"
    try:
        return metrics[key]
    except KeyError:
        raise MissingMetricError(
            f"The `metric_for_best_model` training argument is set to {name!r}, but {key!r} is not found in the "
            f"evaluation metrics; they are {sorted(metrics)}.{nearest_name(key, metrics)}"
        ) from None


def track_best(run: TrainingRun, metrics: Mapping[str, float]) -> bool:
    """Update the best metric of the run's state; return whether these metrics are a new best."""
    args, state = run.args, run.state
    if args.metric_for_best_model is None:
        return False
    value = metric_value(metrics, args.metric_for_best_model)
    worst = float("-inf") if args.greater_is_better else float("inf")
    best = worst if state.best_metric is None else state.best_metric
    is_better = value > best if args.greater_is_better else value < best
    state.best_metric = value if is_better else best
    if is_better and args.save_strategy != SaveStrategy.NO:
        state.best_global_step = state.global_step
    return is_better


def load_best(run: TrainingRun) -> None:
    """Load the weights of the best checkpoint into the model, if `load_best_model_at_end` asks for it."""
    best = run.state.best_model_checkpoint
    if run.args.load_best_model_at_end:
        if best is not None and Path(best).is_dir():
            load_weights(run.model, best)
        else:
            logger.warning(
                "load_best_model_at_end: the best checkpoint (%s) does not exist; the model keeps its last weights.",
                best or f"none had a finite {run.args.metric_for_best_model}",
            )
    if run.args.should_save and best is not None and run.args.save_total_limit == 1 and Path(best).is_dir():
        for checkpoint in sort_checkpoints(run.args.output_dir):
            if not os.path.samefile(checkpoint, best):  # one of the two paths may be relative
                remove_folder(checkpoint)
