"""What the repeats of trials with other seeds have shown."""

from __future__ import annotations

from collections.abc import Sequence

from ...decisions.repeats import Repeats
from ...metrics.objective import Objective
from ...metrics.replicas import runs_of
from ...metrics.selection import ranking
from ...trial import TrialRecord
from ..chance_of_best import chance_of_best

_MOST_NAMED = 3


def repeated_best(records: Sequence[TrialRecord], objectives: Sequence[Objective], most: int) -> list[str]:
    """Return sentences about the means of the best trials, and about replicas that are missing.

    Args:
        records: of the study, replicas included.
        objectives: of the study.
        most: how often a trial was to be trained at most.
    """
    found = {each.trial.number: each for each in runs_of(records)}
    ranked = ranking(records, objectives)
    if not ranked or len(objectives) > 1:
        return []
    best = found[ranked[0].number]
    sentences = []
    if best.deviation is not None:
        chances = chance_of_best(records, objectives[0]) or {}
        chance = f"; the chance that it is the best trial is {chances[best.trial.number]:.0%}" if chances else ""
        sentences.append(
            f"{_short(ranked[0].values[0])} is the mean of trial {best.trial.number} over {len(best.records)} seeds "
            f"({', '.join(map(_short, best.values))}; standard deviation {best.deviation:.2g}){chance}."
        )
        others = [each for each in ranked[1:] if len(found[each.number].records) < len(best.records)]
        if others:
            named = [_named(each, len(found[each.number].records)) for each in others[:_MOST_NAMED]]
            more = [f"{len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
            sentences.append(f"Provisional, as they have fewer runs: {', '.join([*named, *more])}.")
    left = Repeats(most, tuple(objectives)).next(records, more_may_come=False) if most > 1 else None
    if left is not None:
        sentences.append(
            f"A limit has ended the search before all repeats were done (next would be replica {left.offset} of trial "
            f"{left.trial}); the same call with a larger one continues."
        )
    return sentences


def _named(trial: TrialRecord, runs: int) -> str:
    return f"{_short(trial.values[0])} (trial {trial.number}, {runs} run{'s' if runs > 1 else ''})"


def _short(value: float) -> str:
    return f"{value:#.4g}".rstrip(".")
