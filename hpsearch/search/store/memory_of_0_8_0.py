"""Checkpoints that a killed search of 0.8.0 has left in memory (`paused_memory`): the next search copies them to disk.

In the folder of its run such a checkpoint is a link to `/dev/shm/hpsearch-<32 digits>/<checkpoint>@<run>`, a folder of
this user; a file beside it holds the path of the run's folder. A study that somebody else has sent may have links like
these: only what all of this is true of is read, copied and deleted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path

from ...system.files import entries, remove_partial, whole_folder
from .checked_json import Unreadable
from .own_files import read_own_text
from .retention import CHECKPOINT

_MEMORY = Path("/dev/shm")  # noqa: S108 - only what 0.8.0 has made there is read and deleted
_PLACE_FILE = "memory.json"
_PLACE = re.compile("hpsearch-[0-9a-f]{32}")
# Before the name of a checkpoint in memory, a file: in which folder the link to it is.
_LINKED_FROM = ".linked-from-"


def copy_to_disk(study_folder: Path) -> list[str]:
    """Replace the links by the checkpoints, and free the memory; return the runs whose checkpoints are lost.

    They are lost after a restart of the machine, or if the study was moved. On another machine than theirs they are
    left alone: they may still exist. The caller holds the study's lock, and no other search is at work in the folder.
    """
    place = _place_of(study_folder)
    if place is None:
        return []
    lost = []
    for run in (each for each in entries(study_folder, "") if each.is_dir() and not each.is_symlink()):
        remove_partial(run)
        for link in entries(run, CHECKPOINT):
            if not link.is_symlink() or link.readlink() != place / f"{link.name}@{run.name}":
                continue
            if _is_linked_from(link.readlink(), run):
                with whole_folder(link) as partial:
                    shutil.copytree(link, partial, dirs_exist_ok=True, symlinks=True)
            else:
                link.unlink()
                lost.append(run.name)
    if _holds_only_copied(place, study_folder):
        shutil.rmtree(place, ignore_errors=True)
    (study_folder / _PLACE_FILE).unlink()
    return lost


def _place_of(study_folder: Path) -> Path | None:
    """Return the folder in memory that 0.8.0 has made for a study on this machine; None if there is none."""
    try:
        written = json.loads(read_own_text(study_folder / _PLACE_FILE))
        place, is_here = Path(written["place"]), str(written["host"]).partition(" ")[0] == socket.gethostname()
    except (FileNotFoundError, Unreadable, ValueError, KeyError, TypeError, RecursionError):
        return None
    return place if is_here and place.parent == _MEMORY and _PLACE.fullmatch(place.name) else None


def _is_linked_from(target: Path, run: Path) -> bool:
    """Return whether 0.8.0 has moved a checkpoint of a run to memory, and this user has made it there."""
    try:
        noted = target.with_name(f"{_LINKED_FROM}{target.name}").read_bytes()
        is_own = _is_of_this_user(target.parent) and _is_of_this_user(target)
    except OSError:
        return False
    return is_own and noted == os.fsencode(run.resolve())


def _holds_only_copied(place: Path, study_folder: Path) -> bool:
    """Return whether a folder in memory is this user's, and every checkpoint in it is a study's, and on its disk.

    The link to a checkpoint is not recognised if its run folder was renamed: its only copy is in memory.
    """
    try:
        notes = entries(place, _LINKED_FROM)
        studies = {os.path.dirname(each.read_bytes()) for each in notes}
        checkpoints = {each.name for each in entries(place, "")} - {each.name for each in notes}
        is_own = _is_of_this_user(place)
    except OSError:
        return False
    noted = {each.name.removeprefix(_LINKED_FROM) for each in notes}
    is_noted = studies == {os.fsencode(study_folder.resolve())} and checkpoints <= noted
    return is_own and is_noted and all(_is_on_disk(each, study_folder) for each in checkpoints)


def _is_on_disk(name: str, study_folder: Path) -> bool:
    """Return whether the checkpoint that has this name in memory was copied to the folder of its run."""
    checkpoint, _, run = name.partition("@")
    copy = study_folder / run / checkpoint
    return copy.is_dir() and not copy.is_symlink()


def _is_of_this_user(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and folder.lstat().st_uid == os.getuid()
