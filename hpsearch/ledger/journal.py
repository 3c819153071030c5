"""Optuna's journal file, safe against processes that are killed while they write to it."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from optuna.exceptions import StorageInternalError
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.storages.journal._storage import JournalOperation

from ..system.files import file_lock
from ..system.json_types import JsonObject

_json = json.JSONEncoder(separators=(",", ":")).encode
_WITHIN_A_TRIAL = (
    JournalOperation.SET_TRIAL_PARAM,
    JournalOperation.SET_TRIAL_INTERMEDIATE_VALUE,
    JournalOperation.SET_TRIAL_USER_ATTR,
    JournalOperation.SET_TRIAL_SYSTEM_ATTR,
)


class JournalLock(BaseJournalFileLock):
    """A lock that the system releases when its process dies; Optuna's own stays, and the next process waits for it."""

    def __init__(self, path: str) -> None:
        self._lock = file_lock(path)

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._lock.acquire()
        return True

    def release(self) -> None:
        """Give it back."""
        self._lock.release()


class JournalFile(JournalFileBackend):
    """A journal that ends with a whole line whenever something is added to it.

    A process that was killed, or met a full disk, while it wrote a line has left half of one. Whatever came after it in
    the same line could never be read.

    The disk is waited for when a trial or a study begins or ends, not after every parameter and report: a power cut may
    lose the records since then. A killed process loses nothing.

    Args:
        path: of the file; ``<path>.flock`` is its lock.
    """

    def __init__(self, path: Path) -> None:
        self._guard = JournalLock(f"{path}.flock")
        super().__init__(str(path), self._guard)
        self.path = path
        self._added = 0, b""  # where this process has written last, and what

    def __reduce__(self) -> tuple[type[JournalFile], tuple[Path]]:
        """Pickle the path alone: a lock belongs to its process, and the copy reads the file from its beginning."""
        return JournalFile, (self.path,)

    def read_logs(self, log_number_from: int) -> Generator[JsonObject, None, None]:
        """Read the lines from a number on; what only this process has added since the last time is not read again."""
        with open(self.path, "rb") as stream:  # on NFS, opening it is what asks the server for its size
            size = os.fstat(stream.fileno()).st_size
        known, (place, added) = self._log_number_offset.get(log_number_from), self._added
        if known == size:
            return
        if known != place or size != place + len(added):
            yield from super().read_logs(log_number_from)
            return
        for number, line in enumerate(added.splitlines(keepends=True), start=log_number_from + 1):
            place += len(line)
            self._log_number_offset[number] = place
            yield json.loads(line)

    def append_logs(self, logs: list[JsonObject]) -> None:
        """Add lines, after the last whole one."""
        lines = "".join(f"{_json(log)}\n" for log in logs).encode()
        self._guard.acquire()
        try:
            with open(self.path, "rb+") as stream:
                _drop_half_a_line(stream)
                place = stream.tell()
                stream.write(lines)
                if any(log["op_code"] not in _WITHIN_A_TRIAL for log in logs):
                    stream.flush()
                    os.fsync(stream.fileno())
            self._added = place, lines
        except OSError as error:
            raise StorageInternalError(f"{str(self.path)!r} cannot be written") from error
        finally:
            self._guard.release()


def _drop_half_a_line(stream: BinaryIO) -> None:
    """Place the stream at its end, after a whole line."""
    end = stream.seek(0, os.SEEK_END)
    if end == 0:
        return
    stream.seek(end - 1)
    if stream.read(1) != b"\n":
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.seek(0, os.SEEK_END)
