"""A trial in the worker that was forked from the program finds what one from the fork server finds.

One script, without a guard, changes all that it can, then searches; the trial writes down what it finds.
"""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import TrainerCallback

from tests.support import warm
from tests.support.in_workers import search
from tests.support.programs import surroundings
from tests.support.searching import Diary

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="fork is not safe")]

SCRIPT = """
with open("runs", "a") as stream:
    stream.write("run\\n")
import sys
from tests.workers.test_leaving_the_program import change_and_search
change_and_search(sys.argv[1] == "served")
"""


def exit_code(method: str) -> int | None:
    process = multiprocessing.get_context(method).Process(target=os.getpid)
    process.start()
    process.join()
    return process.exitcode


def opened() -> list[str]:
    """Return which pipes and sockets this process has open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except OSError:  # it was that of the listing
            continue
    return found


class WritesFindings(TrainerCallback):
    """Writes down the parent of the process, and what there is of the program's changes."""

    def __init__(self, diary: Diary, pipe: str) -> None:
        self.diary, self.pipe = diary, pipe

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logger = logging.getLogger("program")
        with warnings.catch_warnings(record=True):
            try:
                warnings.warn("text and bytes", BytesWarning, stacklevel=1)
                raised = False
            except BytesWarning:
                raised = True
        found = {
            "a value in a module": importlib.import_module("mylib").SCALE,
            "a module made by hand": "made_by_hand" in sys.modules,
            "the file of __main__": str(getattr(sys.modules["__main__"], "__file__", None)),
            "a warning as an error": raised,
            "ignored warnings": ("ignore", None, RuntimeWarning, None, 0) in warnings.filters,
            "errors of numpy": np.geterr(),
            "tracing": [sys.gettrace() is None, threading.gettrace() is None],
            "garbage": gc.isenabled(),
            "a logger": [len(logger.handlers), len(logger.filters), logger.level, logger.propagate],
            "disabled logging": logging.root.manager.disable,
            "level of the root logger": logging.root.level,
            "a pipe": self.pipe in opened(),
            "a spawned process": exit_code("spawn"),
            "a process of multiprocessing's server": exit_code("forkserver"),
        }
        self.diary.write((os.getppid(), found))


FINDINGS = {
    "a value in a module": 1.0,
    "a module made by hand": False,
    "the file of __main__": "None",
    "a warning as an error": False,
    "ignored warnings": False,
    "errors of numpy": {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
    "tracing": [True, True],
    "garbage": True,
    "a logger": [0, 0, 0, True],
    "disabled logging": 0,
    "level of the root logger": 30,
    "a pipe": False,
    "a spawned process": 0,
    "a process of multiprocessing's server": 0,
}


def change_and_search(is_served: bool) -> None:
    """Change what a trial must not find, then search; with another thread the worker is served."""
    exit_code("forkserver")
    importlib.import_module("mylib").SCALE = 3.0
    sys.modules["made_by_hand"] = type(sys)("made_by_hand")
    warnings.simplefilter("error", BytesWarning)
    warnings.simplefilter("ignore", RuntimeWarning)
    np.seterr(all="raise")
    sys.settrace(lambda *_: None)
    threading.settrace(lambda *_: None)
    gc.disable()
    logger = logging.getLogger("program")
    logger.addHandler(logging.StreamHandler())
    logger.addFilter(lambda _: True)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logging.disable(logging.INFO)
    logging.root.setLevel(logging.DEBUG)
    reading, _ = os.pipe()
    pipe, end = os.readlink(f"/proc/self/fd/{reading}"), threading.Event()
    if is_served:
        threading.Thread(target=end.wait).start()
    diary = Diary(Path("diary").resolve())
    search(Path("out"), 1, WritesFindings(diary, pipe), sampler="random")
    end.set()
    ((parent, _),) = diary.read()
    print("forked" if parent == os.getpid() else "served")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the trial has found, by the way its worker was started."""
    findings = {}
    for way in ("forked", "served"):
        folder = tmp_path_factory.mktemp(way)
        folder.joinpath("mylib.py").write_text("SCALE = 1.0\n")
        folder.joinpath("script.py").write_text(SCRIPT)
        program = warm.run("script.py", way, folder=folder, environment=surroundings())
        assert program.stdout.endswith(f"{way}\n"), program.stdout + program.stderr
        ((_, findings[way]),) = Diary(folder / "diary").read()
        findings[way]["runs of the script"] = len(folder.joinpath("runs").read_text().split())
    return findings


@pytest.mark.parametrize("way", ["forked", "served"])
@pytest.mark.parametrize(("name", "expected"), [*FINDINGS.items(), ("runs of the script", 1)])
def test_a_trial_finds_nothing_that_the_program_has_changed(
    found: dict[str, dict[str, Any]], way: str, name: str, expected: Any
) -> None:
    assert found[way][name] == expected
