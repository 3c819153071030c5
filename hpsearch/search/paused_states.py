"""Checkpoints of trials that wait, in memory: up to a budget that the user states; the others are on disk, as all are.

In the folder of its run such a checkpoint is a link to a folder of a file system that lies in memory (`/dev/shm`, on
Linux). So every process of this machine finds it where it looks for checkpoints, and goes on from it; it outlives
processes that are killed, though not the machine. When a search ends, what is left is brought to disk; of one that was
killed, when the study is next searched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import StudyError
from ..files import entries, prepare_link, read_json, remove_folder, remove_partial, whole_folder, write_json
from ..locks import KernelLock
from .retention import CHECKPOINT
from .sessions import are_all_on_this_machine, host
from .study import Study

MEMORY = Path("/dev/shm")  # noqa: S108 - the folder that is made there is this user's alone
# In the study's folder: where its folder in memory is.
PLACE_FILE = "memory.json"
# In the folder in memory: a lock, and for each checkpoint that is being written how many bytes it is expected to have.
_LOCK, _EXPECTED = ".lock", ".expected-"


class PausedStates:
    """The checkpoints of a study's waiting trials that are in memory.

    Args:
        study: the settings; `paused_memory` is the budget.
    """

    def __init__(self, study: Study) -> None:
        self._folder, self._budget = study.folder, study.paused_memory

    @property
    def place(self) -> Path | None:
        """The study's folder in memory; None if it has none, or one of another machine."""
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a file that is damaged
            written = read_json(self._folder / PLACE_FILE)
            return None if written is None or written["host"] != host() else Path(written["place"])
        return None

    def begin(self, is_alone: bool = True) -> list[str]:
        """Bring to disk what a search that was killed has left in memory, and make room for this one; under the lock.

        Args:
            is_alone: no other search is at work in the study's folder; else what is in memory is theirs, and stays.

        Returns:
            The names of the runs whose checkpoints are lost, as the machine was started again.

        Raises:
            StudyError: there is no file system in memory.
        """
        lost = self._recover() if is_alone else []
        if self._budget and not (self._folder / PLACE_FILE).exists():
            place = MEMORY / f"hpsearch-{uuid.uuid4().hex}"
            try:
                place.mkdir(mode=0o700)
            except OSError as error:
                raise StudyError(
                    f"paused_memory={self._budget!r} needs a file system in memory, {MEMORY}, which cannot be used "
                    f"here: {error}. Leave it out: waiting trials are on disk then."
                ) from error
            try:
                write_json(self._folder / PLACE_FILE, {"place": str(place), "host": host()})
            except BaseException:
                place.rmdir()
                raise
        return lost

    def _recover(self) -> list[str]:
        if self.place is not None:
            for run in self._folder.glob("[!.]*/"):
                remove_partial(run)  # a checkpoint that was being brought to disk is a link again
        return self.end()

    def end(self) -> list[str]:
        """Bring all that is in memory to disk and delete the folder there; return the runs whose checkpoints are lost.

        What cannot be brought to disk stays in memory, and what is in that of another machine, there. No other search
        of this machine is at work in the study's folder.
        """
        place, lost, stays = self.place, [], False
        if place is None:
            return []
        for link in self._links(place, entries(self._folder, "")):
            if not link.exists():
                lost.append(link.parent.name)
                remove_folder(link)
                continue
            try:
                _spill(link)
            except OSError:
                stays = True
        if not stays:
            shutil.rmtree(place, ignore_errors=True)
            (self._folder / PLACE_FILE).unlink(missing_ok=True)
        return lost

    def make_room(self, checkpoint: Path, size: float) -> bool:
        """Let the checkpoint that is about to be written at this path lie in memory, if so many bytes fit.

        Otherwise, and if another machine is at the study, it will be written to disk.
        """
        if size > self._budget or checkpoint.exists():
            return False
        with contextlib.suppress(Exception):  # whatever is wrong there: the disk will do
            place = self.place
            if place is not None and place.is_dir() and are_all_on_this_machine(self._folder):
                with KernelLock(place / _LOCK):
                    return self._has_made_room(place, checkpoint, size)
        return False

    def written(self, checkpoint: Path) -> None:
        """Take the size that a checkpoint has got into account; one that does not fit after all goes to disk."""
        place = self.place if checkpoint.is_symlink() else None
        if place is None or checkpoint.readlink().parent != place:
            return
        with contextlib.suppress(OSError):  # it is whole; where it is does not matter
            with KernelLock(place / _LOCK):
                (place / f"{_EXPECTED}{checkpoint.readlink().name}").unlink(missing_ok=True)
                is_too_much = _used(place) > self._budget
            if is_too_much:
                _spill(checkpoint)

    def spill(self, *runs: str) -> None:
        """Bring the checkpoints of runs to disk; what cannot be brought there stays where it is, until the end."""
        place = self.place
        if place is None:
            return
        for link in self._links(place, [self._folder / run for run in runs]):
            with contextlib.suppress(OSError):
                _spill(link)

    def _has_made_room(self, place: Path, checkpoint: Path, size: float) -> bool:
        for expected in place.glob(f"{_EXPECTED}*"):
            target = expected.with_name(expected.name.removeprefix(_EXPECTED))
            if not self._is_expected(target):
                expected.unlink(missing_ok=True)
        if _used(place) + size > self._budget or shutil.disk_usage(place).free < 2 * size:
            return False
        target = place / f"{checkpoint.name}@{checkpoint.parent.name}"
        (place / f"{_EXPECTED}{target.name}").write_text(str(size))
        prepare_link(checkpoint, target)
        return True

    def _is_expected(self, target: Path) -> bool:
        """Tell whether a process has yet to write a checkpoint, or to note that it has: a link leads there."""
        run = self._folder / target.name.partition("@")[2]
        with contextlib.suppress(OSError):
            return any(each.is_symlink() and each.readlink() == target for each in run.iterdir())
        return False

    def _links(self, place: Path, runs: Iterable[Path]) -> Iterator[Path]:
        for link in (each for run in runs for each in entries(run, CHECKPOINT)):
            if link.is_symlink() and link.readlink().parent == place:
                yield link


def _used(place: Path) -> float:
    """Return the bytes of all checkpoints in memory, and those that are expected of the ones being written."""
    used = 0.0
    expected = {each.name.removeprefix(_EXPECTED): each for each in place.glob(f"{_EXPECTED}*")}
    for path in expected.values():
        with contextlib.suppress(FileNotFoundError):  # it has just been written
            used += float(path.read_text() or 0)
    for target in place.glob("checkpoint-*"):
        if target.name not in expected:
            for folder, _, files in os.walk(target):
                for name in files:
                    with contextlib.suppress(FileNotFoundError):  # the trial goes on, or is pruned, just now
                        used += os.stat(os.path.join(folder, name)).st_size
    return used


def _spill(link: Path) -> None:
    """Bring a checkpoint that is in memory to disk, in the place of the link."""
    with whole_folder(link) as partial:
        shutil.copytree(link, partial, dirs_exist_ok=True)
