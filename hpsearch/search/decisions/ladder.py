"""The rungs of a search: where trials pause, how many of them are promoted, and which ones never pause.

Some trials run to the last rung, or to completion, whatever they report, so that early ranks can be compared with later
ones. Hyperband and Hyper-Tune (Li et al., VLDB 2022) hedge against misleading early reports in a similar way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from ...errors import StudyError
from ...system.json_types import JsonObject
from ..study import check_whole

# The name of the pruner by which trials pause at rungs, and the best of them resume.
RUNGS = "rungs"
# Up to this number of trials, every trial runs to completion: there is not enough to choose from.
TOO_FEW = 3
# Epochs are sums of fractions.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Ladder:
    """The rungs of a search; ``pruner=Ladder((1 / 6, 1 / 2))`` replaces those chosen by the number of trials.

    Args:
        fractions: the fractions of the training run after which trials pause; ascending, each above 0 and below 1.
        reduction_factor: one trial in this many is promoted from a rung.
        complete_first: the number of first trials that run to completion, unless they diverge.
        complete_every: each later trial whose index (the first one has 0) is a multiple of this also runs to
            completion; 0: none.
        probe_first: the number of first trials that run to the last rung, unless they diverge. They cost less than
            trials that run to completion, and show whether earlier rungs mislead.

    Raises:
        StudyError: the fractions do not ascend between 0 and 1, or a number is too small.

    Examples:
        >>> Ladder((1 / 6, 1 / 2), probe_first=4, complete_every=8).describe(None)[:70]
        'trials pause at the first evaluation after 1/6 and 1/2 of their traini'
    """

    fractions: tuple[float, ...]
    reduction_factor: int = 2
    complete_first: int = 0
    complete_every: int = 0
    probe_first: int = 0

    def __post_init__(self) -> None:
        fractions = tuple(self.fractions) if isinstance(self.fractions, Sequence) else ()
        are_fractions = all(isinstance(each, (int, float)) and 0 < each < 1 for each in fractions)
        if not fractions or not are_fractions or list(fractions) != sorted(set(fractions)):
            raise StudyError(f"The fractions of a Ladder must ascend, between 0 and 1, but are {self.fractions!r}.")
        object.__setattr__(self, "fractions", fractions)
        check_whole("The reduction_factor of a Ladder", self.reduction_factor, 2)
        check_whole("complete_first of a Ladder", self.complete_first, 0)
        check_whole("complete_every of a Ladder", self.complete_every, 0)
        check_whole("probe_first of a Ladder", self.probe_first, 0)

    @property
    def end(self) -> int:
        """The level of a trial that is complete."""
        return len(self.fractions) + 1

    @property
    def last(self) -> int:
        """The level of the last rung."""
        return len(self.fractions)

    def level(self, fraction: float) -> int:
        """Return the rung reached after a fraction of the training run: 0 for none, `end` at completion.

        Examples:
            >>> [LADDER_OF_0_8_0.level(fraction) for fraction in (0.01, 0.06, 1 / 6, 0.9, 1.0)]
            [0, 1, 2, 3, 4]
        """
        return bisect_right((*self.fractions, 1.0), fraction + ROUNDING)

    def completes(self, index: int) -> bool:
        """Return whether a trial runs to completion whatever it reports; the first trial of a study has index 0.

        Examples:
            >>> ladder = Ladder((0.5,), 2, complete_first=3, complete_every=8)
            >>> [index for index in range(20) if ladder.completes(index)]
            [0, 1, 2, 8, 16]
        """
        is_one_of = self.complete_every > 0 and index > 0 and index % self.complete_every == 0
        return index < self.complete_first or is_one_of

    def probes(self, index: int) -> bool:
        """Return whether a trial runs to the last rung whatever it reports; the first trial of a study has index 0."""
        return index < self.probe_first and not self.completes(index)

    def is_hedge(self, index: int) -> bool:
        """Return whether a trial passes a rung whatever it reports; the first trial of a study has index 0."""
        return self.completes(index) or self.probes(index)

    @property
    def is_hedged(self) -> bool:
        """Whether some trials run on whatever they report, so that misleading rungs are detected."""
        return max(self.complete_first, self.complete_every, self.probe_first) > 0

    @property
    def part(self) -> str:
        """Which trials are promoted, in words.

        Examples:
            >>> LADDER_OF_0_8_0.part
            'the best third'
        """
        return {2: "the best half", 3: "the best third", 4: "the best quarter"}.get(
            self.reduction_factor, f"the best of {self.reduction_factor}"
        )

    def describe(self, points: Sequence[float] | None, by: str = "") -> str:
        """Describe where trials pause, and which are promoted.

        Args:
            points: the fractions of their training run after which trials are evaluated; None: unknown.
            by: how trials are ranked, in words that follow "promoted"; empty: by the objective.

        Examples:
            >>> LADDER_OF_0_8_0.describe((0.2, 0.4, 0.6, 0.8, 1.0))
            'trials pause after 20% and 60% of their training, and the best third is promoted'
        """
        first_at: dict[int, float] = {}
        if points is None:
            pauses, at = [_as_text(each) for each in self.fractions], "at the first evaluation after"
        else:
            first_at = {self.level(point): point for point in sorted(points, reverse=True)}
            pauses, at = [f"{first_at[level]:.0%}" for level in range(1, self.end) if level in first_at], "after"
        if not pauses:
            return "trials do not pause, as they are evaluated at their end only"
        has_last = points is None or self.last in first_at
        promoted = f"{self.part} is promoted{by}{self._hedges(pauses, has_last)}"
        return f"trials pause {at} {_listed(pauses)} of their training, and {promoted}"

    def _hedges(self, pauses: Sequence[str], has_last: bool) -> str:
        """Describe which trials run on whatever they report, and how far; without a last rung, probes complete."""
        first = self.complete_first if has_last else max(self.complete_first, self.probe_first)
        completed = [_first(first)] if first else []
        completed += [f"every {_ordinal(self.complete_every)}"] if self.complete_every else []
        told = []
        if len(pauses) > 1 and self.probe_first > first:
            told.append(f"{_first(self.probe_first)} {_run(self.probe_first > 1)} to {pauses[-1]}")
        if completed:
            verb = "" if told else f" {_run(first > 1 or len(completed) > 1)}"
            told.append(f"{_listed(completed)}{verb} to completion")
        return f"; whatever they report, {_listed(told)}" if told else ""

    def to_json(self) -> JsonObject:
        """Return JSON-ready values."""
        return {**asdict(self), "fractions": list(self.fractions)}

    @classmethod
    def from_json(cls, values: JsonObject) -> Ladder:
        """Return the ladder from the values of `to_json`."""
        return cls(**{**values, "fractions": tuple(values["fractions"])})


# Of all searches of hpsearch 0.8.0.
LADDER_OF_0_8_0 = Ladder((1 / 18, 1 / 6, 1 / 2), 3)


# With fewer trials than this a search has the cheaper ladder: one with a number of trials; one with a budget in full
# training runs, where cheaper trials are more trials; one that repeats trials, for which it needs results (never).
FEW, FEW_OF_A_BUDGET, NEVER_FEW = 16, 24, 0


def ladder_for(n_trials: int, is_limited: bool = False, epochs: float | None = None, few: int = FEW) -> Ladder:
    """Return the ladder for a search.

    Args:
        n_trials: the number of trials in total.
        is_limited: whether time or epochs may end the search before.
        epochs: of each trial's training run; None: unknown, or trials differ.
        few: with fewer trials than this the ladder is the cheaper one: `FEW`, `FEW_OF_A_BUDGET` or `NEVER_FEW`.

    With fewer than a hundred trials the rungs are late, as early reports rank few trials badly and may mislead in
    fine-tunings: half of them are promoted (from forty on a third), and some run to completion. Of few trials a third
    is promoted, the first one runs to completion, and the next two run to the last rung, which costs less. With a
    hundred trials, and where a limit ends the search, early rungs pay, unless a training run has few epochs, as
    fine-tunings have: up to five. No rung is below one epoch, where a training run has at least two. Figures:
    docs/how-good-searches-are.md and docs/what-was-tried.md.

    >>> ladder_for(20).fractions == (1 / 6, 1 / 2), ladder_for(20, epochs=3).fractions == (1 / 3, 1 / 2)
    (True, True)
    >>> [len(ladder_for(1000, epochs=epochs).fractions) for epochs in (None, 10, 3, 2)]
    [3, 3, 2, 1]
    """
    is_early = (is_limited or n_trials >= _MANY) and (epochs is None or epochs <= 1 or epochs > _FEW_EPOCHS)
    factor = 2 if is_limited or n_trials < _SEVERAL else 3
    if is_early:
        chosen = _EARLY
    elif n_trials < few and not is_limited:
        chosen = Ladder((1 / 6, 1 / 2), 3, complete_first=1, complete_every=8, probe_first=3)
    else:
        chosen = Ladder((1 / 6, 1 / 2), factor, complete_first=min(max(1, n_trials // 5), 4), complete_every=8)
    if epochs is None or epochs < 2:
        return chosen
    return replace(chosen, fractions=tuple(sorted({max(each, 1 / epochs) for each in chosen.fractions})))


_SEVERAL, _MANY, _FEW_EPOCHS = 40, 100, 5
_EARLY = Ladder((1 / 18, 1 / 6, 1 / 2), 3, probe_first=3, complete_every=24)


def _listed(texts: Sequence[str]) -> str:
    *some, last = texts
    return f"{', '.join(some)} and {last}" if some else last


def _first(count: int) -> str:
    return f"the first {count}" if count > 1 else "the first one"


def _run(are_several: bool) -> str:
    return "run" if are_several else "runs"


def _as_text(fraction: float) -> str:
    """Return 1/6 for a sixth, and 90% for nine tenths."""
    parts = round(1 / fraction)
    return f"1/{parts}" if parts > 1 and abs(fraction * parts - 1) < ROUNDING else f"{fraction:.0%}"


def _ordinal(number: int) -> str:
    """Return 8th for 8.

    >>> [_ordinal(number) for number in (1, 2, 3, 8, 11, 22)]
    ['1st', '2nd', '3rd', '8th', '11th', '22nd']
    """
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
