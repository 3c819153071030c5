"""Liveness of processes: each holds the lock on its own file, which the system releases when the process dies.

A session of a search has such a file in the study's folder, a temporary folder one beside it. A hanging process is
alive, a zombie is not; a reused process number, or a container that does not see the other's processes, makes no
difference. A forked child does not hold the lock of its parent: filelock closes the file in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from .files import file_lock


def show_alive(path: Path, mode: int | None = None) -> FileLock:
    """Lock a file, which is made if it does not exist, until the lock is released or this process dies."""
    lock = file_lock(path, thread_local=False, mode=mode)  # another thread may release it
    lock.acquire()
    return lock


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Yield True if the process of a file is dead; no other process can detect it while the block runs."""
    lock = file_lock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except (Timeout, PermissionError):  # the file of another user
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def is_alive(path: Path) -> bool:
    """Return whether the process of a file is alive; without the file it is not."""
    if not path.exists():
        return False
    with claimed(path) as is_dead:
        return not is_dead
