"""What is installed from a wheel works without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
NOT_IN_A_CHECKOUT = shutil.ignore_patterns(".*", "build", "dist", "site", "*.egg-info", "__pycache__", "runs", "tests")
WHERE = (
    "import hpsearch, hpsearch.spaces.encoder as s, hpsearch.objectives as o; print(hpsearch.__file__, s.__file__, o)"
)
# Each line of the input is a command, after which a line of dashes is printed.
COMMANDS = """
import sys
from hpsearch.cli import main
for line in sys.stdin:
    assert main(line.split()) == 0, line
    print("-" * 9, flush=True)
"""


def run(*command: str, folder: Path, lines: str = "", **variables: str) -> str:
    """Run a program to its good end; return what it prints."""
    environment = {**{name: each for name, each in os.environ.items() if name != "PYTHONPATH"}, **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, input=lines, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a wheel, built from a copy of the sources, is installed in; what it needs is this process's."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "sources", ignore=NOT_IN_A_CHECKOUT)
    pip = (sys.executable, "-m", "pip", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", "./sources", folder=folder)
    [wheel] = (folder / "wheels").glob("hpsearch-*.whl")
    run(*pip, "install", "--no-deps", "--target", "site", str(wheel), folder=folder)
    return folder / "site"


def test_a_study_is_begun_searched_and_reported_from_a_wheel(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")

    surroundings: dict[str, Any] = {"folder": tmp_path, "PYTHONPATH": str(installed)}
    assert run(sys.executable, "-c", WHERE, **surroundings).count(str(installed)) == 3
    run(sys.executable, "-m", "hpsearch", "init", "first", **surroundings)
    commands = (
        "run first/study.py -n 3 -j 2 --set num_train_epochs=2",
        "best",
        "best --export model",
        "report",
        "spaces",
    )
    printed = run(sys.executable, "-c", COMMANDS, lines="\n".join(commands), **surroundings)
    _, best, _, _, spaces, _ = printed.split("-" * 9 + "\n")
    assert "weights:" in best
    assert (tmp_path / "model" / "model.safetensors").is_file()
    [report] = tmp_path.glob("runs/*/report.html")
    assert "What was found" in report.read_text()
    assert "hpsearch.spaces.encoder" in spaces


def test_a_type_checker_knows_what_the_public_names_take_and_return(installed: Path) -> None:
    assert (installed / "hpsearch" / "py.typed").is_file()
    program = shutil.copy(ROOT / "tests" / "support" / "typed_program.py", installed.parent)
    options = ("--strict", "--follow-imports=silent", "--ignore-missing-imports", "--no-site-packages")
    run(sys.executable, "-m", "mypy", *options, str(program), folder=installed.parent, MYPYPATH=str(installed))


def test_names_are_completed_in_a_shell(installed: Path, tmp_path: Path) -> None:
    [program] = (installed / "bin").glob("hpsearch")
    told = run(
        sys.executable,
        str(program),
        folder=tmp_path,
        PYTHONPATH=str(installed),
        _HPSEARCH_COMPLETE="complete_bash",
        COMP_WORDS="hpsearch re",
        COMP_CWORD="1",
    )
    assert told.split() == ["resume", "report", "requests", "retry", "replay"]
