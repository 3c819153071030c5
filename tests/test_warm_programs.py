"""A program that the tests begin warm behaves as one that ``python`` starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.programs import surroundings

pytestmark = pytest.mark.process

NAMES = "import sys; print(sys.argv, sys.path[0], __name__, sorted(globals()))"
PROGRAMS = {
    "names": ["-c", NAMES, "a", "b"],
    "path": ["-c", "import os, sys; print(os.getcwd(), sys.path, os.environ['PYTHONPATH'])"],
    "module": ["-m", "one", "a"],
    "package": ["-m", "many", "a"],
    "file": ["one.py", "a"],
    "no module": ["-m", "none"],
    "stdin": ["-c", "import sys; print(repr(sys.stdin.read()))"],
    "exit code": ["-c", "import sys; sys.exit(3)"],
    "exit with a message": ["-c", "import sys; sys.exit('no')"],
    "error": ["-c", "import atexit; atexit.register(print, 'bye'); 1 / 0"],
    "interrupt": ["-c", "raise KeyboardInterrupt"],
    "killed": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
    "threads": [
        "-c",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('end'))).start()",
    ],
    "handlers": ["-c", "import signal; print([signal.getsignal(each) for each in (2, 13, 15, 17)])"],
    "descriptors": ["-c", "import os; print(sorted(each for each in os.listdir('/proc/self/fd') if int(each) < 3))"],
    "own class": [
        "-c",
        "import pickle\nclass Own: pass\nprint(type(pickle.loads(pickle.dumps(Own()))), Own.__module__)",
    ],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_warm_program_prints_and_ends_as_a_fresh_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "one.py").write_text(NAMES)
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "__init__.py").touch()
    (tmp_path / "many" / "__main__.py").write_text(NAMES)
    command, environment = PROGRAMS[name], surroundings()
    fresh = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    began = warm.run(*command, folder=tmp_path, environment=environment)
    assert (began.returncode, began.stdout) == (fresh.returncode, fresh.stdout)
    assert began.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]
    launched = subprocess.run(
        [warm.programs_folder() / "python", *command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (launched.returncode, launched.stdout) == (fresh.returncode, fresh.stdout)


def test_a_signal_arrives_and_an_abandoned_program_dies_with_what_it_has_started(tmp_path: Path) -> None:
    code = "import subprocess, time\nprint(subprocess.Popen(['sleep', '1000']).pid, flush=True)\ntime.sleep(1000)"
    with warm.start("-c", code, folder=tmp_path) as interrupted:
        assert interrupted.stdout is not None
        interrupted.stdout.readline()
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.wait(60) == -signal.SIGINT
        interrupted.kill_group()
    with warm.start("-c", code, folder=tmp_path) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
    assert program.returncode == -signal.SIGKILL
    assert not Path(f"/proc/{child}/exe").exists()


def test_a_program_that_does_not_end_in_time_is_killed_and_shows_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired) as late:
        warm.run("-c", "import time; print('begun', flush=True); time.sleep(1000)", folder=tmp_path, timeout=0.5)
    assert late.value.output == "begun\n"
