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
    def of(cls, records: Sequence[TrialRecord], study: Study, under_way: float = 0.0) -> PeerTrials:
        """Summarise the peers of a trial; add the `under_way` epochs of running ones."""
        keep = study.keep_checkpoints
        kept = () if keep is None else kept_records(records, study.objectives, keep)
        return cls(
            tuple(replace(each, reports=(), traceback=None) for each in kept),
            sum(each.epochs for each in records) + under_way,
            any(each.reports for each in records),
        )
