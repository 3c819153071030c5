"""End a search early when no improvement is expected: by a terminator of Optuna, or with rungs by a rule of our own.

A terminator of Optuna looks at trials with a result. With rungs these are few, as most trials are paused or pruned.
There `terminator=True` looks at the reports at all rungs and at the expected improvement.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import optuna
from optuna.terminator import BaseTerminator

from ..errors import StudyError

# The search ends after this many trials without a new best at any rung; or after half of them, if the expected
# improvement is below a hundredth of a standard deviation of the ranks.
STAGNATION, _STAGNATION_IF_LITTLE, _LITTLE = 30, 15, 0.01


def as_terminator(terminator: object) -> BaseTerminator | None:
    """Return a terminator of Optuna as it is; for True, one that stops after 30 results in a row without a new best.

    Raises:
        StudyError: it is no terminator, or needs the errors of a cross-validation.
    """
    if terminator is None or terminator is False:
        return None
    if terminator is True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stagnation = optuna.terminator.BestValueStagnationEvaluator(max_stagnation_trials=STAGNATION - 1)
            return optuna.terminator.Terminator(stagnation, optuna.terminator.StaticErrorEvaluator(0.0))
    if not isinstance(terminator, BaseTerminator):
        raise StudyError(f"terminator must be True, an Optuna terminator or None, but got {terminator!r}.")
    if isinstance(getattr(terminator, "_error_evaluator", None), optuna.terminator.CrossValidationErrorEvaluator):
        raise StudyError(
            "This terminator uses cross-validation errors, which a search does not compute; give it another "
            "error_evaluator, such as optuna.terminator.StaticErrorEvaluator(0.0), or pass terminator=True."
        )
    return terminator


def is_stagnant(since_improvement: int, expected: Callable[[], float | None]) -> bool:
    """Return whether a search with rungs ends, with `terminator=True`.

    Args:
        since_improvement: the number of trials since the last new best at any rung.
        expected: returns the largest expected improvement, None without a model; called only if it matters.

    >>> is_stagnant(30, lambda: 0.5), is_stagnant(29, lambda: 0.5), is_stagnant(15, lambda: 0.001)
    (True, False, True)
    """
    if since_improvement < _STAGNATION_IF_LITTLE:
        return False
    if since_improvement >= STAGNATION:
        return True
    most = expected()
    return most is not None and most < _LITTLE
