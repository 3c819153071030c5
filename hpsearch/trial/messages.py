"""The messages of a process that trains a trial to the one that searches.

It waits for an answer to all of them but `Progress`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..search.space.parameters import Parameter
from ..search.trial_record import Report, TrialRecord


@dataclass(frozen=True)
class Progress:
    """The trial has done `step` of `max_steps` optimizer steps."""

    step: int
    max_steps: int


@dataclass(frozen=True)
class Noted:
    """State of the trial that its checkpoints do not hold: changed arguments, or smaller batches.

    The trial waits until this is on disk.

    Attributes:
        so_far: the record of the trial as it is now.
    """

    so_far: TrialRecord


@dataclass(frozen=True)
class Reported:
    """The trial was evaluated, and waits for a `Verdict`.

    Attributes:
        report: the evaluation.
        new_values: values and resources that the pruner does not know yet; of a resumed trial, those from before too.
        is_comparable: whether the last of these is that of this report, which a pruner or scheduler may judge.
        is_last: whether the trial has trained to its end.
        so_far: the record of the trial as it is now.
    """

    report: Report
    new_values: tuple[tuple[float, int], ...]
    is_comparable: bool
    is_last: bool
    so_far: TrialRecord


@dataclass(frozen=True)
class Question:
    """`model_init` asks for a value of a parameter, and waits."""

    name: str
    parameter: Parameter


@dataclass(frozen=True)
class Saved:
    """The trial has written the checkpoint that a verdict has asked for (`Verdict.save`), and waits.

    The executor that gave the verdict receives it, in place of the coordinator.
    """

    step: int


@dataclass(frozen=True)
class Notice:
    """A notice to the user about the trial, or the search."""

    text: str


Message = Progress | Noted | Reported | Question | Notice
