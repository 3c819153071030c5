"""How many trials may wait at rungs, and how much their checkpoints may take on the disk."""

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

# Of what is free on the disk of the study, with what they take already.
_SHARE_OF_THE_DISK = 0.5
# So many may always wait: else none could ever be better than another.
_LEAST = 3


@dataclass
class PausedLimit:
    """How many trials may wait at rungs with a checkpoint, and how many bytes these may have; three always may.

    Args:
        number: of trials.
        most_bytes: of the checkpoints of all of them; None: half of what the disk has room for.

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

    def surplus(self, waiting: Sequence[TrialRecord], folder: Path) -> tuple[list[TrialRecord], str]:
        """Return which trials are too many, and the limit that they break, in words.

        Args:
            waiting: the trials that wait, the best first.
            folder: of the study.
        """
        if len(waiting) > self.number:
            return list(waiting[self.number :]), f"more than {self.number} trials wait (max_paused)"
        if len(waiting) <= _LEAST:
            return [], ""
        sizes = [self._size(folder / each.name, each) for each in waiting]
        most = self.most_bytes
        if most is None:
            most = _SHARE_OF_THE_DISK * (shutil.disk_usage(folder).free + sum(sizes))
        kept, taken = _LEAST, sum(sizes[:_LEAST])
        while kept < len(waiting) and taken + sizes[kept] <= most:
            taken, kept = taken + sizes[kept], kept + 1
        taken_and_most = f"{sum(sizes) / 2**30:.3g} of {most / 2**30:.3g} GiB"
        return list(waiting[kept:]), f"the checkpoints of waiting trials take {taken_and_most} (max_paused_bytes)"

    def _size(self, run: Path, trial: TrialRecord) -> int:
        """Return the bytes of a trial's checkpoints, which do not change while it waits."""
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
