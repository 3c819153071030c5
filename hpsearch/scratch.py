"""A temporary folder that is deleted at the latest when the next search begins, however its own process ended."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

_SCRATCH = "hpsearch-scratch-"


class Scratch:
    """A folder of this process on this node, for one run at a time; with it those of dead processes are deleted."""

    def __init__(self) -> None:
        self._lock: FileLock | None = None

    def __reduce__(self) -> Any:
        return (type(self), ())  # each process has its own

    @property
    def folder(self) -> Path:
        """The folder, between `begin` and `end`."""
        assert self._lock is not None, "begin() comes first"
        return Path(self._lock.lock_file).with_suffix("")

    def begin(self) -> None:
        """Make an empty folder."""
        self.end()
        remove_scratch_of_the_dead()
        lock = _lock(Path(tempfile.gettempdir(), f"{_SCRATCH}{uuid.uuid4().hex}.lock"))
        lock.acquire()
        self._lock = lock

    def end(self) -> None:
        """Delete the folder."""
        if self._lock is not None:
            _remove_scratch(self._lock)
            self._lock = None


def remove_scratch_of_the_dead() -> None:
    """Delete the scratch folders whose processes are gone, as far as that is possible: a lock ends with its process."""
    with contextlib.suppress(OSError):  # there may be no temporary folder
        for path in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*.lock"):
            lock = _lock(path)
            with contextlib.suppress(Timeout, OSError, NotImplementedError):
                lock.acquire(timeout=0)
                _remove_scratch(lock)


def _lock(path: Path) -> FileLock:
    return FileLock(path, thread_local=False)  # the thread that trains may end what another one has begun


def _remove_scratch(lock: FileLock) -> None:
    shutil.rmtree(Path(lock.lock_file).with_suffix(""), ignore_errors=True)
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
