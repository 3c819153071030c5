"""Parameters that are searched without effect, as a training argument of all trials overrides them."""

from __future__ import annotations

from collections.abc import Collection

_EPOCHS, _STEPS = "num_train_epochs", "max_steps"


def without_effect(searched: Collection[str], max_steps: int) -> list[str]:
    """Return the names of parameters that change no trial.

    Args:
        searched: the names of the parameters.
        max_steps: the training argument; above 0, it ends each training run.

    >>> without_effect(["learning_rate", "num_train_epochs"], 20), without_effect(["num_train_epochs"], -1)
    (['num_train_epochs'], [])
    >>> without_effect(["max_steps", "num_train_epochs"], 20)
    []
    """
    return [_EPOCHS] if max_steps > 0 and _EPOCHS in searched and _STEPS not in searched else []


def notices_without_effect(searched: Collection[str], max_steps: int) -> list[str]:
    """Return a notice for each parameter that is searched without effect; see `without_effect`.

    >>> notices_without_effect(["num_train_epochs"], 20)
    ['num_train_epochs has no effect, as max_steps=20 ends each training run: leave out one of the two']
    """
    return [
        f"{name} has no effect, as {_STEPS}={max_steps} ends each training run: leave out one of the two"
        for name in without_effect(searched, max_steps)
    ]
