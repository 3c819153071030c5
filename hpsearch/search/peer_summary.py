"""A summary of the peers of a running trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .store.retention import kept_records
from .study import Study
from .trial import TrialRecord


@dataclass(frozen=True)
class PeerTrials:
    """The other trials of a study, in what matters to a running one; small enough to be sent with every trial.

    Attributes:
        kept: those whose weights stay so far, without their reports; none if every trial's do.
        epochs: passes over the data that they have trained together.
        were_evaluated: whether one of them has made a report.
    """

    kept: tuple[TrialRecord, ...] = ()
    epochs: float = 0.0
    were_evaluated: bool = False

    @classmethod
    def of(cls, leading: Sequence[TrialRecord], study: Study, epochs: float, were_evaluated: bool) -> PeerTrials:
        """Summarise the peers of a trial.

        Args:
            leading: those that have ended and may be the best, or more.
            study: the settings.
            epochs: that all of them have trained together.
            were_evaluated: whether one of them has made a report.
        """
        keep = study.keep_checkpoints
        kept = () if keep is None else kept_records(leading, study.objectives, keep)
        return cls(tuple(replace(each, reports=(), traceback=None) for each in kept), epochs, were_evaluated)
