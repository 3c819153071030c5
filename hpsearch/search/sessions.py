"""Which processes are at work in a study's folder, and which have died: a file for each, and its heartbeat."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from ..files import entries, read_json, write_json

SESSIONS_FOLDER = "sessions"
_OWN: set[str] = set()  # the sessions that this process is at
HEARTBEAT_SECONDS = 10.0
# A process on another machine is dead after so long without a heartbeat; on this machine the system tells at once.
SILENCE_SECONDS = 60.0


class Session:
    """One search at work in a study's folder, from `begin()` to `end()`.

    Its file in ``<study>/sessions`` says which process it is. Whether another session of this machine is alive is asked
    of the operating system, and known at once; one of another machine that shares the folder is alive while its file is
    touched, which a thread does every ten seconds.

    Attributes:
        name: names the session, and its file.
    """

    def __init__(self, study_folder: Path) -> None:
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())
        self.name = f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._folder = study_folder / SESSIONS_FOLDER
        self._is_over = threading.Event()
        self._is_leaving = False
        self._changed = 0
        self._heart: threading.Thread | None = None

    def begin(self) -> None:
        """Sign in; the caller holds the study's lock."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _OWN.add(self.name)
        self._sign_in()
        self._heart = threading.Thread(target=self._beat, name="hpsearch heartbeat", daemon=True)
        self._heart.start()
        self._remove_dead()

    def end(self) -> bool:
        """Sign out and return True if no other session is at work; the caller holds the study's lock."""
        self._is_over.set()
        if self._heart is not None:
            self._heart.join()
        self._remove_dead()
        _OWN.discard(self.name)
        (self._folder / self.name).unlink(missing_ok=True)
        try:
            self._folder.rmdir()
        except FileNotFoundError:  # the last of them took this one for dead
            return True
        except OSError:  # others are still at work
            return False
        return True

    def others_were_here(self) -> bool:
        """Tell whether other sessions are at work, or have been since the last call; the caller holds the lock."""
        try:
            changed, self._changed = self._changed, self._folder.stat().st_mtime_ns
        except FileNotFoundError:  # the last of them took this one for dead
            return True
        return changed != self._changed or len(os.listdir(self._folder)) > 1

    def is_alone(self) -> bool:
        """Tell whether no other session is at work; the caller holds the lock."""
        return not any(path.name != self.name and self.is_alive(path.name) for path in entries(self._folder, ""))

    def is_last(self) -> bool:
        """Tell whether all other sessions at work are leaving; the caller holds the lock."""
        others = [path for path in entries(self._folder, "") if path.name != self.name and self.is_alive(path.name)]
        return all(_is_leaving(path) for path in others)

    def leave(self) -> None:
        """Show that this session has nothing under way, nor will have; it signs out soon. The caller holds the lock."""
        if not self._is_leaving:
            self._is_leaving = True
            with contextlib.suppress(OSError):  # the disk is full, say: the others do not hear of it, no more
                self._sign_in()

    def is_alive(self, name: str | None) -> bool:
        """Tell whether the session `name` is still at work."""
        if name in _OWN:
            return True
        if not name or not re.fullmatch(r"[\w-][\w.-]*", name):
            return False
        path = self._folder / name
        try:
            process = read_json(path)
            if process is None:
                return False
            if process["host"] == host():
                return process["pid"] != os.getpid() and _exists(process["pid"], process["started"])
            return self._now() - path.stat().st_mtime < SILENCE_SECONDS
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return False

    def _remove_dead(self) -> None:
        for path in entries(self._folder, ""):
            if not self.is_alive(path.name):
                path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._is_over.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                self._touch()

    def _sign_in(self) -> None:
        process = {"host": host(), "pid": os.getpid(), "started": _started(os.getpid())}
        write_json(self._folder / self.name, {**process, "is_leaving": self._is_leaving})

    def _touch(self) -> None:
        """Show that this session is alive; sign in again if another machine took it for dead, after a long sleep."""
        try:
            os.utime(self._folder / self.name)
        except FileNotFoundError:
            self._folder.mkdir(exist_ok=True)
            self._sign_in()

    def _now(self) -> float:
        """Return the time by the clock of the file system, which all machines share."""
        self._touch()
        return (self._folder / self.name).stat().st_mtime


def has_signed_in(study_folder: Path, name: str) -> bool:
    """Tell whether a session is signed in to a study's folder; one that died is signed out by the next to begin."""
    return (study_folder / SESSIONS_FOLDER / name).exists()


def are_all_on_this_machine(study_folder: Path) -> bool:
    """Tell whether all sessions that have signed in to a study's folder are on this machine."""
    return all(each == host() for each in _hosts(study_folder))


def is_any_on_this_machine(study_folder: Path) -> bool:
    """Tell whether a session has signed in to a study's folder that is on this machine."""
    return any(each == host() for each in _hosts(study_folder))


def _is_leaving(file: Path) -> bool:
    with contextlib.suppress(ValueError):
        session = read_json(file)
        return session is None or bool(session.get("is_leaving"))
    return False


def _hosts(study_folder: Path) -> Iterator[str]:
    for path in (study_folder / SESSIONS_FOLDER).glob("[!.]*"):
        with contextlib.suppress(ValueError):
            session = read_json(path)
            if session is not None:
                yield session["host"]


def host() -> str:
    """Return what tells machines apart, and containers of one machine that do not see each other's processes."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _exists(pid: int, started: str) -> bool:
    """Tell whether a process of this machine still exists, and its number has not gone to another one."""
    try:
        return _started(pid) == started and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, OSError):
        return False


def _started(pid: int) -> str:
    """Return when a process was started: by the clock that nobody sets, where the system tells."""
    if sys.platform == "linux":
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    return str(psutil.Process(pid).create_time())
