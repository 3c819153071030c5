"""Which processes are at work in a study's folder, and which have died: a file for each, locked, and its heartbeat."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from ...system.files import PARTIAL_MARK, entries
from ...system.liveness import is_alive, show_alive

SESSIONS_FOLDER = "sessions"
HEARTBEAT_SECONDS = 10.0
# A process on another machine whose lock is not seen here is dead after so long without a heartbeat.
SILENCE_SECONDS = 60.0
_LEAVING = "leaving"


class Session:
    """One search at work in a study's folder, from `begin()` to `end()`.

    Its file in ``<study>/sessions`` records which process it is. The process holds the lock on the file, so every
    process of the machine knows immediately when it dies. On a machine that does not see the lock, a session is alive
    while its file is touched, which a thread does every ten seconds.

    Attributes:
        name: names the session, and its file.
    """

    def __init__(self, study_folder: Path) -> None:
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())
        self.name = f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._folder = study_folder / SESSIONS_FOLDER
        self._is_over = threading.Event()
        self._is_at_work = self._is_leaving = False
        self._changed = 0
        self._heart: threading.Thread | None = None
        self._lock: FileLock | None = None
        self._touching = threading.Lock()

    def begin(self) -> None:
        """Sign in; the caller holds the study's lock."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._sign_in()
        self._is_at_work = True
        self._heart = threading.Thread(target=self._beat, name="hpsearch heartbeat", daemon=True)
        self._heart.start()
        self._remove_dead()

    def end(self) -> bool:
        """Sign out and return True if no other session is at work; the caller holds the study's lock."""
        self._is_over.set()
        if self._heart is not None:
            self._heart.join()
        self._remove_dead()
        self._is_at_work = False
        self._sign_out()
        try:
            self._folder.rmdir()
        except FileNotFoundError:  # the last of them took this one for dead
            return True
        except OSError:  # others are still at work
            return False
        return True

    def others_were_here(self) -> bool:
        """Return whether other sessions are at work, or have been since the last call; the caller holds the lock."""
        try:
            changed, self._changed = self._changed, self._folder.stat().st_mtime_ns
        except FileNotFoundError:  # the last of them took this one for dead
            return True
        return changed != self._changed or len(os.listdir(self._folder)) > 1

    def is_alone(self) -> bool:
        """Return whether no other session is at work; the caller holds the lock."""
        return not any(path.name != self.name and self.is_alive(path.name) for path in entries(self._folder, ""))

    def is_last(self) -> bool:
        """Return whether all other sessions at work are leaving; the caller holds the lock."""
        others = [path for path in entries(self._folder, "") if path.name != self.name and self.is_alive(path.name)]
        return all(_is_leaving(path) for path in others)

    def leave(self) -> None:
        """Show that this session has nothing under way, nor will have; it signs out soon. The caller holds the lock."""
        if not self._is_leaving:
            self._is_leaving = True
            # The disk may be full: then the others wait until this session has ended.
            with contextlib.suppress(OSError), (self._folder / self.name).open("r+") as stream:
                stream.seek(0, os.SEEK_END)
                stream.write(f"{_LEAVING}\n")

    def is_alive(self, name: str | None) -> bool:
        """Return whether the session `name` is still at work."""
        if name == self.name and self._is_at_work:
            return True
        if not name or not re.fullmatch(r"[\w-][\w.-]*", name):
            return False
        return _is_at_work(self._folder / name, self._now)

    def _remove_dead(self) -> None:
        for path in entries(self._folder, ""):
            if not self.is_alive(path.name):
                with contextlib.suppress(OSError):  # a folder with contents is not a session, and stays
                    path.unlink(missing_ok=True) if not path.is_dir() or path.is_symlink() else path.rmdir()

    def _beat(self) -> None:
        while not self._is_over.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                self._touch()

    def _sign_in(self) -> None:
        """Create the session's file, which becomes visible only when it is locked and written.

        A half-written file, left by a killed process, would not name its machine: the session would count as alive
        until it is silent.
        """
        path, process = self._folder / self.name, {"machine": machine(), "pid": os.getpid()}
        partial = self._folder.with_name(f"{PARTIAL_MARK}{os.getpid()}-{self.name}")
        self._sign_out()
        self._lock = show_alive(partial)
        try:
            partial.write_text(f"{json.dumps(process)}\n{_LEAVING if self._is_leaving else ''}\n", encoding="utf-8")
            os.replace(partial, path)  # the lock is on the file, whatever its name
        except BaseException:
            partial.unlink(missing_ok=True)
            self._sign_out()
            raise

    def _sign_out(self) -> None:
        (self._folder / self.name).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _touch(self) -> None:
        """Show that this session is alive; sign in again if another machine took it for dead, after a long sleep."""
        with self._touching:
            try:
                os.utime(self._folder / self.name)
            except FileNotFoundError:
                self._folder.mkdir(exist_ok=True)
                self._sign_in()

    def _now(self) -> float:
        """Return the time by the clock of the file system, which all machines share."""
        self._touch()
        return (self._folder / self.name).stat().st_mtime


def sessions_at_work(study_folder: Path) -> list[str]:
    """Return the names of the sessions that are at work in a study's folder; the caller need not be one of them.

    A link in the place of the folder of sessions, which may lead anywhere, is not followed.
    """
    folder = study_folder / SESSIONS_FOLDER
    return (
        [] if folder.is_symlink() else sorted(path.name for path in entries(folder, "") if _is_at_work(path, time.time))
    )


def _is_at_work(path: Path, now: Callable[[], float]) -> bool:
    """Return whether a session is at work, or, on a machine that does not see its lock, was at work a moment ago."""
    if not _is_file(path):
        return False
    if is_alive(path):
        return True
    try:
        return _machine_in(path) != machine() and now() - path.stat().st_mtime < SILENCE_SECONDS
    except FileNotFoundError:
        return False


def has_signed_in(study_folder: Path, name: str) -> bool:
    """Return whether a session is signed in to a study's folder; one that died is signed out by the next to begin."""
    return (study_folder / SESSIONS_FOLDER / name).exists()


def _is_file(path: Path) -> bool:
    """Return whether a path is a file: a link, a pipe or a folder is no session, and is neither locked nor read."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _machine_in(file: Path) -> str | None:
    """Return the machine of a session; None if the file is half-written, or of 0.8.0, which did not lock it."""
    with contextlib.suppress(ValueError):
        process, _ = json.JSONDecoder().raw_decode(file.read_text(encoding="utf-8"))
        return process.get("machine") if isinstance(process, dict) else None
    return None


def _is_leaving(file: Path) -> bool:
    try:
        return file.read_text(encoding="utf-8").splitlines()[-1:] == [_LEAVING]
    except (FileNotFoundError, ValueError):
        return not file.exists()  # it has left


def machine() -> str:
    """Return an identifier of the machine, or of a container that may not see the locks of others."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
