"""The study that a search is warm-started from: in which storage it is, and under which names its parameters are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import StudyError


@dataclass(frozen=True)
class WarmStart:
    """The source of a warm start (``start_from=``): one study of a storage that holds several, or renamed parameters.

    Args:
        study: an `optuna.Study`; a `BestRun` or a `SearchSummary`; or the URL or the journal file of a storage.
        study_name: the name of the study in a storage; None: the only one there.
        rename: a mapping from the names of parameters in that study to their names in this search.

    Raises:
        StudyError: `rename` is not a mapping from names to different names.

    Examples:
        >>> WarmStart("sqlite:///optuna.db", study_name="rates", rename={"lr": "learning_rate"}).rename
        {'lr': 'learning_rate'}
    """

    study: Any
    study_name: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_mapping = isinstance(self.rename, Mapping)
        if not is_mapping or not all(isinstance(each, str) for pair in self.rename.items() for each in pair):
            raise StudyError(
                f"WarmStart: rename must be a mapping from names in the other study to names here, such as "
                f"{{'lr': 'learning_rate'}}, but got {self.rename!r}."
            )
        twice = next((each for each in self.rename.values() if list(self.rename.values()).count(each) > 1), None)
        if twice is not None:
            raise StudyError(f"WarmStart: rename gives two parameters the name {twice!r}.")
