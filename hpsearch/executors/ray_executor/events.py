"""Events in the results that Tune forwards: a message of the trial, its end, or a failure to start."""

from __future__ import annotations

from dataclasses import dataclass

# The key of Tune's configs that holds the `Assignment`, and of its results that holds the event.
KEY = "hpsearch"


@dataclass(frozen=True)
class Unusable:
    """The worker cannot begin its trial.

    Attributes:
        reason: why.
        has_trainer: whether it could load the trainer, but not reach the checkpoints of the trial.
    """

    reason: str
    has_trainer: bool
