"""The location of the checkpoints of running trials, from which any worker of the cluster can resume."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...search.store.live_sessions import has_signed_in
from ...search.store.retention import CHECKPOINT, SELECTED
from ...search.store.study_folder import remove_leftovers
from ...system.files import entries, remove_folder, whole_folder, write_text

# The number of copies of each trial that stay: the trial that takes one may have to wait for a worker.
KEPT_COPIES = 4
# Tune keeps its own files beside the runs while a search is at work, in a folder named by it and the search.
TUNE_FOLDER = ".ray-"
# In the folder of a run: the copy that its checkpoints have been taken from.
TAKEN = "taken-from"


class RunFolders(ABC):
    """The run folders of a study as a worker sees them.

    Attributes:
        session: the search that the workers are of.
        seconds_between_looks: how often a worker asks whether it still `is_wanted`.
    """

    session: str
    seconds_between_looks: ClassVar[float]

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The study's folder, on this node."""

    @property
    @abstractmethod
    def url_for_tune(self) -> str:
        """The location of Tune's folder."""

    @property
    def filesystem_for_tune(self) -> object:
        """What `url_for_tune` is on; None: it says so itself."""
        return None

    @abstractmethod
    def tidy(self, study_folder: Path) -> None:
        """Delete what searches of the study that were killed have left, but for the checkpoints of trials."""

    @abstractmethod
    def begin(self, run: str) -> None:
        """Take up a run: afterwards its folder holds the checkpoints that it resumes from."""

    @abstractmethod
    def keep(self, run: str) -> None:
        """Make the checkpoints that are in a run's folder now those that it resumes from."""

    @abstractmethod
    def leave(self, run: str) -> None:
        """Delete what the worker does not need any more of a run that has ended, or that it leaves to others."""

    @abstractmethod
    def send(self, run: str, study_folder: Path) -> None:
        """Let workers see the checkpoints that a half-done run has left in the study's own folder.

        Raises:
            StorageError: they cannot be sent.
        """

    @abstractmethod
    def fetch(self, run: str, study_folder: Path, wanted: Collection[str] | None) -> None:
        """Bring the checkpoints that an ended run has left, or those with a wanted name, into the study's own folder.

        Raises:
            StorageError: they cannot be.
        """

    @abstractmethod
    def forget(self, run: str) -> None:
        """Delete what only workers need of a run that has ended, whose record is written."""

    @abstractmethod
    def is_wanted(self, run: str) -> bool:
        """Return whether this worker still is at a run; False: another one has taken it over."""

    @abstractmethod
    def copy(self, run: str) -> str:
        """Copy the checkpoints of a run, for another one to resume from; return the copy's name."""

    @abstractmethod
    def take(self, copy: str, run: str) -> None:
        """Put the checkpoints of a copy in place of those of a run; once, however often called."""

    @abstractmethod
    def close(self) -> None:
        """Delete what only this search needs."""


@dataclass
class SharedFolder(RunFolders):
    """The study's folder itself, which all nodes see.

    Args:
        study_folder: its absolute path.
        session: the search that the workers are of.
        tune_folder: where Tune and the copies of this search are.
    """

    study_folder: Path
    session: str
    tune_folder: str
    seconds_between_looks: ClassVar[float] = 0.5
    _worker: str = ""

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self.study_folder

    @property
    def url_for_tune(self) -> str:
        """The study's folder."""
        return str(self.study_folder)

    def tidy(self, study_folder: Path) -> None:
        """Delete what searches that were killed have left of Tune and its copies."""
        for left in study_folder.glob(f"{TUNE_FOLDER}*"):
            if not has_signed_in(study_folder, left.name.removeprefix(TUNE_FOLDER)):
                shutil.rmtree(left, ignore_errors=True)

    def begin(self, run: str) -> None:
        """Say that this worker is at the run, and delete what one that died has left half-written there."""
        self._worker = uuid.uuid4().hex
        self._sign(run).parent.mkdir(parents=True, exist_ok=True)
        write_text(self._sign(run), self._worker)
        (self.folder / run).mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder / run)

    def keep(self, run: str) -> None:
        """Do nothing: they are there already."""

    def leave(self, run: str) -> None:
        """Do nothing: the search decides what stays."""

    def send(self, run: str, study_folder: Path) -> None:
        """Do nothing: workers see them."""

    def fetch(self, run: str, study_folder: Path, wanted: Collection[str] | None) -> None:
        """Do nothing: they are there already."""

    def forget(self, run: str) -> None:
        """Delete the mark of a copy."""
        (self.folder / run / TAKEN).unlink(missing_ok=True)

    def is_wanted(self, run: str) -> bool:
        """Look whether the search is still signed in to the folder, and this worker at the run.

        One that was cut off from the cluster for a while may be back when the trial has been given to another one.
        """
        with contextlib.suppress(FileNotFoundError):
            return has_signed_in(self.folder, self.session) and self._sign(run).read_text() == self._worker
        return False

    def copy(self, run: str) -> str:
        """Copy by hard links, where the file system has them: checkpoints are never written to again."""
        copies = self._copies
        name = f"{run}@{uuid.uuid4().hex}"
        with whole_folder(copies / name, sync=False) as partial:
            for checkpoint in checkpoints_in(self.folder / run):
                _link(checkpoint, partial / checkpoint.name)
        own = sorted(copies.glob(f"{run}@*"), key=lambda each: each.stat().st_mtime_ns)
        for old in own[:-KEPT_COPIES]:
            remove_folder(old)
        return name

    def take(self, copy: str, run: str) -> None:
        """Put them in place by hard links."""
        with taking(self.folder / run, copy) as is_new:
            for each in (self._copies / copy).iterdir() if is_new else ():
                with whole_folder(self.folder / run / each.name, sync=False) as partial:
                    _link(each, partial)

    def close(self) -> None:
        """Delete the copies, and what Tune has written."""
        shutil.rmtree(self.folder / self.tune_folder, ignore_errors=True)

    @property
    def _copies(self) -> Path:
        return self.folder / self.tune_folder / "copies"

    def _sign(self, run: str) -> Path:
        return self.folder / self.tune_folder / "workers" / run


@contextlib.contextmanager
def taking(run_folder: Path, copy: str) -> Iterator[bool]:
    """Prepare a folder for the checkpoints of a copy; yield False if they exist already."""
    mark = run_folder / TAKEN
    is_new = not mark.exists() or mark.read_text() != copy
    if is_new:
        for checkpoint in checkpoints_in(run_folder):
            remove_folder(checkpoint)
    yield is_new
    mark.write_text(copy)


def checkpoints_in(run_folder: Path) -> list[Path]:
    """Return the checkpoints in the folder of a run, and the weights that are selected so far."""
    return entries(run_folder, CHECKPOINT, SELECTED)


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link_file, dirs_exist_ok=True)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
