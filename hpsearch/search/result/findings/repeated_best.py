"""What the further runs of trials have shown: those with other seeds, or on other folds."""

from __future__ import annotations

from collections.abc import Sequence

from ...decisions.repeats import Repeats
from ...metrics.replicas import Runs, runs_of
from ...metrics.selection import ranking
from ...trial_record import TrialRecord, TrialState
from ...wording import format_chance
from ..chance_of_best import chance_of_best

_MOST_NAMED = 3


def repeated_best(records: Sequence[TrialRecord], repeats: Repeats) -> list[str]:
    """Return sentences about the means of the best trials, and about replicas that are missing.

    Args:
        records: of the study, replicas included.
        repeats: how often trials were to be trained.
    """
    objectives, kind = repeats.objectives, "fold" if repeats.are_folds else "seed"
    found = {each.trial.number: each for each in runs_of(records)}
    ranked = ranking(records, objectives)
    if not ranked or len(objectives) > 1:
        return []
    best = found[ranked[0].number]
    sentences = []
    chances = chance_of_best(records, objectives[0]) or {}
    chance = f"; the chance that it is the best trial is {format_chance(chances[best.trial.number])}" if chances else ""
    if best.deviation is None and chances:
        sentences.append(
            f"{_short(ranked[0].values[0])} is the value of trial {best.trial.number} on one {kind}, ahead of the "
            f"means of trials with several by more than the noise between {kind}s explains{chance}."
        )
    if best.deviation is not None:
        sentences.append(
            f"{_short(ranked[0].values[0])} is the mean of trial {best.trial.number} over {len(best.records)} {kind}s "
            f"({', '.join(map(_short, best.values))}; standard deviation {best.deviation:.2g}){chance}."
        )
        others = [each for each in ranked[1:] if len(found[each.number].records) < len(best.records)]
        is_same = all(len(set(each.values)) == 1 for each in found.values() if len(each.records) > 1)
        if is_same and not repeats.are_folds:
            sentences.append(
                "All runs of a trial have the same value: the seed changes nothing (a function must use trial.seed)."
            )
        if others:
            named = [_named(found[each.number], best, repeats.are_folds) for each in others[:_MOST_NAMED]]
            more = [f"{len(others) - _MOST_NAMED} more"] if len(others) > _MOST_NAMED else []
            is_ahead = any(objectives[0].is_better(each.values[0], ranked[0].values[0]) for each in others)
            confirms = is_ahead and not repeats.are_folds
            decides = " `hpsearch confirm` decides whether one of them is better." if confirms else ""
            sentences.append(f"Provisional, as they have fewer runs: {', '.join([*named, *more])}.{decides}")
    failed = [each for each in records if each.replica is not None and each.state is TrialState.FAILED]
    if failed:
        which = ", ".join(str(each.replica) for each in failed)
        several = "further runs" if len(failed) > 1 else "further run"
        sentences.append(f"{len(failed)} {several} failed, so their trials get no more of them: {which}.")
    left = repeats.next(records, more_may_come=False) if repeats.most > 1 else None
    if left is not None:
        sentences.append(
            f"A limit has ended the search before all {'folds' if repeats.are_folds else 'repeats'} were done (next "
            f"would be {left}); the same call with a larger one continues."
        )
    return sentences


def _named(runs: Runs, best: Runs, are_folds: bool) -> str:
    """Return the mean of a trial with fewer runs; of folds, beside that of the best trial on the same ones."""
    count = len(runs.records)
    several = f"{count} {'fold' if are_folds else 'run'}{'s' if count > 1 else ''}"
    beside = f", where trial {best.trial.number} has {_short(best.first(count).mean.values[0])}" if are_folds else ""
    return f"{_short(runs.mean.values[0])} (trial {runs.trial.number}, {several}{beside})"


def _short(value: float) -> str:
    return f"{value:#.4g}".rstrip(".")
