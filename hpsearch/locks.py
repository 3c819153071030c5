"""A lock between processes that the system releases when its holder dies.

A process that searches takes such a lock many times for each trial. So the file stays open in between, which makes a
lock cost microseconds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from pathlib import Path
from types import TracebackType

if sys.platform == "win32":
    from filelock import FileLock as KernelLock
else:
    import fcntl

    class KernelLock:
        """Keeps other processes and threads away for as long as it is held; may be nested.

        Args:
            path: of a file in a folder that exists when the lock is taken; the file is made, and stays.

        >>> import tempfile
        >>> lock = KernelLock(Path(tempfile.mkdtemp()) / "lock")
        >>> with lock:
        ...     lock.is_locked
        True
        >>> lock.is_locked
        False
        """

        _file: int | None
        _holder: int | None
        _depth: int

        def __init__(self, path: str | os.PathLike[str]) -> None:
            self._forget()
            self._path = Path(path)
            _ALL.add(self)

        @property
        def is_locked(self) -> bool:
            """True if this thread holds the lock."""
            return self._holder == threading.get_ident()

        def acquire(self) -> None:
            """Wait for the lock, and hold it.

            Raises:
                OSError: the file cannot be made.
            """
            self._threads.acquire()
            before = self._depth
            try:
                if before == 0:
                    self._file = self._locked(self._file)
                    self._holder = threading.get_ident()
                self._depth = before + 1
            except BaseException:
                self._depth = before
                if before == 0:
                    self._give_back()
                self._threads.release()
                raise

        def release(self) -> None:
            """Give the lock back, if this is the outermost of nested calls; a child never holds one of its parent's."""
            if self._depth == 0:
                return
            try:
                if self._depth == 1:
                    self._give_back()
            finally:
                self._depth -= 1
                self._threads.release()

        def __enter__(self) -> KernelLock:
            self.acquire()
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            self.release()

        def __del__(self) -> None:
            if self._file is not None:
                os.close(self._file)

        def _give_back(self) -> None:
            self._holder = None
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)

        def _locked(self, file: int | None) -> int:
            """Lock the file that has the path now: what was open may have been deleted, and made again."""
            while True:
                if file is None:
                    file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
                self._file = file  # also if waiting for it is interrupted
                fcntl.flock(file, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):  # it has been deleted: the next one is made
                    if os.path.samestat(os.fstat(file), os.stat(self._path)):
                        return file
                self._file = None
                os.close(file)
                file = None

        def _forget(self) -> None:
            """Be a lock that nobody in this process has taken yet."""
            self._threads = threading.RLock()
            self._file, self._holder, self._depth = None, None, 0

    _ALL: weakref.WeakSet[KernelLock] = weakref.WeakSet()

    def _close_in_child() -> None:
        """Close what a child has got by a fork: while it is open there, the lock of a parent that dies would stay."""
        for lock in _ALL:
            if lock._file is not None:
                os.close(lock._file)
            lock._forget()

    os.register_at_fork(after_in_child=_close_in_child)
