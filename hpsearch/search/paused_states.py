"""Where trials that wait keep their checkpoints: in memory up to a budget, the others on disk, as ordinary ones.

In the folder of its run such a checkpoint is a link to a folder of a file system that lies in memory (`/dev/shm`, on
Linux). So every process of this machine finds it where it looks for checkpoints, and goes on from it; it outlives
processes that are killed, though not the machine. When a search ends, what is left is brought to disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
from filelock import FileLock

from ..files import PARTIAL_MARK, prepare_link, remove_folder, whole_folder, write_text
from .sessions import are_all_on_this_machine
from .study import Study

MEMORY = Path("/dev/shm")  # noqa: S108 - the folder that is made there is this user's alone
_SHARE_OF_MEMORY = 1 / 20
# In the folder of a study in memory: the study's folder on disk, a lock, and beside each checkpoint that is being
# written a file with the bytes it is expected to have.
_OF, _LOCK, _EXPECTED = "of", "lock", ".expected"


def budget_of(study: Study) -> float:
    """Return how many bytes of checkpoints of waiting trials may be in memory; 0 where none can be."""
    if os.name != "posix" or not MEMORY.is_dir():
        return 0.0
    return psutil.virtual_memory().total * _SHARE_OF_MEMORY if study.paused_memory is None else study.paused_memory


class PausedStates:
    """The checkpoints of a study's waiting trials that are in memory.

    Args:
        study: the settings; `paused_memory` is the budget.
    """

    def __init__(self, study: Study) -> None:
        self._folder, self._budget = study.folder.absolute(), budget_of(study)
        name = hashlib.sha256(os.fsencode(self._folder)).hexdigest()[:16]
        self.place = MEMORY / f"hpsearch-{os.getuid() if os.name == 'posix' else ''}-{name}"

    def make_room(self, checkpoint: Path, size: float) -> bool:
        """Let the checkpoint that is about to be written at this path lie in memory, if so many bytes fit.

        Otherwise, and if another machine is at the study, it will be written to disk.
        """
        if size > self._budget or checkpoint.exists() or not are_all_on_this_machine(self._folder):
            return False
        with contextlib.suppress(OSError):  # nobody may write there: the disk will do
            if self._is_own():
                return self._has_made_room(checkpoint, size)
        return False

    def written(self, checkpoint: Path) -> None:
        """Take the size that a checkpoint has got into account; one that does not fit after all goes to disk."""
        if not checkpoint.is_symlink():
            return
        with self._locked():
            self._expected(self._target(checkpoint)).unlink(missing_ok=True)
            is_too_much = self._used() > self._budget
        if is_too_much:
            _spill(checkpoint)

    def end(self) -> None:
        """Bring all that is in memory to disk, and leave nothing there; no search is at work in the folder any more."""
        for run in self._folder.glob("[!.]*/"):
            spill_all(run)
        shutil.rmtree(self.place, ignore_errors=True)

    def _has_made_room(self, checkpoint: Path, size: float) -> bool:
        with self._locked():
            self._tidy()
            if self._used() + size > self._budget or shutil.disk_usage(MEMORY).free < 2 * size:
                return False
            target = self._target(checkpoint)
            shutil.rmtree(target, ignore_errors=True)
            write_text(self._expected(target), str(size))
            prepare_link(checkpoint, target)
        return True

    def _is_own(self) -> bool:
        """Make the folder in memory, readable by this user only; False if it is somebody else's."""
        self.place.mkdir(mode=0o700, exist_ok=True)
        is_own = not self.place.is_symlink() and self.place.stat().st_uid == os.getuid()
        if is_own and not (self.place / _OF).exists():
            write_text(self.place / _OF, str(self._folder))
        return is_own

    def _locked(self) -> FileLock:
        return FileLock(self.place / _LOCK)

    def _tidy(self) -> None:
        """Delete what no run refers to any more, and what processes that died, and studies that are gone, have left."""
        for partial in self.place.glob(f"{PARTIAL_MARK}*"):
            writer = partial.name.removeprefix(PARTIAL_MARK).partition("-")[0]
            if not (writer.isdigit() and psutil.pid_exists(int(writer))):
                remove_folder(partial)
        for target in self._targets():
            link = self._folder.joinpath(*target.name.split("@", 1)[::-1])
            links = [link, *link.parent.glob(f"{PARTIAL_MARK}*{link.name}")]
            if not any(each.is_symlink() and os.readlink(each) == str(target) for each in links):
                shutil.rmtree(target, ignore_errors=True)
                self._expected(target).unlink(missing_ok=True)
        for other in MEMORY.glob(f"{self.place.name.rpartition('-')[0]}-*"):
            of = other / _OF
            if of.is_file() and not Path(of.read_text(encoding="utf-8")).is_dir():
                shutil.rmtree(other, ignore_errors=True)

    def _used(self) -> float:
        """Return the bytes of all checkpoints in memory, or that are expected of those being written."""
        return sum(self._size(target) for target in self._targets())

    def _size(self, target: Path) -> float:
        expected = self._expected(target)
        if expected.exists():
            return float(expected.read_text())
        return sum(each.stat().st_size for each in target.rglob("*") if each.is_file())

    def _targets(self) -> Iterator[Path]:
        """Yield the checkpoints in memory, written or expected."""
        names = {each.name.removesuffix(_EXPECTED) for each in self.place.glob("checkpoint-*@*")}
        return (self.place / name for name in sorted(names))

    def _target(self, checkpoint: Path) -> Path:
        return self.place / f"{checkpoint.name}@{checkpoint.parent.name}"

    @staticmethod
    def _expected(target: Path) -> Path:
        return target.with_name(f"{target.name}{_EXPECTED}")


def spill_all(run_folder: Path) -> None:
    """Bring the checkpoints of a run that are in memory to disk."""
    for checkpoint in run_folder.glob("checkpoint-*"):
        if checkpoint.is_symlink():
            _spill(checkpoint)


def _spill(link: Path) -> None:
    """Bring a checkpoint that is in memory to disk, in the place of the link; a link to nothing is deleted."""
    if not link.exists():
        remove_folder(link)
        return
    with whole_folder(link) as partial:
        shutil.copytree(link, partial, dirs_exist_ok=True)
