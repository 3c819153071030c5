"""The directions of objectives as Optuna names them."""

from __future__ import annotations

from collections.abc import Iterable

from optuna.study import StudyDirection

__all__ = ["StudyDirection", "optuna_directions"]


def optuna_directions(directions: Iterable[str]) -> list[StudyDirection]:
    """Return directions, ``minimize`` or ``maximize``, as Optuna's.

    >>> optuna_directions(["minimize"])
    [<StudyDirection.MINIMIZE: 1>]
    """
    return [StudyDirection[each.upper()] for each in directions]
