"""The requests of the user as this session follows them: read when they change, and what follows is announced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import StudyError
from ..search.requests.in_effect import InEffect, unfulfilled
from ..search.requests.request import Request
from ..search.requests.request_file import RequestFile
from ..search.study import Study
from ..search.trial_record import TrialRecord

logger = logging.getLogger(__name__)


class RequestsInEffect:
    """Reads the requests to a study.

    Args:
        study_folder: the folder of the study.
        is_at_work: whether a session is still at work.
        announce: shows a notice.
    """

    def __init__(self, study_folder: Path, is_at_work: Callable[[str], bool], announce: Callable[[str], None]) -> None:
        self._file, self._is_at_work, self._announce = RequestFile(study_folder), is_at_work, announce
        self._read: tuple[tuple[Request, ...], InEffect] = (), InEffect()
        self._known: set[str] = set()
        self._is_damaged = False

    def open(self, records: Sequence[TrialRecord], is_alone: bool, study: Study) -> list[str]:
        """Read the requests that are there when the session begins, and describe them; under the study's lock.

        Those that were made to a search that has ended, and lasted as long as it, are deleted.

        Args:
            records: the trials of the study.
            is_alone: whether no other session is at work.
            study: the settings of this session.
        """
        notes = []
        lapsed = self._file.keep(lambda each: not each.kind.ends_with_the_search) if is_alone else []
        for name, value in InEffect.of(lapsed, lambda session: True).settings.items():
            if value != getattr(study, name):
                notes.append(
                    f"{name}={value!r} was set by hand for the last search; now it is {getattr(study, name)!r}"
                )
        requests = self._requests()
        self._known = {each.id for each in requests}
        left = unfulfilled(requests, records, study.objectives)
        if left:
            notes.append(f"requested before: {', '.join(map(str, left))}")
        return notes

    def now(self) -> InEffect:
        """Return the requests that are in effect."""
        requests = self._requests()
        if requests is not self._read[0] or self._read[1].is_paused or self._read[1].settings:
            self._read = requests, InEffect.of(requests, self._is_at_work)
        for each in requests:
            if each.id not in self._known:
                self._known.add(each.id)
                self._announce(f"requested: {each}")
        return self._read[1]

    def _requests(self) -> tuple[Request, ...]:
        """Return the requests; of a damaged file those that were known before."""
        try:
            found, self._is_damaged = self._file.read(), False
        except StudyError as error:
            if not self._is_damaged:
                self._is_damaged = True
                logger.warning("%s", error)
                self._announce(f"DAMAGED: {error}")
            return self._read[0]
        return found
