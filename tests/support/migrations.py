"""Optuna's migrations of its tables, read once."""

from __future__ import annotations

from typing import Any


def read_once() -> None:
    """Let this process read Optuna's migrations once instead of for every SQLite file: that takes half a second."""
    from optuna.storages._rdb.storage import _VersionManager  # not before it is used: `tests/conftest.py` says why

    read, known = _VersionManager._create_alembic_script, []

    def script(manager: _VersionManager) -> Any:
        if not known:
            known.append(read(manager))
        return known[0]

    _VersionManager._create_alembic_script = script  # type: ignore[method-assign]
