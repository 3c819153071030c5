"""Checkpoints of running trials at a place that all nodes reach, such as a bucket."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from pyarrow import fs as filesystems

from ...errors import StudyError
from ...files import remove_folder, whole_folder
from .run_folders import RunFolders, checkpoints_in, taking

_INDEX = "index.json"


@dataclass
class DistantFolders(RunFolders):
    """A place that all nodes reach, such as a bucket; each worker trains in a folder of its own node.

    A run's place there holds its checkpoints and an index that names those that are whole, and the search they are of.

    Args:
        url: of the place: a path, or a URL that pyarrow or fsspec knows.
        study_name: names the study there.
        session: the search that the workers are of.
        tune_folder: where Tune and the copies of this search are.
    """

    url: str
    study_name: str
    session: str
    tune_folder: str
    seconds_between_looks: ClassVar[float] = 20.0

    @property
    def folder(self) -> Path:
        """A folder of this node, which this search alone uses."""
        return Path(tempfile.gettempdir(), f"hpsearch-{self.session}", self.study_name)

    @property
    def url_for_tune(self) -> str:
        """The study's folder at that place."""
        return f"{self.url.rstrip('/') if '://' in self.url else os.path.abspath(self.url)}/{self.study_name}"

    def begin(self, run: str) -> None:
        """Bring the checkpoints to this node, and say that this search is at the run."""
        folder = self.folder / run
        remove_folder(folder)
        folder.mkdir(parents=True)
        self._bring(run, folder)
        self._write_index(run, self._index(run)["whole"])

    def keep(self, run: str) -> None:
        """Send those that are not there yet; then name them; then delete the others."""
        store, place = self._store(), self._place(run)
        before = set(self._index(run)["whole"])
        present = {each.name: each for each in checkpoints_in(self.folder / run)}
        for name in present.keys() - before:
            store.create_dir(f"{place}/{name}", recursive=True)
            filesystems.copy_files(str(present[name]), f"{place}/{name}", destination_filesystem=store)
        self._write_index(run, sorted(present))
        for name in before - present.keys():
            store.delete_dir(f"{place}/{name}")

    def leave(self, run: str) -> None:
        """Delete it from this node."""
        remove_folder(self.folder / run)
        with contextlib.suppress(OSError):  # other workers of this node are still there
            self.folder.rmdir()
            self.folder.parent.rmdir()

    def fetch(self, run: str, study_folder: Path) -> None:
        """Bring them, and delete the run's place."""
        self._bring(run, study_folder / run)
        with contextlib.suppress(FileNotFoundError):
            self._store().delete_dir(self._place(run))

    def is_wanted(self, run: str) -> bool:
        """Look whose the run is."""
        return bool(self._index(run)["session"] == self.session)

    def copy(self, run: str) -> str:
        """Copy them at that place."""
        store, name = self._store(), f"{run}@{uuid.uuid4().hex}"
        for each in self._index(run)["whole"]:
            source, target = f"{self._place(run)}/{each}", f"{self._copies}/{name}/{each}"
            store.create_dir(target, recursive=True)
            filesystems.copy_files(source, target, source_filesystem=store, destination_filesystem=store)
        return name

    def take(self, copy: str, run: str) -> None:
        """Bring them to this node."""
        store = self._store()
        with taking(self.folder / run, copy) as is_new:
            for each in store.get_file_info(filesystems.FileSelector(f"{self._copies}/{copy}")) if is_new else ():
                with whole_folder(self.folder / run / each.base_name, sync=False) as partial:
                    filesystems.copy_files(each.path, str(partial), source_filesystem=store)

    def close(self) -> None:
        """Delete the copies, and what Tune has written."""
        with contextlib.suppress(OSError):
            self._store().delete_dir(f"{self._root}/{self.tune_folder}")

    def check(self) -> None:
        """Check that the place can be written to and read from.

        Raises:
            StudyError: it cannot.
        """
        try:
            self._write_index(f"probe-{self.session}", [])
            assert self.is_wanted(f"probe-{self.session}")
            self._store().delete_dir(self._place(f"probe-{self.session}"))
        except Exception as error:
            raise StudyError(
                f"storage_path={self.url!r} cannot be written to and read from: {type(error).__name__}: {error}"
            ) from error

    @property
    def _root(self) -> str:
        return f"{_open(self.url)[1].rstrip('/')}/{self.study_name}"

    @property
    def _copies(self) -> str:
        return f"{self._root}/{self.tune_folder}/copies"

    def _store(self) -> Any:
        return _open(self.url)[0]

    def _place(self, run: str) -> str:
        return f"{self._root}/{run}"

    def _bring(self, run: str, folder: Path) -> None:
        for name in self._index(run)["whole"]:
            with whole_folder(folder / name) as partial:
                filesystems.copy_files(f"{self._place(run)}/{name}", str(partial), source_filesystem=self._store())

    def _index(self, run: str) -> dict[str, Any]:
        try:
            with self._store().open_input_stream(f"{self._place(run)}/{_INDEX}") as stream:
                return dict(json.loads(stream.readall()))
        except (FileNotFoundError, ValueError):
            return {"session": None, "whole": []}

    def _write_index(self, run: str, whole: list[str]) -> None:
        store = self._store()
        store.create_dir(self._place(run), recursive=True)
        with store.open_output_stream(f"{self._place(run)}/{_INDEX}") as stream:
            stream.write(json.dumps({"session": self.session, "whole": whole}).encode())


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path on it."""
    if "://" not in url:
        return filesystems.LocalFileSystem(), os.path.abspath(url)
    with contextlib.suppress(Exception):
        store, path = filesystems.FileSystem.from_uri(url)
        return store, path
    store, path = fsspec.core.url_to_fs(url)
    return filesystems.PyFileSystem(filesystems.FSSpecHandler(store)), path
