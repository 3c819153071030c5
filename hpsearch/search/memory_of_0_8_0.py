"""Checkpoints that a killed search of 0.8.0 has left in memory (`paused_memory`): the next search copies them to disk.

In the folder of its run such a checkpoint is a link to a folder in `/dev/shm/hpsearch-...`.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from ..files import read_json, remove_partial, whole_folder

_MEMORY = Path("/dev/shm")  # noqa: S108 - only what 0.8.0 has made there is read and deleted
_PLACE_FILE = "memory.json"


def copy_to_disk(study_folder: Path) -> list[str]:
    """Replace the links by the checkpoints, and free the memory; return the runs whose checkpoints are lost.

    They are lost after a restart of the machine. On another machine than theirs they are left alone: they may still
    exist. The caller holds the study's lock, and no other search is at work in the study's folder.
    """
    if not _is_of_this_machine(study_folder / _PLACE_FILE):
        return []
    lost, places = [], set()
    for run in study_folder.glob("[!.]*/"):
        remove_partial(run)
        for link in run.glob("checkpoint-*"):
            place = link.readlink().parent if link.is_symlink() else study_folder
            if place.parent != _MEMORY or not place.name.startswith("hpsearch-"):
                continue
            places.add(place)
            if link.is_dir():
                with whole_folder(link) as partial:
                    shutil.copytree(link, partial, dirs_exist_ok=True)
            else:
                link.unlink()
                lost.append(run.name)
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    (study_folder / _PLACE_FILE).unlink()
    return lost


def _is_of_this_machine(place_file: Path) -> bool:
    """Return whether 0.8.0 has written the file on this machine; it names the host and the namespace of processes."""
    try:
        written = read_json(place_file)
        return written is not None and str(written["host"]).partition(" ")[0] == socket.gethostname()
    except (ValueError, KeyError, TypeError):
        return False
