"""The agreement of each rung's ranks with the final ranks, in the words of the search's own notices."""

from __future__ import annotations

from collections.abc import Sequence

from ..decisions.agreement import describe
from ..decisions.standings import Standings
from ..metrics.replicas import without_replicas
from ..store.stored_study import StoredStudy
from ..study import Study
from ..trial_record import TrialRecord


def agreement_sentences(study: Study | StoredStudy, records: Sequence[TrialRecord]) -> list[str]:
    """Return a sentence for each rung that at least three complete trials were at, the first rung first.

    A trial that was trained several times counts once, by its first run, which is the one that rungs judge.
    Empty if trials did not pause, or if that is not known: only the folder of a study says it.
    """
    ladder = study.ladder if isinstance(study, StoredStudy) else None
    if ladder is None:
        return []
    said = [
        describe(found, ladder.is_hedged)
        for found in Standings(study, ladder).of(without_replicas(records)).agreements().values()
        if found.pairs
    ]
    return [f"{each[0].upper()}{each[1:]}." for each in said]
