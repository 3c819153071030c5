"""A user's mistake gets one helpful line, a code that scripts can use, and no traceback."""

from __future__ import annotations

import re
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from hpsearch.cli.main import app
from tests.support.command_line import Told
from tests.support.programs import start

COMMANDS = [str(each.callback.__name__) for each in app.registered_commands if each.callback is not None]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example_that_begins_with_it(told: Told, command: str) -> None:
    code, out, _ = told(command, "--help")
    assert code == 0
    assert re.search(rf"^\W*hpsearch {command}\b", out, re.MULTILINE), out


MISTAKES: list[tuple[str, list[str], list[str]]] = [
    (
        "a misspelt argument",
        ["run", "first/study.py", "--set", "lerning_rate=1"],
        ["'lerning_rate'", "'learning_rate'"],
    ),
    ("a misspelt parameter", ["show", "runs/spirals", "--sort", "lerning_rate"], ["Did you mean 'learning_rate'?"]),
    ("a setting without a value", ["run", "first/study.py", "--set", "bf16"], ["name=value"]),
    ("no such file", ["run", "frist/study.py"], ["There is no file", "frist/study.py"]),
    ("a file of another kind", ["run", "runs/spirals/study.json"], ["not a study file"]),
    ("a file without a study", ["run", "empty.py"], ["defines no study", "SearchPlan"]),
    ("a file with an error", ["run", "broken.py"], ["ZeroDivisionError", "line 3"]),
    ("a file that is not Python", ["run", "syntax.py"], ["SyntaxError", "line 2"]),
    ("a trainer that is none", ["run", "none.py"], ["no hpsearch.Trainer"]),
    ("no such study", ["show", "runs/spirlas"], ["no study in 'runs/spirlas'", "runs/spirals"]),
    ("no such trial", ["best", "runs/spirals", "--trial", "99"], ["no trial 99"]),
    ("one trial to compare", ["compare", "1", "runs/spirals"], ["two trials", "two studies"]),
    ("no GPU", ["run", "first/study.py", "--devices", "0", "--study-name", "x"], ["GPU 0 does not exist", "n_jobs"]),
    ("devices that are none", ["run", "first/study.py", "--devices", "a"], ["numbers of GPUs"]),
    ("a time that is none", ["run", "first/study.py", "--time", "soon"], ["2h"]),
    ("a misspelt backend", ["run", "first/study.py", "--backend", "optnua"], ["'optuna'"]),
    ("a study of another program", ["resume", "byhand"], ["was not started by `hpsearch run`"]),
    ("a report that is a folder", ["report", "runs/spirals", "-o", "first"], ["is a folder"]),
    ("a folder that is a file", ["init", "broken.py"], ["is a file"]),
    ("a command that is damaged", ["resume", "damaged"], ["command.json' cannot be read"]),
    ("a file named like a package", ["run", "optuna.py"], ["the name of the package 'optuna'"]),
    ("a trainer that cannot be made", ["run", "unmade.py"], ["cannot create its trainer", "no such data", "line 3"]),
    ("a folder that has a study", ["init", "first"], ["already exists"]),
    ("an unknown command", ["shwo"], ["No such command 'shwo'. Did you mean 'show'?", "See hpsearch --help."]),
    ("an unknown option", ["show", "--limt", "3"], ["'--limt'. Did you mean '--limit'?", "See hpsearch show --help."]),
    ("a misspelt state", ["show", "--state", "prund"], ["--state 'prund' is not one of", "Did you mean 'pruned'?"]),
    ("a misspelt format", ["best", "--format", "jsn"], ["--format 'jsn' is not one of", "Did you mean 'json'?"]),
    ("a misspelt placement", ["run", "first/study.py", "--placement", "sprad"], ["Did you mean 'spread'?"]),
    ("a misspelt column", ["show", "runs/spirals", "--columns", "secnds"], ["Did you mean 'seconds'?"]),
    ("a number that is too small", ["show", "--limit", "0"], ["--limit is invalid", "greater than or equal to 1"]),
    ("no file", ["run"], ["Missing argument", "See hpsearch run --help."]),
    ("an argument too many", ["best", "a", "b"], ["unexpected extra argument"]),
    ("an option without a value", ["show", "--limit"], ["'--limit' requires an argument"]),
    ("columns of JSON", ["show", "--columns", "value", "--json"], ["--columns", "leave --json and --markdown out"]),
    ("two formats", ["best", "--json", "--format", "yaml"], ["--format", "--json"]),
]


@pytest.mark.parametrize(("arguments", "parts"), [each[1:] for each in MISTAKES], ids=[each[0] for each in MISTAKES])
def test_a_mistake_is_answered_with_what_to_do(here: Path, told: Told, arguments: list[str], parts: list[str]) -> None:
    (here / "empty.py").write_text("x = 1\n")
    (here / "broken.py").write_text("\n\nx = 1 / 0\n")
    (here / "syntax.py").write_text("\nx = = 1\n")
    (here / "none.py").write_text("from hpsearch import SearchPlan\nstudy = SearchPlan(dict)\n")
    (here / "optuna.py").write_text("x = 1\n")
    (here / "unmade.py").write_text(
        "from hpsearch import SearchPlan\ndef make():\n    open('no such data')\nstudy = SearchPlan(make)\n"
    )
    (here / "damaged").mkdir()
    (here / "damaged/study.json").write_text("{}")
    (here / "damaged/command.json").write_text("{")
    (here / "byhand").mkdir()
    (here / "byhand/study.json").write_text((here / "runs/spirals/study.json").read_text())
    code, _, err = told(*arguments)
    assert code == 2
    assert err.splitlines()[-1].startswith("Error: ")
    for part in parts:
        assert part in " ".join(err.split()), err
    assert "Traceback" not in err


def test_a_storage_that_cannot_be_reached_is_named_without_its_password(here: Path, told: Told) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        url = f"postgresql://someone:secret@127.0.0.1:{port}/studies"
        code, out, err = told("run", "first/study.py", "--storage", url, "--study-name", "far")
    assert code != 0
    assert f"127.0.0.1:{port}" in err
    assert "secret" not in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [("plotly", "report", "hpsearch[report]"), ("optuna_dashboard", "dashboard", "hpsearch[dashboard]")],
)
def test_a_missing_extra_is_named_with_what_installs_it(
    here: Path, told: Told, monkeypatch: pytest.MonkeyPatch, package: str, command: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    code, _, err = told(command)
    assert code == 2
    assert f"pip install '{extra}'" in err


@pytest.mark.process
def test_the_dashboard_serves_the_study_on_this_machine_only_and_says_where(here: Path, told: Told) -> None:
    pytest.importorskip("optuna_dashboard")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["dashboard", "runs/spirals", "--port", str(port)]
    process = start("hpsearch", *command, folder=here)
    try:
        assert process.stdout is not None
        address = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)))[0]
        assert address.startswith(f"http://127.0.0.1:{port}/")
        assert "Optuna Dashboard" in page_at(address)
        code, _, err = told(*command)
        assert code == 2
        assert f"Port {port} cannot be used" in err
        assert "--port" in err
    finally:
        process.kill()
        process.communicate()


def page_at(address: str) -> str:
    """Return a page as soon as it is served: the program prints its address first."""
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)
