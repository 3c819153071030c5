"""Files that are written whole or not at all (a temporary name, fsync, rename), and locks between processes.

Knows nothing of trials or models.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

PARTIAL_MARK = ".partial-"
_PROBE_BYTES = 64 * 1024
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_ATTEMPTS = 3
_REMOVED_MARK, _REPLACED_MARK = "-removed-", "-replaced-"
_SECONDS_BETWEEN_ATTEMPTS = 0.005


class FolderNotWritten(OSError):
    """A disk was full or read-only when a whole folder, such as a checkpoint, had to be written."""


# Of what only this user may read.
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def file_lock(path: str | os.PathLike[str], thread_local: bool = True, mode: int | None = None) -> FileLock:
    """Return a lock between processes, and threads if it is `thread_local`; the system releases it when a holder dies.

    A forked child does not hold it, and makes one of its own. On a file system without locks, taking it is an error: a
    file in place of a lock would outlive a killed process. The file gets the `mode`, or that of the user's umask.
    """
    options: dict[str, Any] = {} if mode is None else {"mode": mode}
    return FileLock(
        path,
        thread_local=thread_local,
        poll_interval=_SECONDS_BETWEEN_ATTEMPTS,
        fallback_to_soft=False,
        **options,
    )


def working_folder() -> str:
    """Return the working folder; empty if it was deleted, as an absolute path needs none."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def short_path(path: Path) -> str:
    """Return a path as a user would write it: relative if it lies in the working folder."""
    here = working_folder()
    return str(path.relative_to(here) if here and path.is_relative_to(here) else path)


def make_private_folder(path: Path) -> None:
    """Make a folder that only this user can read, whatever the umask.

    Raises:
        FileExistsError: there is one already.
    """
    path.mkdir(mode=PRIVATE_FOLDER)
    path.chmod(PRIVATE_FOLDER)


def open_private_file(path: Path) -> io.FileIO:
    """Make a file that only this user can read, whatever the umask, and open it for writing.

    Raises:
        FileExistsError: there is one already.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), PRIVATE_FILE)
    path.chmod(PRIVATE_FILE)
    return io.FileIO(descriptor, "w")


def disk_problem(error: BaseException | None) -> str | None:
    """Return in a line that the disk is full or read-only, with the path if it is known, if that caused an error.

    Libraries hide the system's error behind their own, or show only its text.
    """
    for each in _causes(error):
        code = each.errno if isinstance(each, OSError) else None
        said = str(each).partition("\n")[0]
        if code in _DISK_ERRORS or any(os.strerror(code) in said for code in _DISK_ERRORS):
            return said
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that it came from."""
    seen: set[int] = set()  # an error may be among those that it came from
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_disk_of(folder: Path, error: BaseException) -> bool:
    """Return whether an error for which there is a `disk_problem` is one of the disk of a folder.

    It may be of another disk, such as a small /dev/shm or a read-only cache. A folder that was too large for the disk
    has been removed again, so that small files fit.
    """
    return any(isinstance(each, FolderNotWritten) for each in _causes(error)) or not _can_be_written(folder)


def _can_be_written(folder: Path) -> bool:
    """Return whether the disk of a folder is neither full nor read-only now."""
    probe = folder / f"{PARTIAL_MARK}{os.getpid()}-probe"
    try:
        with open(probe, "wb", opener=_open_no_link) as stream:
            stream.write(bytes(_PROBE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error.errno not in _DISK_ERRORS
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return True


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` so that a reader finds the old file or the new one, never half of either.

    In the folder of a study, a search that begins there at this moment may take what is half-written for a dead
    process's, and delete it; then it is written again.
    """
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return _write_text(path, text)
    return _write_text(path, text)


def _write_text(path: str | os.PathLike[str], text: str) -> None:
    target = Path(path)
    partial = target.with_name(f"{PARTIAL_MARK}{os.getpid()}-{target.name}")
    try:
        with open(partial, "w", encoding="utf-8", errors="backslashreplace", opener=_open_no_link) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _open_no_link(path: str, flags: int) -> int:
    """Open a file; a link, which could lead out of a folder that someone else made, is an OSError."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def finite(value: object) -> object:
    """Return a value that strict JSON can hold: numbers that are not finite become None, keys become text.

    >>> finite({"loss": [0.5, float("nan")], 3: (float("inf"),)})
    {'loss': [0.5, None], '3': [None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; return None if there is no such file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str], sync: bool = True) -> Iterator[Path]:
    """Give a temporary folder to write into; it becomes `path` when the block ends without an error.

    An existing folder at `path` is replaced. If the block raises, the temporary folder is removed and `path` stays
    as it was. Without `sync` a power cut may lose the folder, unlike a killed process; files in it that were written
    by `write_text` are whole all the same.
    """
    target = Path(path)
    partial = target.with_name(f"{PARTIAL_MARK}{os.getpid()}-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if sync:
            sync_tree(partial)
        replaced = _set_aside(target, _REPLACED_MARK)
        try:
            os.replace(partial, target)
        except BaseException:
            if replaced is not None:
                os.replace(replaced, target)
            raise
        if sync:
            _sync_folder(target.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        problem = disk_problem(error)
        if problem is not None and isinstance(error, Exception):
            raise FolderNotWritten(problem) from error
        raise
    if replaced is not None:
        _delete(replaced)


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Delete a folder so that no reader ever sees it half-deleted: rename it first, then remove it.

    A folder that does not exist is not an error. Of a link, what it leads to stays.
    """
    doomed = _set_aside(Path(path), _REMOVED_MARK)
    if doomed is not None:
        _delete(doomed)


def remove_partial(folder: str | os.PathLike[str]) -> None:
    """Remove what a killed process left half-written directly inside `folder`.

    A folder that was about to be replaced is put back if its successor did not come.
    """
    for entry in entries(folder, PARTIAL_MARK):
        _, is_replaced, name = entry.name.partition(_REPLACED_MARK)
        if is_replaced and name and not entry.with_name(name).exists():
            os.replace(entry, entry.with_name(name))
        else:
            _delete(entry)


def entries(folder: str | os.PathLike[str], *prefixes: str) -> list[Path]:
    """Return the entries of a folder whose names begin with one of these; empty if the folder cannot be read."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        return [Path(folder, name) for name in os.listdir(folder) if name.startswith(prefixes)]
    return []


def leads_out(path: Path, root: Path) -> bool:
    """Return whether a path is a link that leads out of the folder `root`, or a folder with such a link in it."""
    top = os.path.realpath(root)
    if is_link_out(str(path), top):
        return True
    walk = os.walk(path, followlinks=False)
    return any(is_link_out(os.path.join(at, name), top) for at, folders, files in walk for name in (*folders, *files))


def is_link_out(path: str, top: str) -> bool:
    """Return whether a path is a link that leads out of `top`, a path without links."""
    return os.path.islink(path) and not f"{os.path.realpath(path)}{os.sep}".startswith(f"{top}{os.sep}")


def _delete(entry: Path) -> None:
    """Delete a file, a folder, or a link."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def _set_aside(target: Path, mark: str) -> Path | None:
    aside = target.with_name(f"{PARTIAL_MARK}{os.getpid()}{mark}{target.name}")
    try:
        os.replace(target, aside)
    except FileNotFoundError:
        return None
    return aside


def sync_tree(folder: Path) -> None:
    """Make sure that all that is in a folder is on the disk."""
    for entry in folder.rglob("*"):
        if entry.is_file():
            sync_file(entry)
    _sync_folder(folder)


def sync_file(path: Path) -> None:
    """Make sure that a file is on the disk; Windows does that only for a file that is open for writing."""
    with open(path, "r+b" if os.name == "nt" else "rb") as stream:
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
