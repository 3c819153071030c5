"""A temporary folder that is deleted at the latest when the next search begins, however its own process ended."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from .files import PRIVATE_FILE, make_private_folder
from .liveness import claimed, show_alive

_SCRATCH = "hpsearch-scratch-"
_of_processes: dict[int, Scratch] = {}  # a forked child does not touch that of its parent


class Scratch:
    """A folder of this user and process, for one run at a time; making it deletes those of dead processes."""

    def __init__(self) -> None:
        self._lock: FileLock | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), ())  # each process has its own

    @property
    def folder(self) -> Path:
        """The folder, between `begin` and `end`."""
        assert self._lock is not None, "begin() comes first"
        return _folder_of(Path(self._lock.lock_file))

    def begin(self) -> None:
        """Make an empty folder."""
        self.end()
        remove_scratch_of_the_dead()
        self._lock = show_alive(Path(tempfile.gettempdir(), f"{_SCRATCH}{uuid.uuid4().hex[:16]}.lock"), PRIVATE_FILE)
        make_private_folder(self.folder)

    def end(self) -> None:
        """Delete the folder."""
        if self._lock is not None:
            _remove(Path(self._lock.lock_file))
            self._lock.release()
            self._lock = None


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder, which is deleted when the block ends."""
    scratch = Scratch()
    try:
        scratch.begin()
        yield scratch.folder
    finally:
        scratch.end()


def folder_of_process() -> Path:
    """Return a folder that exists until this process ends."""
    known = _of_processes.get(os.getpid())
    if known is None:
        known = _of_processes[os.getpid()] = Scratch()
        multiprocessing.util.Finalize(None, known.end, exitpriority=-100)  # after multiprocessing's sockets in it
        known.begin()
    elif not known.folder.is_dir():  # the system may tidy up its temporary folder
        known.begin()
    return known.folder


def remove_scratch_of_the_dead() -> None:
    """Delete the temporary folders whose processes are dead, as far as that is possible."""
    with contextlib.suppress(OSError):  # there may be no temporary folder
        for path in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*.lock"):
            with contextlib.suppress(OSError), claimed(path) as is_dead:
                if is_dead:
                    _remove(path)


def _folder_of(lock_file: Path) -> Path:
    return lock_file.with_suffix("")


def _remove(lock_file: Path) -> None:
    """Delete a folder, then its lock file, without which the rest of the folder would never be deleted.

    A process that is about to end, such as one of a DataLoader, may write to the folder while it is deleted.
    """
    folder = _folder_of(lock_file)
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        lock_file.unlink(missing_ok=True)
