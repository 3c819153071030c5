"""The folder of multiprocessing's sockets: a temporary folder that the next search deletes if this one is killed.

The processes of a DataLoader make sockets, in folders ``pymp-*`` that only these processes themselves delete.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from .temporary_folders import folder_of_process

_LONGEST_FOLDER = 107 - len("/listener-12345678")


def keep_sockets_in(folder: Path) -> None:
    """Let multiprocessing make its sockets in a folder; where its path is too long for a socket, nothing changes."""
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        for config in _configs_of_multiprocessing():
            config["tempdir"] = str(folder)


@contextlib.contextmanager
def keeping_sockets(is_needed: bool) -> Iterator[None]:
    """Let multiprocessing make its sockets in a temporary folder of this process, if that `is_needed` for the block.

    The folder is deleted when this process ends: what was made in the block may be used after it. A folder that
    multiprocessing has made before stays in use.
    """
    before = [(config, config.get("tempdir")) for config in _configs_of_multiprocessing()]
    if is_needed and all(folder is None for _, folder in before):
        keep_sockets_in(folder_of_process())
    try:
        yield
    finally:
        for config, folder in before:
            config["tempdir"] = folder


def _configs_of_multiprocessing() -> list[dict[str, str | None]]:
    packages = ("multiprocessing", "multiprocess")  # the second one is that of datasets
    return [sys.modules[each].current_process()._config for each in packages if each in sys.modules]
