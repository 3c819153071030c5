"""A limit on the number of paused trials and on the disk space of their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import StudyError
from ..study import check_whole
from ..trial_record import TrialRecord

# Of the free space on the study's disk plus the space that the checkpoints take already.
_FRACTION_OF_THE_DISK = 0.5
# This many trials may always be paused: with fewer there is nothing to compare.
_LEAST = 3


@dataclass(frozen=True)
class PausedLimit:
    """A limit on paused trials and on the bytes of their checkpoints; the three best are always kept.

    Args:
        number: the most trials that may be paused.
        most_bytes: the most bytes that all their checkpoints may take; None: half of the available disk space.

    Raises:
        StudyError: one of them is no number, or is too small.
    """

    number: int = 50
    most_bytes: float | None = None

    def __post_init__(self) -> None:
        check_whole("max_paused", self.number, _LEAST)
        given = self.most_bytes
        if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float)) or not given > 0):
            raise StudyError(f"max_paused_bytes must be a number above 0, or None, but got {given!r}.")

    def surplus(
        self, paused: Sequence[TrialRecord], sizes: Mapping[int, int], free: float = math.inf
    ) -> tuple[list[TrialRecord], str]:
        """Return the trials beyond the limit, and the limit in words.

        Args:
            paused: the paused trials, the best first.
            sizes: by number, the bytes of their checkpoints; 0 of those that are not there.
            free: the bytes that are free on the disk.
        """
        if len(paused) > self.number:
            return list(paused[self.number :]), f"more than {self.number} trials are paused (max_paused)"
        each = [sizes.get(trial.number, 0) for trial in paused]
        most = _FRACTION_OF_THE_DISK * (free + sum(each)) if self.most_bytes is None else self.most_bytes
        kept, taken = min(_LEAST, len(paused)), sum(each[:_LEAST])
        while kept < len(paused) and taken + each[kept] <= most:
            taken, kept = taken + each[kept], kept + 1
        taken_and_most = f"{sum(each) / 2**30:.3g} of {most / 2**30:.3g} GiB"
        return list(paused[kept:]), f"the checkpoints of paused trials take {taken_and_most} (max_paused_bytes)"
