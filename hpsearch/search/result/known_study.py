"""The attributes of a study that the sentences about its result use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ...errors import StudyError
from ...system.json_types import JsonObject
from ..decisions.repeats import Repeated
from ..store.stored_study import StoredStudy
from ..trial_record import TrialRecord
from .noise import Noise, evaluation_samples, noise_of


class KnownStudy(Repeated, Protocol):
    """A study with the attributes that the sentences about its result use; it may be read from its folder."""

    @property
    def folder(self) -> Path:
        """The folder of the study."""

    @property
    def scope(self) -> str:
        """Which reports of a trial give its value and its checkpoint."""

    def described_space(self) -> JsonObject | str:
        """Return the space as JSON-ready values, by parameter."""


def on_disk(study: KnownStudy) -> StoredStudy | None:
    """Return the settings of a study that only its folder has, such as the sizes of the data; None without a folder."""
    if isinstance(study, StoredStudy):
        return study
    try:
        return StoredStudy.read(study.folder)
    except StudyError:
        return None


def known_noise(stored: StoredStudy | None, records: Sequence[TrialRecord]) -> Noise | None:
    """Return the noise of the trials of a study, with the number of evaluation samples that its folder has."""
    return noise_of(records, None if stored is None else evaluation_samples(stored.settings["sessions"]))
