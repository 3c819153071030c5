"""Studies and other programs in processes of their own, as a user runs them."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support import warm

ROOT = warm.ROOT


def start(*arguments: str, folder: Path, **variables: str) -> warm.Program:
    """Start ``python -m`` with `arguments` in `folder`; what it prints, errors included, is its `stdout`."""
    return warm.start("-m", *arguments, folder=folder, environment=surroundings(**variables))


def finish(*arguments: str, folder: Path, **variables: str) -> str:
    """Run ``python -m`` with `arguments` in `folder` to its end, which must be a good one; return what it prints."""
    with start(*arguments, folder=folder, **variables) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def surroundings(**variables: str) -> dict[str, str]:
    """Return the environment of a program that finds this repository and uses one core."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **variables}
