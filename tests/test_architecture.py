"""The layout is the architecture: imports go down only, and files are read in one sitting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_imports_go_down_only() -> None:
    pytest.importorskip("importlinter")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", ["utils", "helpers", "manager", "engine", "misc"])
def test_no_room_has_a_name_that_says_nothing(name: str) -> None:
    assert list((ROOT / "hpsearch").rglob(f"{name}.py")) == []


def test_no_folder_is_named_like_an_engine() -> None:
    assert [path for path in (ROOT / "hpsearch").rglob("*") if path.is_dir() and path.name in ("optuna", "ray")] == []
