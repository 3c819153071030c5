"""The trials that Optuna's storage holds, read once for all that is decided together.

Every read of a database brings all trials that have not ended, and to Optuna those that are paused have not. What was
read is kept where Optuna's own samplers look for it; all of this is called from one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

import optuna
from optuna.trial import FrozenTrial


def read_trials(engine: optuna.Study) -> list[FrozenTrial]:
    """Read all trials of a study anew; `trials_as_read` returns these from now on."""
    forget_trials(engine)
    return trials_as_read(engine)


def trials_as_read(engine: optuna.Study) -> list[FrozenTrial]:
    """Return all trials of a study as they were last read, or read them now."""
    return engine._get_trials(deepcopy=False, use_cache=True)


def forget_trials(engine: optuna.Study) -> None:
    """Let the trials be read again when they are next asked for: one of them has changed."""
    engine._thread_local.cached_all_trials = None


def renew_trial(engine: optuna.Study, trial: optuna.Trial) -> None:
    """Put a trial that this process is at among those that were read, as it is now, and with what it is given later."""
    live = trial._cached_frozen_trial  # which Optuna keeps up to date
    trials = list(trials_as_read(engine))
    place = bisect_left(trials, live.number, key=attrgetter("number"))
    trials[place : place + (place < len(trials) and trials[place].number == live.number)] = [live]
    engine._thread_local.cached_all_trials = trials
