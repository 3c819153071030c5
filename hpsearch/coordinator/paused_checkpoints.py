"""The checkpoints of paused trials on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..search.store.own_files import is_own_folder
from ..search.store.retention import CHECKPOINT
from ..search.trial_record import TrialRecord
from ..system.files import entries


class PausedCheckpoints:
    """Measures the checkpoints of paused trials; each once, as they do not change while a trial is paused.

    Args:
        folder: of the study.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[tuple[str, int], int] = {}

    def sizes(self, paused: Sequence[TrialRecord]) -> Mapping[int, int]:
        """Return the bytes of the checkpoints of these trials, by number."""
        return {each.number: self._size(each) for each in paused}

    @property
    def free_bytes(self) -> float:
        """The bytes that are free on the disk of the study."""
        return shutil.disk_usage(self._folder).free

    def lost(self, paused: Sequence[TrialRecord]) -> frozenset[int]:
        """Return the numbers of those of the trials that have no checkpoint: a user may have deleted it."""
        runs = {each.number: self._folder / each.name for each in paused}
        return frozenset(
            number for number, run in runs.items() if not any(is_own_folder(each, run) for each in _checkpoints(run))
        )

    def _size(self, trial: TrialRecord) -> int:
        key = (trial.name, trial.reports[-1].step if trial.reports else 0)
        if key not in self._sizes:
            self._sizes[key] = sum(sum(_sizes_in(each)) for each in entries(self._folder / trial.name, CHECKPOINT))
        return self._sizes[key]


def _checkpoints(run: Path) -> Iterator[Path]:
    return run.glob(f"{CHECKPOINT}*")


def _sizes_in(folder: Path) -> Iterator[int]:
    """Yield the sizes of the files in a folder; not of what links lead to."""
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # the user may delete it
                yield os.lstat(os.path.join(at, name)).st_size
