"""The defaults of a study where the user names no sampler and no pruner.

The first call of the study determines them. Later calls and versions keep them: a continued study is one search.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from ..search.decisions.ladder import FEW, FEW_OF_A_BUDGET, LADDER_OF_0_8_0, NEVER_FEW, Ladder, ladder_for
from ..search.decisions.training_budget import expected_trials
from ..search.learning_curves.proposal import count_at_random
from ..search.study import Study
from ..system.json_types import JsonObject

# In `study.json`: the defaults, and among them whether trials of several objectives pause.
DEFAULTS, SEVERAL = "defaults", "pauses_several"


@dataclass(frozen=True)
class Defaults:
    """The defaults that a study was created with.

    Attributes:
        ladder: the rungs, if trials are pruned by rungs.
        at_random: the number of random trials before the Gaussian process proposes; None: the rule of 0.8.0, which
            depends on the number of trials of each call.
        models_in_full: whether the Gaussian process, and not TPE, proposes parameters where every trial runs to
            completion; not in studies of 0.8.0.
        pauses_several: whether trials of several objectives pause at rungs; not in studies that began before they did.
    """

    ladder: Ladder
    at_random: int | None
    models_in_full: bool
    pauses_several: bool = False

    @classmethod
    def of(
        cls,
        study: Study,
        settings: JsonObject | None,
        ladder: Ladder | None = None,
        epochs: float | None = None,
        pauses: bool = True,
    ) -> Defaults:
        """Return what `study.json` says; for a new study, what fits its settings; for one of 0.8.0, what that had.

        Args:
            study: the settings of this call.
            settings: what `study.json` holds; None: the study is new. One that was begun with three trials or fewer
                may choose anew.
            ladder: what the user asks for in this call; None: nothing.
            epochs: of each trial's training run; None: unknown.
            pauses: whether trials pause at rungs.
        """
        if settings is None or (DEFAULTS in settings and settings[DEFAULTS] is None):
            is_limited = _is_limited(study)
            n_trials, budget = study.n_trials, study.budget
            at_random = count_at_random(expected_trials(n_trials, budget, pauses), is_limited)
            expected = expected_trials(n_trials, budget)
            ladder_of_study = ladder_for(expected, is_limited, epochs, _few(study, expected))
            chosen = cls(ladder_of_study, at_random, models_in_full=True, pauses_several=True)
        elif DEFAULTS in settings:
            known = settings[DEFAULTS]
            chosen = cls(Ladder.from_json(known["ladder"]), known["at_random"], known["models_in_full"])
            chosen = replace(chosen, pauses_several=known.get(SEVERAL, False))
        else:
            chosen = cls.of_0_8_0()
        return chosen if ladder is None else replace(chosen, ladder=ladder)

    @classmethod
    def of_0_8_0(cls) -> Defaults:
        """Return what every study of hpsearch 0.8.0 had."""
        return cls(LADDER_OF_0_8_0, None, models_in_full=False)

    def to_json(self) -> JsonObject:
        """Return JSON-ready values."""
        return {**asdict(self), "ladder": self.ladder.to_json()}

    def first(self, study: Study) -> int:
        """Return how many trials are drawn at random before the model is asked, in a call with these settings."""
        if self.at_random is not None:
            return self.at_random
        return at_random_in_0_8_0(expected_trials(study.n_trials, study.budget), _is_limited(study))


def _few(study: Study, expected: int) -> int:
    """Return the number of trials below which a search has the ladder of few."""
    if study.repeats > 1 or study.folds is not None:
        return NEVER_FEW
    is_by_budget = study.budget is not None and expected_trials(None, study.budget) == expected
    return FEW_OF_A_BUDGET if is_by_budget else FEW


def _is_limited(study: Study) -> bool:
    """Tell whether time or epochs may end the search before all trials have run."""
    return study.timeout is not None or study.max_epochs is not None


def at_random_in_0_8_0(n_trials: int, is_limited: bool) -> int:
    """Return how many trials of a search of hpsearch 0.8.0 were drawn at random.

    >>> [at_random_in_0_8_0(n_trials, False) for n_trials in (10, 50, 1000)], at_random_in_0_8_0(1000, True)
    ([8, 16, 24], 16)
    """
    return min(max(n_trials // 3, 8), 16 if is_limited else 24)
