"""What a test must not touch: a folder beside a study, and recorders of all that Python code does to files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECRET = "the secret of somebody else"
# Each of these has a path as its first argument, some as the second, too.
_ON_FILES = {
    "open",
    "sqlite3.connect",
    *(f"os.{name}" for name in ("remove", "rename", "rmdir", "mkdir", "link", "symlink", "truncate", "utime", "chmod")),
    *(f"os.{name}" for name in ("listdir", "scandir", "chdir")),
    *(f"shutil.{name}" for name in ("rmtree", "copyfile", "copytree", "move")),
}
_ON_A_LINK_ITSELF = {"os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree", "shutil.move"}
_PROGRAMS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"}
_recorders: list[Callable[[str, list[str]], None]] = []
_is_installed = False


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[list[str]]:
    """Check that nothing in a folder is opened, listed, written or deleted while the block runs, through links either.

    A program that the block runs is an error as well.
    """
    before, done, top = _content(folder), list[str](), os.path.realpath(folder)

    def record(event: str, paths: list[str]) -> None:
        done.extend(f"{event} {each}" for each in paths if event in _PROGRAMS or _is_in(top, event, each))

    with _recording(record):
        yield done
    if done or _content(folder) != before:
        raise AssertionError(f"{folder} was touched: {done[:5]}")


@contextlib.contextmanager
def recorded_files() -> Iterator[list[Path]]:
    """Give the list of the files, folders and databases that are opened, changed or entered while the block runs."""
    found: list[Path] = []
    with _recording(lambda event, paths: found.extend(map(Path, paths if event in _ON_FILES else ()))):
        yield found


def make_outside(folder: Path) -> Path:
    """Make a folder with what a crafted study could try to read or delete: a file, a checkpoint, a run, a session."""
    (folder / "checkpoint-8").mkdir(parents=True)
    (folder / "run-0").mkdir()
    for name in ("secret", "checkpoint-8/model.safetensors", "run-0/trial.json", "session-1"):
        (folder / name).write_text(SECRET)
    return folder


@contextlib.contextmanager
def _recording(record: Callable[[str, list[str]], None]) -> Iterator[None]:
    """Call a function with every event while the block runs: its name, and its absolute paths or the program."""
    global _is_installed
    if not _is_installed:  # a hook stays as long as its process
        sys.addaudithook(_notice)
        _is_installed = True
    _recorders.append(record)
    try:
        yield
    finally:
        _recorders.remove(record)


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recorders or event not in _ON_FILES | _PROGRAMS:
        return
    found = [repr(arguments[:2])]
    if event in _ON_FILES:
        first = arguments[: 1 if event == "open" else 2]  # its second argument is a mode
        names = [os.fsdecode(each) for each in first if isinstance(each, str | bytes | os.PathLike) and each]
        found = [os.path.abspath(_without_scheme(each) if event == "sqlite3.connect" else each) for each in names]
    for record in _recorders:
        record(event, found)


def _without_scheme(name: str) -> str:
    return name.removeprefix("file:").partition("?")[0] if name.startswith("file:") else name


def _is_in(top: str, event: str, path: str) -> bool:
    """Tell whether a path lies in the folder `top`; a link counts as what it leads to, unless it is acted on itself."""
    at, name = os.path.split(path)
    real = os.path.join(os.path.realpath(at), name)
    real = real if event in _ON_A_LINK_ITSELF else os.path.realpath(real)
    return f"{real}{os.sep}".startswith(f"{top}{os.sep}")


def _content(folder: Path) -> dict[str, bytes | None]:
    """Return all that is in a folder; the recorder has to be off."""
    return {str(each): each.read_bytes() if each.is_file() else None for each in sorted(folder.rglob("*"))}
