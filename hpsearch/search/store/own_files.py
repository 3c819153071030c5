"""The files inside the folder of a study: a link may lead anywhere, so none is followed out of the folder."""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path

from ...system.files import entries, is_link_out, leads_out
from .checked_json import Unreadable
from .retention import CHECKPOINT, SELECTED

# Put before the name of a checkpoint, so that nothing finds it any more.
_OUTSIDE = ".outside-"
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def read_own_text(path: Path) -> str:
    """Return the text of a file, which is neither a link nor anything else that looks like a file.

    Raises:
        FileNotFoundError: there is no such file.
        Unreadable: it is no file, it may not be read, or it is no text.
    """
    if path.is_symlink():
        raise Unreadable("it is a link, and links are not followed")
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable("it is a folder" if path.is_dir() else "it is not a file")
        with open(descriptor, encoding="utf-8", closefd=False) as stream:
            return stream.read()
    except UnicodeDecodeError as error:
        raise Unreadable("it is not a text file") from error
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from error
    finally:
        os.close(descriptor)


def is_own_folder(path: Path, root: Path) -> bool:
    """Return whether a path is a folder, and all that is in it lies in the folder `root`."""
    return path.is_dir() and not path.is_symlink() and not leads_out(path, root)


def links_out(run_folder: Path) -> list[str]:
    """Return what directly in the folder of a run is a link that leads out of it, but for checkpoints."""
    top = os.path.realpath(run_folder)
    with os.scandir(run_folder) as found:
        links = [each for each in found if each.is_symlink() and not each.name.startswith((CHECKPOINT, SELECTED, "."))]
    return sorted(each.name for each in links if is_link_out(each.path, top))


def hide_checkpoints_outside(run_folder: Path) -> None:
    """Rename the checkpoints of a run that lie outside of its folder, so that the trial does not resume from them."""
    for path in entries(run_folder, CHECKPOINT, SELECTED):
        if leads_out(path, run_folder):
            path.rename(path.with_name(f"{_OUTSIDE}{uuid.uuid4().hex[:8]}-{path.name}"))
