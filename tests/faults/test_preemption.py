"""Ctrl-C, SIGTERM and SIGUSR1 in every way of running: the step is finished, a checkpoint written, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpsearch import BestRun, SearchInterrupted, TrialRecord, open_study
from hpsearch.system import interruption
from hpsearch.system.files import read_json
from tests.support.launch import begin
from tests.support.programs import start
from tests.support.signalled_search import SLOW_STEP, STEPS, TakesItsTime, search

pytestmark = pytest.mark.timeout(600)
SECONDS = 240.0
Comparable = list[Any]


def comparable(best: BestRun) -> Comparable:
    return [
        (each.number, each.state, each.params, [(report.step, report.values) for report in each.reports], each.values)
        for each in best.run_summary.records
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Comparable]:
    """What a search finds that nobody disturbs: of our trainer, or of transformers' own."""
    found: dict[str, Comparable] = {}

    def of(how: str) -> Comparable:
        kind = "brought" if how.startswith("brought") else "inline"
        if kind not in found:
            found[kind] = comparable(search(tmp_path_factory.mktemp(kind), kind))
        return found[kind]

    return of


def records(folder: Path) -> list[TrialRecord]:
    return open_study(folder / "study").records


def assert_interrupted(folder: Path, trials: Sequence[int], name: str) -> None:
    """Check that these trials are interrupted, each with a checkpoint at the step that it has left at."""
    for each in trials:
        run = folder / "study" / f"run-{each}"
        told = read_json(run / "trial.json")
        assert isinstance(told, dict)
        by = "the user" if name == "SIGINT" else name
        assert (told["state"], told["reason"]) == ("interrupted", f"interrupted by {by}")
        steps = sorted(int(path.name.rpartition("-")[2]) for path in run.glob("checkpoint-*"))
        assert steps, list(run.iterdir())
        assert SLOW_STEP <= steps[-1] < STEPS
    assert all(each.number in trials or each.state.value == "complete" for each in records(folder))


def wait_until_slow(folder: Path, count: int, program: Any) -> None:
    until = time.monotonic() + SECONDS
    while len(list(folder.glob("slow-*"))) < count:
        assert program.poll() is None, program.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def everyone(pid: int) -> list[int]:
    """Return a process and all that it has started, and they."""
    return [pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))]


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        pytest.param("inline", signal.SIGINT, 130, id="inline-Ctrl-C"),
        pytest.param("workers", signal.SIGINT, 130, id="workers-Ctrl-C"),
        pytest.param("inline", signal.SIGTERM, 143, id="inline-SIGTERM"),
        pytest.param("inline", signal.SIGUSR1, 138, id="inline-SIGUSR1"),
        pytest.param("workers", signal.SIGTERM, 143, id="workers-SIGTERM"),
        pytest.param("brought_workers", signal.SIGUSR1, 138, id="brought_workers-SIGUSR1"),
    ],
)
def test_a_program_whose_processes_all_get_the_signal_exits_with_its_code_and_the_same_call_continues(
    tmp_path: Path, undisturbed: Callable[[str], Comparable], how: str, number: signal.Signals, code: int
) -> None:
    trials = [1] if how == "inline" else [0, 1]
    command = ("tests.support.signalled_search", str(tmp_path), how)
    with start(*command, ",".join(map(str, trials)), folder=tmp_path) as program:
        wait_until_slow(tmp_path, len(trials), program)
        for each in everyone(program.pid):  # as Slurm does
            with contextlib.suppress(ProcessLookupError):  # one that lives for a moment only
                os.kill(each, number)
        output, _ = program.communicate()
    assert program.returncode == code, output
    assert "Traceback" not in output
    assert f"interrupted{'' if number == signal.SIGINT else f' by {number.name}'} after" in output
    assert f"To continue: python -m {command[0]} {command[1]} {how}" in output
    assert_interrupted(tmp_path, trials, number.name)
    assert comparable(search(tmp_path, how.removesuffix("workers").rstrip("_") or "inline")) == undisturbed(how)


def hang(search: int) -> None:
    os.kill(search, signal.SIGTERM)
    signal.pause()


@pytest.mark.process
def test_a_worker_that_does_not_finish_its_step_is_left_before_the_system_kills_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "_SECONDS_AFTER_SIGTERM", 1.0)
    with pytest.raises(SearchInterrupted, match="by SIGTERM after 0 of 3 trials"):
        search(tmp_path, "workers", TakesItsTime(tmp_path, [0, 1], partial(hang, os.getpid())))
    left = [each for each in records(tmp_path) if not list((tmp_path / "study" / each.name).glob("checkpoint-*"))]
    assert [each.reason for each in left] == ["interrupted by SIGTERM"]
    assert all(each.state.value == "interrupted" for each in records(tmp_path))


@pytest.mark.ray
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=["Ctrl-C", "SIGTERM", "SIGUSR1"]
)
def test_the_workers_of_ray_write_checkpoints_when_the_search_gets_a_signal(
    tmp_path: Path, undisturbed: Callable[[str], Comparable], number: signal.Signals, ray_instance: None
) -> None:
    before = signal.getsignal(number)
    callback = TakesItsTime(tmp_path, [0, 1], partial(os.kill, os.getpid(), number))
    with pytest.raises(SearchInterrupted, match=r"interrupted .*after 0 of 3 trials") as caught:
        search(tmp_path, "ray", callback)
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is before
    assert_interrupted(tmp_path, [0, 1], number.name)
    assert comparable(search(tmp_path, "inline")) == undisturbed("inline")


@pytest.mark.ray
def test_a_program_that_starts_ray_exits_with_the_code(tmp_path: Path) -> None:
    with start("tests.support.signalled_search", str(tmp_path), "ray", "0,1", folder=tmp_path) as program:
        wait_until_slow(tmp_path, 2, program)
        program.send_signal(signal.SIGTERM)
        output, _ = program.communicate()
    assert program.returncode == 143, output
    assert "Traceback" not in output
    assert_interrupted(tmp_path, [0, 1], "SIGTERM")


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("number", "receivers"),
    [
        pytest.param(signal.SIGTERM, ["agent"], id="agent-SIGTERM"),
        pytest.param(signal.SIGUSR1, ["rank 1"], id="rank 1-SIGUSR1"),
        pytest.param(signal.SIGINT, ["agent"], id="agent-Ctrl-C"),
        pytest.param(signal.SIGINT, ["rank 1", "rank 0", "agent"], id="terminal-Ctrl-C"),
    ],
)
def test_all_ranks_leave_at_the_same_step(
    tmp_path: Path, undisturbed: Callable[[str], Comparable], number: signal.Signals, receivers: Sequence[str]
) -> None:
    module = "tests.support.signalled_search"
    with begin("torchrun", module, [str(tmp_path), "inline", "1"]) as program:
        wait_until_slow(tmp_path, 2, program)
        processes = {"agent": program.pid, **{f"rank {each}": rank(program.pid, each) for each in (0, 1)}}
        for each in receivers:
            os.kill(processes[each], number)
        output, _ = program.communicate()
    assert "DistNetworkError" not in output
    by = "" if number == signal.SIGINT else f" by {number.name}"
    assert f"interrupted{by} after 1 of 3 trials" in output
    assert_interrupted(tmp_path, [1], number.name)
    with begin("torchrun", module, [str(tmp_path), "inline"]) as program:
        output, _ = program.communicate()
    assert program.returncode == 0, output
    ended, expected = records(tmp_path), undisturbed("inline")
    assert [(each.number, each.state, each.params) for each in ended] == [each[:3] for each in expected]
    for each, other in zip(ended, expected, strict=True):
        assert [report.step for report in each.reports] == [step for step, _ in other[3]]
        assert [report.value for report in each.reports] == pytest.approx([value for _, (value,) in other[3]], rel=1e-4)


def rank(agent: int, number: int) -> int:
    """Return the process of a rank."""
    for each in psutil.Process(agent).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that lives for a moment only
            if each.environ().get("RANK") == str(number):
                return each.pid
    raise AssertionError(number)
