"""Checkpoints of running trials at a place that all nodes reach, such as a bucket."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from pyarrow import fs as filesystems

from ...errors import StorageError, StudyError
from ...search.store.live_sessions import has_signed_in
from ...search.store.study_folder import has_ended
from ...system.files import remove_folder, whole_folder, write_text
from ...system.json_types import JsonObject
from ...system.redaction import redacted_text, redacted_url, safe_cause
from ...system.temporary_folders import Scratch
from .run_folders import KEPT_COPIES, TAKEN, TUNE_FOLDER, RunFolders, checkpoints_in, taking

# Of a run: which checkpoints are whole, and which worker trains it. Two files, for two workers that write in parallel.
_INDEX, _WORKER = "index", "worker"
# Each is written twice, in this order: so one is whole at any time, also where a file cannot be replaced in one step.
_COPIES = ("-next.json", ".json")
_NAME_FILE = "study.name"
_ATTEMPTS = 3


@dataclass
class RemoteFolders(RunFolders):
    """A place that all nodes reach, such as a bucket; each worker trains in a folder of its own node.

    A run's place there holds its checkpoints, an index that names those that are whole, and the name of the worker
    that is at the run.

    Args:
        url: a path, or a URL that pyarrow or fsspec knows.
        study: names the study there, as `remote_name` says.
        session: the search that the workers are of.
        tune_folder: where Tune and the copies of this search are.
    """

    url: str
    study: str
    session: str
    tune_folder: str
    seconds_between_looks: ClassVar[float] = 20.0
    _worker: str = ""
    _scratch: Scratch = field(default_factory=Scratch)

    def __post_init__(self) -> None:
        if "://" not in self.url:
            self.url = os.path.abspath(self.url)  # workers have other working directories

    @property
    def folder(self) -> Path:
        """A folder of this node, which this worker alone uses."""
        return self._scratch.folder / self.study

    @property
    def url_for_tune(self) -> str:
        """The study's folder at that place, on the file system for Tune."""
        return self._root

    @property
    def filesystem_for_tune(self) -> object:
        """The file system of that place: Tune itself knows those of pyarrow only."""
        return self._store()

    def begin(self, run: str) -> None:
        """Bring the checkpoints to this node, and say that this worker is at the run.

        A worker of a search that was killed may be about to begin there too, or to replace what is being brought. It
        does so once, and then notices this one; so this one tries again.

        Raises:
            StorageError: the checkpoints cannot be brought.
        """
        self._scratch.begin()
        self._worker = f"{self.session}/{uuid.uuid4().hex}"
        missing = None
        for _ in range(_ATTEMPTS):
            self._write(run, _WORKER, self._worker)
            try:
                self._bring_all(run)
            except FileNotFoundError as error:  # what the index named has been replaced
                missing = error
            else:
                if self.is_wanted(run):
                    return
            remove_folder(self.folder / run)
        raise StorageError(
            f"The files of {run} at storage_path={redacted_url(self.url)!r} cannot be fetched: another worker "
            "writes there, or they were deleted."
        ) from missing

    def _bring_all(self, run: str) -> None:
        folder = self.folder / run
        folder.mkdir(parents=True)
        index = self._index(run)
        for name in index["whole"]:
            self._bring(run, name, folder)
        if index["taken"] is not None:
            (folder / TAKEN).write_text(index["taken"])

    def keep(self, run: str) -> None:
        """Send those that are not there yet; then name them; then delete the others."""
        folder = self.folder / run
        self._check_own(run)
        before = set(self._index(run)["whole"])
        present = {each.name: each for each in checkpoints_in(folder)}
        for name in sorted(present.keys() - before):
            self._send(run, present[name])
        self._check_own(run)  # sending may have taken long
        mark = folder / TAKEN
        self._write_index(run, sorted(present), mark.read_text() if mark.exists() else None)
        for name in before - present.keys():
            self._store().delete_dir(f"{self._place(run)}/{name}")

    def leave(self, run: str) -> None:
        """Delete it from this node."""
        self._scratch.end()

    def send(self, run: str, study_folder: Path) -> None:
        """Send them, unless the run has some there: a search without this place has trained it before."""
        left = checkpoints_in(study_folder / run)
        try:
            if left and not self._index(run)["whole"]:
                for each in left:
                    self._send(run, each)
                self._write_index(run, sorted(each.name for each in left), None)
        except Exception as error:
            raise self._failed(f"The files of {run} cannot be sent to", error) from safe_cause(error, self.url)

    def fetch(self, run: str, study_folder: Path, wanted: Collection[str] | None) -> None:
        """Bring them."""
        try:
            whole = self._index(run)["whole"]
            for name in whole:
                if wanted is None or name in wanted:
                    self._bring(run, name, study_folder / run)
            for earlier in checkpoints_in(study_folder / run) if whole else ():
                if earlier.name not in whole:  # from when the trial waited before
                    remove_folder(earlier)
        except Exception as error:
            raise self._failed(f"The files of {run} cannot be fetched from", error) from safe_cause(error, self.url)

    def _failed(self, attempt: str, error: Exception) -> StorageError:
        return StorageError(f"{attempt} storage_path={redacted_url(self.url)!r}: {redacted_text(str(error), self.url)}")

    def forget(self, run: str) -> None:
        """Delete the run's place."""
        with contextlib.suppress(Exception):  # whatever a file system of fsspec raises; the next search deletes it
            self._store().delete_dir(self._place(run))

    def is_wanted(self, run: str) -> bool:
        """Read which worker owns the run."""
        return bool(self._read(run, _WORKER) == self._worker)

    def copy(self, run: str) -> str:
        """Copy them at that place."""
        store, name = self._store(), f"{run}@{time.time_ns():020d}"
        for each in self._index(run)["whole"]:
            source, target = f"{self._place(run)}/{each}", f"{self._copies}/{name}/{each}"
            store.create_dir(target, recursive=True)
            filesystems.copy_files(source, target, source_filesystem=store, destination_filesystem=store)
        copies = store.get_file_info(filesystems.FileSelector(self._copies, allow_not_found=True))
        own = sorted(each.path for each in copies if each.base_name.startswith(f"{run}@"))
        for old in own[:-KEPT_COPIES]:
            store.delete_dir(old)
        return name

    def take(self, copy: str, run: str) -> None:
        """Bring them to this node."""
        store = self._store()
        with taking(self.folder / run, copy) as is_new:
            for each in store.get_file_info(filesystems.FileSelector(f"{self._copies}/{copy}")) if is_new else ():
                with whole_folder(self.folder / run / each.base_name, sync=False) as partial:
                    filesystems.copy_files(each.path, str(partial), source_filesystem=store)

    def close(self) -> None:
        """Delete the copies, and what Tune has written; the study's folder there, if no run is to resume."""
        store = self._store()
        with contextlib.suppress(OSError):
            store.delete_dir(f"{self._root}/{self.tune_folder}")
        with contextlib.suppress(OSError):
            if not store.get_file_info(filesystems.FileSelector(self._root)):
                store.delete_dir(self._root)

    def tidy(self, study_folder: Path) -> None:
        """Delete what searches that were killed have left of Tune and its copies, and of trials that have ended."""
        store = self._store()
        for left in store.get_file_info(filesystems.FileSelector(self._root, allow_not_found=True)):
            session = left.base_name.removeprefix(TUNE_FOLDER)
            is_tunes = session != left.base_name
            if not has_signed_in(study_folder, session) if is_tunes else has_ended(study_folder, left.base_name):
                with contextlib.suppress(FileNotFoundError):  # another search deletes it, too
                    store.delete_dir(left.path)

    @property
    def _root(self) -> str:
        return f"{_open(self.url)[1].rstrip('/')}/{self.study}"

    @property
    def _copies(self) -> str:
        return f"{self._root}/{self.tune_folder}/copies"

    def _store(self) -> filesystems.FileSystem:
        return _open(self.url)[0]

    def _place(self, run: str) -> str:
        return f"{self._root}/{run}"

    def _send(self, run: str, checkpoint: Path) -> None:
        store, target = self._store(), f"{self._place(run)}/{checkpoint.name}"
        store.create_dir(target, recursive=True)
        filesystems.copy_files(str(checkpoint), target, destination_filesystem=store)

    def _bring(self, run: str, name: str, folder: Path) -> None:
        with whole_folder(folder / name) as partial:
            filesystems.copy_files(f"{self._place(run)}/{name}", str(partial), source_filesystem=self._store())

    def _check_own(self, run: str) -> None:
        """Refuse to write to a run that another worker has taken over, for this search or for another one."""
        if not self.is_wanted(run):
            raise StorageError(f"another worker has taken over {run}")

    def _index(self, run: str) -> JsonObject:
        return dict(self._read(run, _INDEX) or {"whole": [], "taken": None})

    def _write_index(self, run: str, whole: list[str], taken: str | None) -> None:
        self._write(run, _INDEX, {"whole": whole, "taken": taken})

    def _read(self, run: str, name: str) -> Any:
        """Return the written state of a run; None if there is none."""
        for copy in reversed(_COPIES):
            with (
                contextlib.suppress(FileNotFoundError, ValueError),  # ValueError: half-written
                self._store().open_input_stream(f"{self._place(run)}/{name}{copy}") as stream,
            ):
                return json.loads(stream.readall())
        return None

    def _write(self, run: str, name: str, value: object) -> None:
        store = self._store()
        store.create_dir(self._place(run), recursive=True)
        for copy in _COPIES:
            with store.open_output_stream(f"{self._place(run)}/{name}{copy}") as stream:
                stream.write(json.dumps(value).encode())


def remote_name(study_folder: Path) -> str:
    """Return a unique name of a study, which its folder keeps; call it under the study's lock."""
    path = study_folder / _NAME_FILE
    if not path.exists():
        write_text(path, f"{study_folder.name}-{uuid.uuid4().hex[:8]}")
    return path.read_text(encoding="utf-8")


def check_place(url: str) -> Path | None:
    """Check that a place can be written to and read from; return the folder of this machine that it is, if it is one.

    Raises:
        StudyError: it cannot.
    """
    probe, text = f"probe-{uuid.uuid4().hex}", b"written"
    try:
        store, path = _open(url)
        store.create_dir(f"{path}/{probe}", recursive=True)
        with store.open_output_stream(f"{path}/{probe}/{probe}") as stream:
            stream.write(text)
        with store.open_input_stream(f"{path}/{probe}/{probe}") as stream:
            if stream.readall() != text:
                raise OSError("data written there cannot be read again")
        store.delete_dir(f"{path}/{probe}")
    except Exception as error:
        reason = redacted_text(f"{type(error).__name__}: {error}", url)
        raise StudyError(
            f"storage_path={redacted_url(url)!r} cannot be written to and read from: {reason}"
        ) from safe_cause(error, url)
    return Path(path) if isinstance(store, filesystems.LocalFileSystem) else None


def _open(url: str) -> tuple[filesystems.FileSystem, str]:
    """Return the file system of a URL, and the path on it."""
    if "://" not in url:
        return filesystems.LocalFileSystem(), os.path.abspath(url)
    with contextlib.suppress(Exception):
        store, path = filesystems.FileSystem.from_uri(url)
        return store, path
    store, path = fsspec.core.url_to_fs(url)
    return filesystems.PyFileSystem(filesystems.FSSpecHandler(store)), path
