"""What a test must not touch: a folder beside a study, and a recorder of all that is done to it in this process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECRET = "the secret of somebody else"
# Each of these has a path as its first argument, some as the second, too.
_EVENTS = {
    "open",
    "sqlite3.connect",
    *(f"os.{name}" for name in ("remove", "rename", "rmdir", "mkdir", "link", "symlink", "truncate", "utime", "chmod")),
    *(f"os.{name}" for name in ("exec", "posix_spawn", "system", "listdir", "scandir")),
    *(f"shutil.{name}" for name in ("rmtree", "copyfile", "copytree", "move")),
    "subprocess.Popen",
}
_ON_A_LINK_ITSELF = {"os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree", "shutil.move"}
_watched: list[tuple[str, list[str]]] = []  # folders, and what was done in each
_is_installed = False


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[list[str]]:
    """Check that nothing in a folder is opened, listed, written or deleted while the block runs, through links either.

    A program that the block runs is an error as well.
    """
    global _is_installed
    if not _is_installed:
        sys.addaudithook(_notice)
        _is_installed = True
    before, done = _content(folder), []
    _watched.append((os.path.realpath(folder), done))
    try:
        yield done
    finally:
        _watched.pop()
    if done or _content(folder) != before:
        raise AssertionError(f"{folder} was touched: {done[:5]}")


def make_outside(folder: Path) -> Path:
    """Make a folder with what a crafted study could try to read or delete: a file, a checkpoint, a run, a session."""
    (folder / "checkpoint-8").mkdir(parents=True)
    (folder / "run-0").mkdir()
    for name in ("secret", "checkpoint-8/model.safetensors", "run-0/trial.json", "session-1"):
        (folder / name).write_text(SECRET)
    return folder


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched or event not in _EVENTS:
        return
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        for _, done in _watched:
            done.append(f"{event} {arguments[:2]}")
        return
    for path in arguments[:2]:
        if isinstance(path, str | bytes | os.PathLike):
            at, name = os.path.split(os.path.abspath(os.fsdecode(path)))
            real = os.path.join(os.path.realpath(at), name)
            real = real if event in _ON_A_LINK_ITSELF else os.path.realpath(real)
            for folder, done in _watched:
                if f"{real}{os.sep}".startswith(f"{folder}{os.sep}"):
                    done.append(f"{event} {path!r}")


def _content(folder: Path) -> dict[str, bytes | None]:
    """Return all that is in a folder; the recorder has to be off."""
    return {str(each): each.read_bytes() if each.is_file() else None for each in sorted(folder.rglob("*"))}
