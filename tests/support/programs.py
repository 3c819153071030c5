"""Studies in processes of their own, as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(*arguments: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Start ``python -m`` with `arguments` in `folder`; what it prints, errors included, is its `stdout`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*arguments: str, folder: Path, **variables: str) -> str:
    """Run ``python -m`` with `arguments` in `folder` to its end, which must be a good one; return what it prints."""
    process = start(*arguments, folder=folder, **variables)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output
