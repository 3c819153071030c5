"""Why a study has no best trial, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..decisions.training_budget import is_exhausted
from ..metrics.constraints import Constraint
from ..metrics.selection import closest
from ..trial_record import TrialRecord, TrialState

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_ROUNDING = 1e-6


def explain_absence(
    records: Sequence[TrialRecord],
    constraints: Sequence[Constraint],
    max_epochs: float | None = None,
    budget: float | None = None,
    call: str = "The same call",
) -> str:
    """Return why none of these trials may be the best, how the first one failed, and what continues the study.

    Args:
        records: of the study, by number.
        constraints: of the study.
        max_epochs: the epochs that all trials may take together; None: no limit, or not known.
        budget: the full training runs that all trials may take together; None: no limit.
        call: what continues the study, to begin a sentence with.
    """
    if not records:
        return f"No trial has run. {call} continues the study."
    sentences = [_overview(records, constraints), _first_reason(records)]
    if any(each.state.is_open for each in records):
        has_no_epochs = max_epochs is not None and sum(each.epochs for each in records) >= max_epochs - _ROUNDING
        exhausted = {"max_epochs": has_no_epochs, "budget": is_exhausted(budget, records)}
        larger = "".join(f" with a larger {name}" for name, is_so in exhausted.items() if is_so)
        sentences.append(f"{call}{larger} continues the study.")
    return " ".join(each for each in sentences if each)


def _overview(records: Sequence[TrialRecord], constraints: Sequence[Constraint]) -> str:
    with_result = closest(records, constraints)
    if with_result and not with_result[0].is_eligible:  # else no result is a number
        nearest = with_result[0]
        broken = ", ".join(name for name, by in nearest.violations.items() if by > 0)
        if len(with_result) == 1:
            return f"The only trial with a result, trial {nearest.number}, breaks {broken}."
        return (
            f"None of the {len(with_result)} trials with a result satisfies the constraints; trial {nearest.number} "
            "comes "
            f"closest and breaks {broken}."
        )
    counts = [(sum(record.state is state for record in records), state.value) for state in TrialState]
    return f"No trial has a result: {', '.join(f'{number} {name}' for number, name in counts if number)}."


def _first_reason(records: Sequence[TrialRecord]) -> str:
    """Return why the first trial failed, and where; if none failed and none has a result, why the first one ended."""
    failed = next((each for each in records if each.state is TrialState.FAILED), None)
    if failed is not None:
        reason = (failed.reason or "no reason is known").rstrip(".")
        return f"The first failure, trial {failed.number}: {reason}{_place(failed.traceback)}."
    if any(each.state.has_result for each in records):
        return ""
    first = next((each for each in records if each.reason), None)
    if first is None:
        return ""
    reason = first.reason or ""
    return f"Trial {first.number}: {reason}{'' if reason.endswith(('.', '?')) else '.'}"


def _place(trace: str | None) -> str:
    """Return the last frame of a traceback, in brackets; empty if there is none."""
    frames = _FRAME.findall(trace or "")
    return f" ({frames[-1][0]}, line {frames[-1][1]}, in {frames[-1][2]})" if frames else ""
