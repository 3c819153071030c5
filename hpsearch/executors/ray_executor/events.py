"""Events in the results that Tune forwards: a message of the trial, its end, or a failure to start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# The key of Tune's configs that holds the `Assignment`, and of its results that holds the event.
KEY = "hpsearch"
TuneConfig = dict[str, Any]
"""What Tune hands to a worker: the `Assignment` of its trial, and the parameters that schedulers change."""
TuneResult = dict[str, Any]
"""What a worker returns to Tune: an event of its trial, and what schedulers and searchers compare."""


@dataclass(frozen=True)
class Unusable:
    """The worker cannot begin its trial.

    Attributes:
        reason: why.
        has_trainer: whether it could load the trainer, but not reach the checkpoints of the trial.
    """

    reason: str
    has_trainer: bool
