"""Less waiting for the disk: no test cuts the power, and the file of a new study is the same each time."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest


def wait_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let this process not wait until files are on the disk: most of what a small search waits for."""
    patch.setattr("os.fsync", lambda file: None)


def write_tables_once(patch: pytest.MonkeyPatch) -> None:
    """Let this process make Optuna's tables once and copy the file: to make them takes longer than to train a trial."""
    from hpsearch.ledger import storage  # not before it is used: `tests/conftest.py` says why

    write, known = storage._write_tables, list[bytes]()

    @functools.wraps(write)
    def copy(path: Path) -> None:
        if known:
            path.write_bytes(known[0])
        else:
            write(path)
            known.append(path.read_bytes())

    patch.setattr(storage, "_write_tables", copy)
