"""After which shares of their training trials pause, how many of them go on from there, and which never pause.

Some trials are trained in full whatever they report: then it is known how well an early look tells the end, also where
that changes. Such a hedge against early looks that mislead is in Hyperband, and in Li et al.: Hyper-Tune (VLDB 2022).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import StudyError
from .study import check_whole

# Of so many trials or fewer, every one is trained in full: there is not enough to choose from.
TOO_FEW = 3
# Epochs are sums of fractions.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Ladder:
    """The rungs of a search: ``pruner=Ladder((1 / 6, 1 / 2))`` in place of those that fit the number of trials.

    Args:
        shares: of the training, after which trials pause, rising; each above 0 and below 1.
        factor: one trial of so many goes on from a rung.
        in_full_first: so many first trials are trained in full, unless they diverge.
        in_full_every: so is each trial whose place, from 0, is a multiple of this; 0: no other one.

    Raises:
        StudyError: the shares do not rise between 0 and 1, or a number is too small.

    Example:
        >>> Ladder((1 / 6, 1 / 2), in_full_first=4, in_full_every=8).describe(None)[:70]
        'trials pause at the first evaluation after 1/6 and 1/2 of their traini'
    """

    shares: tuple[float, ...]
    factor: int = 2
    in_full_first: int = 0
    in_full_every: int = 0

    def __post_init__(self) -> None:
        shares = tuple(self.shares) if isinstance(self.shares, Sequence) else ()
        are_shares = all(isinstance(each, (int, float)) and 0 < each < 1 for each in shares)
        if not shares or not are_shares or list(shares) != sorted(set(shares)):
            raise StudyError(f"The shares of a Ladder must rise, between 0 and 1, but are {self.shares!r}.")
        object.__setattr__(self, "shares", shares)
        check_whole("The factor of a Ladder", self.factor, 2)
        check_whole("in_full_first of a Ladder", self.in_full_first, 0)
        check_whole("in_full_every of a Ladder", self.in_full_every, 0)

    @property
    def end(self) -> int:
        """The height of a trial that has trained to its end."""
        return len(self.shares) + 1

    def height(self, share: float) -> int:
        """Return to which rung a trial has come after a share of its training: 0 if to none, `end` at its end.

        >>> [LADDER_OF_0_8_0.height(share) for share in (0.01, 0.06, 1 / 6, 0.9, 1.0)]
        [0, 1, 2, 3, 4]
        """
        return bisect_right((*self.shares, 1.0), share + ROUNDING)

    def is_in_full(self, place: int) -> bool:
        """Tell whether a trial is trained to its end, whatever it reports; the first one of a study has place 0.

        >>> [place for place in range(20) if Ladder((0.5,), 2, in_full_first=3, in_full_every=8).is_in_full(place)]
        [0, 1, 2, 8, 16]
        """
        return place < self.in_full_first or (self.in_full_every > 0 and place % self.in_full_every == 0)

    @property
    def is_hedged(self) -> bool:
        """Whether some trials are trained in full, so that it is seen whether a rung misleads."""
        return self.in_full_first > 0 or self.in_full_every > 0

    @property
    def part(self) -> str:
        """In words, how many go on.

        >>> LADDER_OF_0_8_0.part
        'the best third'
        """
        return {2: "the best half", 3: "the best third", 4: "the best quarter"}.get(
            self.factor, f"the best of {self.factor}"
        )

    def describe(self, points: Sequence[float] | None) -> str:
        """Return in words where trials pause that are evaluated after these fractions of their training; None: unknown.

        >>> LADDER_OF_0_8_0.describe((0.2, 0.4, 0.6, 0.8, 1.0))
        'trials pause after 20% and 60% of their training, and the best third goes on'
        """
        if points is None:
            fractions = _listed([_as_fraction(share) for share in self.shares])
            after = f"at the first evaluation after {fractions}"
            return f"trials pause {after} of their training, and {self.part} goes on{self._others}"
        first_at = {self.height(point): point for point in sorted(points, reverse=True)}
        pauses = [f"{first_at[height]:.0%}" for height in range(1, self.end) if height in first_at]
        if not pauses:
            return "trials do not pause, as they are evaluated at their end only"
        return f"trials pause after {_listed(pauses)} of their training, and {self.part} goes on{self._others}"

    @property
    def _others(self) -> str:
        if not self.is_hedged:
            return ""
        first = f"first {self.in_full_first}" if self.in_full_first > 1 else "first one"
        every = f" and every {_ordinal(self.in_full_every)}" if self.in_full_every else ""
        return f"; the {first}{every} train to their end"

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**asdict(self), "shares": list(self.shares)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Ladder:
        """Return the ladder that `to_json` gave the values of."""
        return cls(**{**values, "shares": tuple(values["shares"])})


# Of all searches of hpsearch 0.8.0.
LADDER_OF_0_8_0 = Ladder((1 / 18, 1 / 6, 1 / 2), 3)


def ladder_for(n_trials: int, is_limited: bool = False) -> Ladder:
    """Return where trials of a search pause.

    Args:
        n_trials: how many there are to be.
        is_limited: whether time or epochs may end the search before.

    Fewer than a hundred trials pause late, half of them go on, and some are trained in full, as an early look says too
    little of which are the best, and in fine-tunings may mislead; of more, and where the end comes by a limit, early
    looks pay. Figures: docs/how-search-decides.md.
    """
    if is_limited or n_trials >= _MANY:
        return LADDER_OF_0_8_0
    return Ladder((1 / 6, 1 / 2), 2, in_full_first=min(max(1, n_trials // 5), 4), in_full_every=8)


_MANY = 100


def _listed(texts: Sequence[str]) -> str:
    *some, last = texts
    return f"{', '.join(some)} and {last}" if some else last


def _as_fraction(share: float) -> str:
    """Return 1/6 for a sixth, and 90% for nine tenths."""
    parts = round(1 / share)
    return f"1/{parts}" if parts > 1 and abs(share * parts - 1) < ROUNDING else f"{share:.0%}"


def _ordinal(number: int) -> str:
    """Return 8th for 8.

    >>> [_ordinal(number) for number in (1, 2, 3, 8, 11, 22)]
    ['1st', '2nd', '3rd', '8th', '11th', '22nd']
    """
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
