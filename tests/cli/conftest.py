"""A study that the command line has made, as a user makes the first one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from hpsearch.cli import main
from tests.support.command_line import Told


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study file puts its folder on the search path, where processes of later tests would look for packages."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the current one."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder, symlinks=True)
    for command in folder.glob("runs/*/command.json"):  # as if it had been made here
        command.write_text(command.read_text().replace(str(made), str(folder)))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str]) -> Told:
    """Runs a command: its exit code, and what it printed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(arguments))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run
