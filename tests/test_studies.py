"""Every study runs, in its small form, as a user would run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from studies.command import until_interrupted
from tests.support.programs import ROOT, finish, start, surroundings
from tests.support.search_processes import wait_until

pytestmark = pytest.mark.docs

pytest.importorskip("sklearn")


@pytest.mark.smoke
def test_the_quickstart_finds_a_model_that_beats_the_default_arguments(tmp_path: Path) -> None:
    output = finish("studies.digits", "--trials", "4", "--epochs", "2", folder=tmp_path)
    accuracies = re.search(r"On the test set: accuracy (0\.\d+) of trial \d; accuracy (0\.\d+) of the defaults", output)
    assert accuracies is not None, output
    assert float(accuracies[1]) > float(accuracies[2])
    assert "importance of each parameter" in output
    assert "optuna-dashboard --host 127.0.0.1 sqlite:///quickstart/digits/study.db" in output
    checkpoint = re.search(r"weights in (\S+)", output)
    assert checkpoint is not None
    assert (tmp_path / checkpoint[1] / "model.safetensors").is_file()


def test_ctrl_c_ends_the_quickstart_cleanly_and_the_same_command_continues(tmp_path: Path) -> None:
    command = ("studies.digits", "--trials", "3", "--epochs", "1")
    with start(*command, folder=tmp_path) as process:
        read_to(process, "[1/3]")
        wait_until((tmp_path / "quickstart/digits/run-1/trial.json").exists)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "Run the same command again to continue" in output
    output = finish(*command, folder=tmp_path)
    assert "continues after 1 of 3 trials" in output
    assert "[3/3]" in output


@pytest.mark.parametrize("module", ["torch", "transformers.trainer"])
def test_ctrl_c_in_the_middle_of_an_import_ends_cleanly(tmp_path: Path, module: str) -> None:
    """A fresh interpreter, which says when it begins to import the module."""
    (tmp_path / "sitecustomize.py").write_text(
        dedent(f"""
        import sys

        class Tells:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    print("imports", flush=True)

        sys.meta_path.insert(0, Tells())
        """)
    )
    environment = surroundings(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    command = [sys.executable, "-m", "studies.digits", "--trials", "1", "--epochs", "1"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        read_to(process, "imports")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
    # CPython ends by the signal itself if the interrupt passed through an exec() on its way, as some imports do.
    assert process.returncode in (130, -signal.SIGINT), output
    assert "Traceback" not in output
    assert "Run the same command again to continue" in output


def read_to(process: Any, start: str) -> None:
    """Read what a program prints up to a line that starts so."""
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(start):
            return
    pytest.fail("".join(lines))


@pytest.mark.parametrize("error", [TypeError("expected a message argument"), KeyboardInterrupt()])
def test_a_study_that_ctrl_c_interrupts_in_the_middle_of_an_import_says_so(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_import() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None

    assert until_interrupted(interrupted_import) == 130
    assert "Run the same command again to continue" in capsys.readouterr().out


def test_a_study_that_fails_without_ctrl_c_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        until_interrupted(lambda: 1 // 0)


@pytest.mark.parametrize("name", ["step", "trial", "import_time", "parallel", "ray"])
def test_a_benchmark_runs_and_prints_its_figures(tmp_path: Path, name: str) -> None:
    small = {
        "step": ["--sizes", "h32x1"],
        "trial": ["--trials", "2"],
        "import_time": [],
        "parallel": ["--trials", "4", "--work", "tiny", "--sides", "ours"],
        "ray": ["--trials", "3", "--megabytes", "1", "--sides", "ours"],
    }[name]
    assert "target" in finish(f"studies.benchmarks.{name}", "--rounds", "1", *small, folder=tmp_path)
