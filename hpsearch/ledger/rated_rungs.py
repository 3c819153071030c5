"""Rungs, with what Optuna's side adds to them: the sampler's expectations, and what a terminator asks."""

from __future__ import annotations

from collections.abc import Sequence

import optuna

from ..search.decisions.agreement import describe
from ..search.decisions.ladder import Ladder
from ..search.decisions.promotion_at_rungs import Rating, Rungs
from ..search.study import Study
from ..search.trial_record import TrialRecord
from .curve_sampler import CurveSampler


class RatedRungs:
    """The rungs of a study, and how the sampler rates the trials that are paused there.

    Args:
        study: the settings.
        engine: Optuna's study.
        ladder: the rungs.

    Attributes:
        rungs: decide which trials pause and which are promoted.
    """

    def __init__(self, study: Study, engine: optuna.Study, ladder: Ladder) -> None:
        self._engine = engine
        self.rungs = Rungs(study, ladder)
        if isinstance(engine.sampler, CurveSampler):
            engine.sampler.reliable_from = self.rungs.reliable_from
        self._misleading: set[float] = set()  # as announced

    def rating(self, trials: Sequence[TrialRecord]) -> Rating | None:
        """Return a rating of trials by expected improvement; None while there is too little data."""
        engine, sampler = self._engine, self._engine.sampler
        if not isinstance(sampler, CurveSampler) or not sampler.knows_enough(engine, trials):
            return None
        return lambda candidates, known: sampler.promise(engine, candidates, known)

    def changes_of_agreement(self, trials: Sequence[TrialRecord]) -> list[str]:
        """Describe, once, each rung that begins to mislead, and each that does no longer."""
        agreements = self.rungs.agreements(trials)
        misleading = {fraction for fraction, found in agreements.items() if found.misleads}
        changed, self._misleading = sorted(misleading ^ self._misleading), misleading
        return [describe(agreements[fraction]) for fraction in changed]

    def count_since_improvement(self, trials: Sequence[TrialRecord]) -> int:
        """Return the number of trials that reached a rung, or failed, since the last new best at any rung."""
        return self.rungs.count_since_improvement(trials)

    def most_expected(self, trials: Sequence[TrialRecord]) -> float | None:
        """Return the largest expected improvement of any parameters; None without a model."""
        engine, sampler = self._engine, self._engine.sampler
        if not isinstance(sampler, CurveSampler) or not sampler.knows_enough(engine, trials):
            return None
        return sampler.most_expected(engine, trials)
