"""A summary of the peers of a running trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .store.retention import kept_records
from .study import Study
from .trial_record import TrialRecord


@dataclass(frozen=True)
class PeerTrials:
    """The other trials of a study, in what matters to a running one; small enough to be sent with every trial.

    Attributes:
        kept: those whose weights stay so far, without their reports; none if every trial's do.
        epochs: passes over the data that they have trained together.
        were_evaluated: whether one of them has made a report.
        may_be_repeated: whether the weights of any trial may be needed, as it may be repeated with other seeds.
    """

    kept: tuple[TrialRecord, ...] = ()
    epochs: float = 0.0
    were_evaluated: bool = False
    may_be_repeated: bool = False

    @classmethod
    def of(
        cls,
        leading: Sequence[TrialRecord],
        study: Study,
        epochs: float,
        were_evaluated: bool,
        may_be_repeated: bool = False,
    ) -> PeerTrials:
        """Summarise the peers of a trial.

        Args:
            leading: those that have ended and may be the best, or more.
            study: the settings.
            epochs: that all of them have trained together.
            were_evaluated: whether one of them has made a report.
            may_be_repeated: whether any trial may be repeated with other seeds.
        """
        keep = study.keep_checkpoints
        kept = () if keep is None or may_be_repeated else kept_records(leading, study.objectives, keep)
        bare = tuple(replace(each, reports=(), traceback=None) for each in kept)
        return cls(bare, epochs, were_evaluated, may_be_repeated)
