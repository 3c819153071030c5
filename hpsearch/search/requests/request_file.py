"""The file of requests in the study's folder, which every search in the folder reads.

It has a lock of its own: the search itself calls listeners and callbacks under the lock of the study, and these may
make requests too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ...errors import StudyError
from ...system.files import file_lock, write_json
from ..store.checked_json import Unreadable
from ..store.read_study import read_own_json, version_of
from ..store.study_folder import REQUESTS_FILE, REQUESTS_LOCK, check_own_files
from .request import Request


class RequestFile:
    """The requests that were made to a study, in the order in which they were made.

    Args:
        study_folder: the folder of the study.
    """

    def __init__(self, study_folder: Path) -> None:
        self._folder, self._path = study_folder, study_folder / REQUESTS_FILE
        self._read: tuple[object, tuple[Request, ...]] = None, ()

    def read(self) -> tuple[Request, ...]:
        """Return all requests; the file is read again only if it has changed.

        Raises:
            StudyError: the file is damaged.
        """
        version = version_of(self._path)
        if self._read[0] != version:
            self._read = version, _requests(self._path)
        return self._read[1]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing the file while the block runs.

        Raises:
            StudyError: a link, or a folder, is in its place.
        """
        check_own_files(self._folder)
        with file_lock(self._folder / REQUESTS_LOCK):
            yield

    def add(self, request: Request) -> None:
        """Append a request; in a block of `locked`."""
        self._write([*self.read(), request])

    def keep(self, is_kept: Callable[[Request], bool]) -> list[Request]:
        """Remove the requests that are not to be kept, and return them."""
        if all(map(is_kept, self.read())):
            return []
        with self.locked():
            known = self.read()
            self._write([each for each in known if is_kept(each)])
        return [each for each in known if not is_kept(each)]

    def _write(self, requests: Sequence[Request]) -> None:
        write_json(self._path, [each.to_json() for each in requests])


def _requests(path: Path) -> tuple[Request, ...]:
    try:
        found = read_own_json(path)
        if not isinstance(found, list):
            raise Unreadable("it must be a list of requests")
        return tuple(map(Request.from_json, found))
    except FileNotFoundError:
        return ()
    except Unreadable as error:
        raise StudyError(f"{str(path)!r} is damaged: {error}. Move it away, and make the requests again.") from error
