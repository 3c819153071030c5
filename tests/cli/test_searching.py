"""A study is run, gone on with and replayed from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cli.conftest import TRIALS, Told


def states(study: Path) -> list[str]:
    return [json.loads(path.read_text())["state"] for path in study.glob("*/trial.json")]


def test_the_same_command_again_has_nothing_to_do(here: Path, told: Told) -> None:
    code, out, _ = told("run", "first/study.py", "-n", str(TRIALS), "--set", "num_train_epochs=4")
    assert code == 0
    assert "nothing to run" in out
    assert len(states(here / "runs/spirals")) == TRIALS


def test_resume_goes_on_from_anywhere_with_the_options_of_the_run(
    here: Path, told: Told, tmp_path: Path, monkeypatch: object
) -> None:
    os.chdir(tmp_path)  # the fixture puts it back
    code, out, _ = told("resume", str(here / "runs/spirals"), "-n", str(TRIALS + 3))
    assert code == 0
    assert f"goes on after {TRIALS} of {TRIALS + 3} trials" in out
    records = [json.loads(path.read_text()) for path in (here / "runs/spirals").glob("*/trial.json")]
    assert len(records) == TRIALS + 3
    assert max(each["epochs"] for each in records) == 4.0  # of --set, not the nine of the file


def test_options_of_a_run_change_the_plan(here: Path, told: Told) -> None:
    options = ["-n", "2", "--study-name", "other", "--output", "elsewhere", "--storage", "journal", "--time", "1h"]
    code, _, _ = told("run", "first/study.py", *options, "--set", "num_train_epochs=1", "--set", "optim=sgd")
    assert code == 0
    study = json.loads((here / "elsewhere/other/study.json").read_text())
    assert (here / "elsewhere/other/study.log").is_file()
    assert study["n_trials"] == 2
    [session] = study["sessions"]
    assert session["arguments"]["num_train_epochs"] == 1
    assert session["arguments"]["optim"] == "sgd"


def test_a_study_file_that_no_worker_could_import_runs_in_workers(here: Path, told: Told) -> None:
    code, _, err = told("run", "first/study.py", "-n", "4", "-j", "2", "--study-name", "workers")
    assert code == 0, err
    assert len(states(here / "runs/workers")) == 4
    assert "failed" not in states(here / "runs/workers")


def test_replay_makes_the_same_reports_and_says_when_it_does_not(here: Path, told: Told) -> None:
    code, out, err = told("replay", "0", "runs/spirals")
    assert code == 0, err
    assert "made the same" in out
    file = here / "first/study.py"
    file.write_text(file.read_text().replace("make_data(1000, seed=0)", "make_data(1000, seed=5)"))
    code, out, _ = told("replay", "0", "runs/spirals")
    assert code == 1
    assert "is another one now" in out


def test_ctrl_c_exits_with_130_and_the_same_command_goes_on(here: Path) -> None:
    command = [sys.executable, "-m", "hpsearch", "run", "first/study.py", "-n", "400", "--study-name", "long"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    until = time.monotonic() + 120
    while len(states_so_far(here)) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    begun = len(states_so_far(here))
    assert 3 <= begun < 400
    again = subprocess.run([*command[:-4], "-n", str(begun + 1), *command[-2:]], env=environment, capture_output=True)
    assert again.returncode == 0, again.stderr.decode()
    assert len(states_so_far(here)) >= begun


def states_so_far(here: Path) -> list[Path]:
    return list((here / "runs/long").glob("run-*/trial.json"))
