"""The trials that Optuna's storage holds, read once for all that is decided together.

Every read of a database brings all trials that have not ended, and to Optuna those that wait at a rung have not. What
was read is kept where Optuna's own samplers look for it.
"""

from __future__ import annotations

import optuna
from optuna.trial import FrozenTrial


def read_trials(engine: optuna.Study) -> list[FrozenTrial]:
    """Read all trials of a study anew; `trials_as_read` returns these from now on."""
    forget_trials(engine)
    return trials_as_read(engine)


def trials_as_read(engine: optuna.Study) -> list[FrozenTrial]:
    """Return all trials of a study as they were last read, or read them now."""
    return engine._get_trials(deepcopy=False, use_cache=True)


def make_known(engine: optuna.Study, number: int) -> None:
    """Read all trials anew if the one of this number was not there when they were last read."""
    if all(each.number != number for each in trials_as_read(engine)):
        read_trials(engine)


def forget_trials(engine: optuna.Study) -> None:
    """Let the trials be read again when they are next asked for: one of them has changed."""
    engine._thread_local.cached_all_trials = None


def add_trial(engine: optuna.Study, trial: FrozenTrial) -> None:
    """Add a trial that has just begun to those that were read, if they still hold.

    Optuna keeps the one that an `optuna.Trial` has up to date, so that its parameters are known as they are chosen.
    """
    if engine._thread_local.cached_all_trials is not None:
        engine._thread_local.cached_all_trials = [*engine._thread_local.cached_all_trials, trial]
