"""Detect a change of the model's size between the trials of a study, even if no code of the model was edited.

What `model_init` reads from a file or from the environment is in no fingerprint: only the model shows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..search.metrics.added_metrics import NUM_PARAMETERS
from ..search.trial_record import TrialRecord


class ModelSize:
    """The number of parameters that the models of earlier trials had.

    Args:
        records: of the trials that began before this session.
        is_fixed: whether no parameter of a trial changes the model.
    """

    def __init__(self, records: Iterable[TrialRecord], is_fixed: bool) -> None:
        sizes = {size for each in records for size in _sizes(each)} if is_fixed else set()
        self._known = sizes.pop() if len(sizes) == 1 else None  # sizes that differ anyway prove nothing

    def change(self, record: TrialRecord) -> str | None:
        """Return a notice that a trial's model has another number of parameters, once; else None."""
        sizes = _sizes(record)[-1:]
        if self._known is None or not sizes or sizes[0] == self._known:
            return None
        before, self._known = self._known, None
        return (
            f"CHANGED since earlier trials: the model of trial {record.number} has {sizes[0]:,.0f} parameters, those "
            f"of earlier trials {before:,.0f}, though model_init reads no parameter of the trial. Trials of "
            "different models are compared: if you do not mean that, pass another study_name="
        )


def _sizes(record: TrialRecord) -> list[float]:
    """Return the number of parameters at each report; 0, of weights that are elsewhere, is left out."""
    return [each.metrics[NUM_PARAMETERS] for each in record.reports if each.metrics.get(NUM_PARAMETERS)]
