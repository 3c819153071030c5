"""When a search ends early, as nothing better is to be expected: by Optuna's terminators, or at rungs by our own rule.

Optuna's terminators look at trials with a result. With rungs these are few: most trials wait, or are pruned. There
`terminator=True` looks at what trials were worth at any rung, and at what the model of their curves expects.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.terminator import BaseTerminator

from ...errors import StudyError

# The search ends after so many trials that were better than all before them at no rung; or after half of them, if the
# expected improvement is below a hundredth of what is usual between trials (a standard deviation of their ranks).
STAGNATION, _STAGNATION_IF_LITTLE, _LITTLE = 30, 15, 0.01


def as_terminator(terminator: Any) -> BaseTerminator | None:
    """Return a terminator of Optuna as it is; for True, one that waits for 30 results in a row without a better one.

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
            "This terminator compares with the errors of a cross-validation, which a search does not make; give it "
            "another error_evaluator, such as optuna.terminator.StaticErrorEvaluator(0.0), or pass terminator=True."
        )
    return terminator


def is_stagnant(since_improvement: int, expected: Callable[[], float | None]) -> bool:
    """Tell whether a search with rungs ends, with `terminator=True`.

    Args:
        since_improvement: how many trials were better than all before them at no rung, since the last one that was.
        expected: returns the largest improvement that the model expects, None without a model; called if it matters.

    >>> is_stagnant(30, lambda: 0.5), is_stagnant(29, lambda: 0.5), is_stagnant(15, lambda: 0.001)
    (True, False, True)
    """
    if since_improvement < _STAGNATION_IF_LITTLE:
        return False
    if since_improvement >= STAGNATION:
        return True
    most = expected()
    return most is not None and most < _LITTLE
