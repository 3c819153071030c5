"""The page about the command line does what it says, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpsearch.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_commands_and_the_code_of_the_page_run_one_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = "set -e\n" + "\n".join(blocks("bash"))
    told = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert told.returncode == 0, told.stderr
    assert "made the same" in told.stdout
    assert (tmp_path / "runs/spirals/report.html").is_file()
    assert (tmp_path / "model/model.safetensors").is_file()
    of_python = subprocess.run(
        [sys.executable, "-c", blocks("python")[-1]], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert of_python.returncode == 0, of_python.stderr
    assert "| trial | eval_accuracy |" in of_python.stdout


def test_the_page_names_every_command() -> None:
    for each in app.registered_commands:
        assert each.callback is not None
        assert f"hpsearch {each.callback.__name__}" in PAGE
