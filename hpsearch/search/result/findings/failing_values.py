"""Values of a parameter with which every trial failed, such as batch sizes that do not fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...space.parameters import Categorical, Parameter
from ...space.search_space import SearchSpace
from ...trial_record import TrialRecord, TrialState

# Fewer failures are no pattern.
_FEWEST = 3
# What is more likely by chance is not said.
_CHANCE = 0.05


class _Place(NamedTuple):
    """Values of one parameter; `chance`: that all trials there fail if failures have nothing to do with it."""

    where: str
    remedy: str
    there: frozenset[int]
    others: int
    others_failed: int
    chance: float


def failing_values(space: SearchSpace, records: Sequence[TrialRecord]) -> list[str]:
    """Return a sentence for each choice, and each end of a range, with which every trial failed; the surest first.

    At least three trials must have failed there. If failures had nothing to do with the parameters, they would fall
    like this with a chance of at most 5%, over all choices and ends together (Fisher's exact test, with Bonferroni's
    correction), of parameters drawn at random. Failures that one sentence explains are not looked at again.
    """
    left, sentences = [each for each in records if each.is_counted], []
    while places := [each for name, one in space.all_parameters().items() for each in _places(name, one, left)]:
        surest = min(places, key=lambda each: each.chance)
        if len(places) * surest.chance > _CHANCE:
            break
        others = f"{surest.others_failed or 'none'} of the {surest.others} others"
        sentences.append(f"All {len(surest.there)} trials with {surest.where} failed, {others}: {surest.remedy}.")
        left = [each for each in left if each.number not in surest.there]
    return sentences


def _places(name: str, parameter: Parameter, records: Sequence[TrialRecord]) -> Iterator[_Place]:
    """Yield each choice, and both ends of a range: beyond all values with which a trial did not fail."""
    drawn = {each.number: each.params[name] for each in records if name in each.params}
    failed = {each.number for each in records if each.state is TrialState.FAILED and each.number in drawn}

    def place(where: str, remedy: str, there: Iterable[int]) -> _Place:
        numbers = frozenset(there)
        is_pattern = _FEWEST <= len(numbers) < len(drawn) and numbers <= failed
        chance = math.comb(len(failed), len(numbers)) / math.comb(len(drawn), len(numbers)) if is_pattern else 1.0
        return _Place(where, remedy, numbers, len(drawn) - len(numbers), len(failed) - len(numbers), chance)

    if isinstance(parameter, Categorical):
        for choice in parameter.choices:
            there = [number for number, value in drawn.items() if value == choice]
            yield place(f"{name}={choice!r}", "remove the choice", there)
    passed = [value for number, value in drawn.items() if number not in failed]
    if not passed or any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in drawn.values()):
        return
    low, high = min(passed), max(passed)
    above = {number: value for number, value in drawn.items() if value > high}
    below = {number: value for number, value in drawn.items() if value < low}
    remedy = "remove these choices" if isinstance(parameter, Categorical) else "narrow the range"
    yield place(f"{name} of {_shown(min(above.values(), default=0))} and more", remedy, above)
    yield place(f"{name} of {_shown(max(below.values(), default=0))} and less", remedy, below)


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"
