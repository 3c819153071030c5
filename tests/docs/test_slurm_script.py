"""The job script of docs/resume.md passes the signal on, and puts the job back into the queue."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.run_page import blocks

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parents[2] / "docs" / "resume.md"
# In place of a search: ends by a signal as a search does, or else with the code in a file.
PYTHON = """#!/bin/bash
trap 'echo USR1 > {folder}/got; exit 138' USR1
trap 'echo TERM > {folder}/got; exit 143' TERM
touch {folder}/begun
until [ -e {folder}/code ]; do sleep 0.05; done
exit "$(cat {folder}/code)"
"""
SCONTROL = """#!/bin/bash
echo "$@" > {folder}/queued
"""


@pytest.mark.parametrize(
    ("number", "code", "got", "queued"),
    [
        (signal.SIGUSR1, 138, "USR1", "requeue 77"),
        (signal.SIGTERM, 143, "TERM", None),
        (None, 0, None, None),
        (None, 1, None, None),
    ],
)
def test_the_job_script_passes_the_signal_on_and_queues_the_job_again(
    tmp_path: Path, number: signal.Signals | None, code: int, got: str | None, queued: str | None
) -> None:
    [script] = [each.code for each in blocks(PAGE) if each.title == "job.sh"]
    for name, text in (("python", PYTHON), ("scontrol", SCONTROL), ("job.sh", script)):
        (tmp_path / name).write_text(text.replace("{folder}", str(tmp_path)))
        (tmp_path / name).chmod(0o700)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    with subprocess.Popen([tmp_path / "job.sh"], cwd=tmp_path, env=environment) as job:
        until = time.monotonic() + 60
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        if number is None:
            (tmp_path / "code.part").write_text(str(code))
            (tmp_path / "code.part").rename(tmp_path / "code")
        else:
            job.send_signal(number)  # to the script alone
        assert job.wait(60) == code
    assert read(tmp_path / "got") == got
    assert read(tmp_path / "queued") == queued


def read(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None
