"""Records which files and databases Python code opens."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_EVENTS = ("open", "sqlite3.connect", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.chdir")
_recorders: list[list[Path]] = []
_is_hooked = False


@contextlib.contextmanager
def recorded_files() -> Iterator[list[Path]]:
    """Give the list of the files, folders and databases that are opened, changed or entered while the block runs."""
    global _is_hooked
    if not _is_hooked:  # a hook stays as long as its process
        sys.addaudithook(_record)
        _is_hooked = True
    found: list[Path] = []
    _recorders.append(found)
    try:
        yield found
    finally:
        _recorders.remove(found)


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    if _recorders and event in _EVENTS:
        name = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
        for found in _recorders:
            if name:
                found.append(Path(os.path.abspath(name.removeprefix("file:"))))
