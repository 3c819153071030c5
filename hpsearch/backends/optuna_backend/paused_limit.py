"""A limit on the number of paused trials and on the disk space of their checkpoints."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import StudyError
from ...files import entries
from ...search.retention import CHECKPOINT
from ...search.study import check_whole
from ...search.trial import TrialRecord

# Of the free space on the study's disk plus the space that the checkpoints take already.
_SHARE_OF_THE_DISK = 0.5
# This many trials may always be paused: with fewer there is nothing to compare.
_LEAST = 3


@dataclass
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
    _sizes: dict[tuple[str, int], int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole("max_paused", self.number, _LEAST)
        given = self.most_bytes
        if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float)) or not given > 0):
            raise StudyError(f"max_paused_bytes must be a number above 0, or None, but got {given!r}.")

    def surplus(self, paused: Sequence[TrialRecord], folder: Path) -> tuple[list[TrialRecord], str]:
        """Return the trials beyond the limit, and the limit in words.

        Args:
            paused: the paused trials, the best first.
            folder: of the study.
        """
        if len(paused) > self.number:
            return list(paused[self.number :]), f"more than {self.number} trials are paused (max_paused)"
        if len(paused) <= _LEAST:
            return [], ""
        sizes = [self._size(folder / each.name, each) for each in paused]
        most = self.most_bytes
        if most is None:
            most = _SHARE_OF_THE_DISK * (shutil.disk_usage(folder).free + sum(sizes))
        kept, taken = _LEAST, sum(sizes[:_LEAST])
        while kept < len(paused) and taken + sizes[kept] <= most:
            taken, kept = taken + sizes[kept], kept + 1
        taken_and_most = f"{sum(sizes) / 2**30:.3g} of {most / 2**30:.3g} GiB"
        return list(paused[kept:]), f"the checkpoints of paused trials take {taken_and_most} (max_paused_bytes)"

    def _size(self, run: Path, trial: TrialRecord) -> int:
        """Return the bytes of a trial's checkpoints, which do not change while it is paused."""
        key = (trial.name, trial.reports[-1].step if trial.reports else 0)
        if key not in self._sizes:
            self._sizes[key] = sum(sum(_sizes_in(each)) for each in entries(run, CHECKPOINT))
        return self._sizes[key]


def _sizes_in(folder: Path) -> Iterator[int]:
    """Yield the sizes of the files in a folder; not of what links lead to."""
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # the user may delete it
                yield os.lstat(os.path.join(at, name)).st_size
