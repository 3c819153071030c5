"""Trials in the order of their numbers: found by bisection, so that a long list of them need not be read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter

from .trial_record import TrialRecord

_NUMBER = attrgetter("number")


def place_of(number: int, trials: Sequence[TrialRecord]) -> int | None:
    """Return the place of a trial among trials by number; None if it is not there."""
    place = bisect_left(trials, number, key=_NUMBER)
    return place if place < len(trials) and trials[place].number == number else None


def with_number(number: int, trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial of a number among trials by number; None if it is not there."""
    place = place_of(number, trials)
    return None if place is None else trials[place]


def updated(trials: Sequence[TrialRecord], changed: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return trials by number with those that have changed in place of the earlier ones, and with new ones."""
    found = list(trials)
    for each in changed:
        place = bisect_left(found, each.number, key=_NUMBER)
        is_there = place < len(found) and found[place].number == each.number
        found[place : place + is_there] = [each]
    return found
