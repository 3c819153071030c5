"""The first worker is forked from the program where that is safe, and is a worker like any other."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tqdm import tqdm
from transformers import TrainerCallback

from hpsearch.executors.processes import forked_here, worker_process
from hpsearch.executors.processes.forked_here import CannotFork, ForkConditions, changed_settings, fork_here
from hpsearch.executors.processes.worker_process import WorkerProcess
from tests.support import warm
from tests.support.in_workers import search
from tests.support.searching import Diary, HearsNotices, states

SAFE = ForkConditions(platform="linux", has_accelerator=False, threads=1, changed=(), memory=10**9)


def test_a_worker_is_forked_where_nothing_is_known_against_it() -> None:
    assert SAFE.reason_against() is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"platform": "darwin"}, "fork is not safe on darwin"),
        ({"platform": "win32"}, "fork is not safe on win32"),
        ({"has_accelerator": True}, "torch can use an accelerator"),
        ({"threads": 2}, "the program runs 2 threads"),
        ({"changed": ("the default dtype",)}, "the program has set the default dtype in torch"),
    ],
)
def test_no_worker_is_forked_where_it_might_hang_or_compute_other_numbers(change: dict[str, Any], reason: str) -> None:
    assert replace(SAFE, **change).reason_against() == reason


@pytest.mark.parametrize(
    ("most", "reason"),
    [(3e9, None), (1.9e9, "the program has 1000 MB of memory, and a worker may have 1900 MB")],
)
def test_no_worker_is_forked_from_a_program_whose_memory_would_leave_it_too_little(most: float, reason: Any) -> None:
    assert SAFE.reason_against(most) == reason


@contextlib.contextmanager
def without_flash() -> Iterator[None]:
    torch.backends.cuda.enable_flash_sdp(False)
    yield
    torch.backends.cuda.enable_flash_sdp(True)


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@contextlib.contextmanager
def without_denormal_numbers() -> Iterator[None]:
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def with_hook() -> Iterator[None]:
    with torch.nn.modules.module.register_module_forward_hook(lambda *_: None):
        yield


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (in_float64, "the default dtype"),
        (deterministic, "deterministic algorithms"),
        (torch.no_grad, "no gradients"),
        (without_denormal_numbers, "denormal numbers to zero"),
        (without_flash, "the kernels of attention"),
        (without_fast_path, "no fast path of attention"),
        (with_hook, "hooks of all modules"),
    ],
)
def test_settings_of_torch_that_a_new_process_does_not_have_are_noticed(changed: Any, name: str) -> None:
    assert changed_settings() == ()
    with changed():
        assert changed_settings() == (name,)
    assert changed_settings() == ()


def test_a_running_thread_of_the_program_is_noticed() -> None:
    before, end = ForkConditions.here().threads, threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert ForkConditions.here().threads == before + 1
    end.set()
    thread.join()


class WritesParents(TrainerCallback):
    """Writes down the parent of the process that trains a run; kills the process in the run `dies`."""

    def __init__(self, diary: Diary, dies: str) -> None:
        self.diary, self.dies = diary, dies

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        name = Path(args.output_dir).name
        self.diary.write((name, os.getppid()))
        logging.getLogger("program").warning("training %s", name)
        if name == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)


def run_search(folder: Path, has_thread: bool, dies: str) -> None:
    """Search with two workers; print the states, the values, and the runs that children of this process trained."""
    end = threading.Event()
    if has_thread:
        threading.Thread(target=end.wait).start()
    logging.getLogger("program").addHandler(logging.FileHandler(folder / "program.log"))
    atexit.register(print, "at exit")
    signal.signal(signal.SIGALRM, lambda *_: None)
    diary = Diary(folder / "diary")
    print("buffered", end=" ")
    told = HearsNotices()
    best = search(folder / "out", 3, WritesParents(diary, dies), sampler="random", trial_retries=0, progress=told)
    end.set()
    records = best.run_summary.records
    own = sorted(name for name, parent in diary.read() if parent == os.getpid())
    reasons = [each.reason for each in records]
    print(json.dumps([states(best), [list(each.values) for each in records], own, reasons, told.notices]))


def searched(folder: Path, has_thread: bool = False, dies: str = "") -> tuple[list[Any], str]:
    """Run the search in a program; return what it has printed, as values, and the log of its own logger."""
    folder.mkdir()
    output, _ = warm.call(run_search, folder, has_thread, dies).communicate()
    first, *rest = output.splitlines()
    assert first.startswith("buffered ["), output
    assert rest == ["at exit"], "the program's handlers run once, in the program"
    return json.loads(first.removeprefix("buffered ")), (folder / "program.log").read_text()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="fork is not safe")
def test_a_trial_in_the_forked_worker_gives_the_numbers_of_one_from_the_server(tmp_path: Path) -> None:
    forked, log = searched(tmp_path / "forked")
    served, log_of_served = searched(tmp_path / "served", has_thread=True)
    assert "run-0" in forked[2]
    assert served[2] == [], "a program with another thread is not forked"
    assert forked[:2] == served[:2]
    assert any(re.fullmatch(r"First worker ready after \d+\.\d s", each) for each in served[4])
    assert log == log_of_served == "", "handlers of the program's loggers are not the worker's"
    outputs = [Path(tmp_path, each, "out/study/run-0/output.log").read_text() for each in ("forked", "served")]
    assert outputs[0] == outputs[1]


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="fork is not safe")
def test_a_crash_of_the_forked_worker_is_a_failed_trial(tmp_path: Path) -> None:
    found, _ = searched(tmp_path / "crash", dies="run-0")
    assert "run-0" in found[2]
    assert found[0] == ["failed", "complete", "complete"]
    assert "SIGKILL" in found[3][0]


def fork_beside_a_pool() -> None:
    """Print whether a worker is forked after torch has computed with two threads."""
    torch.set_num_threads(2)
    numbers = torch.ones(1000, 1000)
    print((numbers * numbers).sum().item())
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        WorkerProcess(is_forked_here=True).close()
    except CannotFork as error:
        print(error, repr(children.read_text()))


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="fork is not safe")
def test_no_worker_is_forked_from_a_process_with_a_pool_of_threads_which_it_would_wait_for(tmp_path: Path) -> None:
    output, _ = warm.call(fork_beside_a_pool).communicate()
    assert output == "1000000.0\nlibraries of the program run 1 thread ''\n"


def test_a_fork_that_the_system_refuses_leaves_the_first_worker_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(worker_process, "_server", None)
    monkeypatch.setattr(forked_here.ForkConditions, "here", classmethod(lambda _: SAFE))
    assert worker_process.fork_first_worker() is None


def test_without_a_view_of_the_threads_no_worker_is_forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    monkeypatch.setattr(forked_here, "_TASKS", tmp_path / "missing")
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, pytest.raises(CannotFork, match="the threads of the program cannot be counted"):
        fork_here(theirs, theirs)


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def fork_with_a_signal(where: str) -> None:
    """Send Ctrl-C at the moment of the fork, as to the program or as to its child; print what becomes of both."""
    program, fork = os.getpid(), os.fork

    def forks() -> int:
        pid = fork()
        if (pid == 0) == (where == "child"):
            os.kill(os.getpid(), signal.SIGINT)
        return pid

    os.fork = forks
    try:
        process = worker_process.fork_first_worker()
        print("a worker" if process is not None and process.exitcode is None else "no worker")
        if process is not None:
            process.close()
    except KeyboardInterrupt:
        print("Ctrl-C")
    finally:
        print("in the program" if os.getpid() == program else "in the child", flush=True)
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(60)
    print(repr(children()), signal.pthread_sigmask(signal.SIG_BLOCK, ()))


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="fork is not safe")
@pytest.mark.parametrize(("where", "outcome"), [("child", "a worker"), ("program", "Ctrl-C")])
def test_ctrl_c_at_the_moment_of_the_fork_leaves_one_program_and_no_child(where: str, outcome: str) -> None:
    output, _ = warm.call(fork_with_a_signal, where).communicate()
    assert output == f"{outcome}\nin the program\n'' set()\n"


def fork_without_a_reader() -> None:
    """Print whether a child is left where the pid cannot be reported."""
    ours, theirs = multiprocessing.Pipe()
    status, reports = multiprocessing.Pipe(duplex=False)
    status.close()
    with ours, theirs, reports:
        try:
            fork_here(theirs, reports)
        except OSError as error:
            print(type(error).__name__, repr(children()))


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="fork is not safe")
def test_an_error_after_the_fork_leaves_no_child() -> None:
    output, _ = warm.call(fork_without_a_reader).communicate()
    assert output == "BrokenPipeError ''\n"


def fork_after_a_bar() -> None:
    """Print whether a worker is forked beside an open bar and after it, and whether the next bar is watched."""
    found = []
    with tqdm(range(1)) as bar:
        found += [worker_process.fork_first_worker() is not None for _ in bar]
    process = worker_process.fork_first_worker()
    found.append(process is not None)
    with tqdm(range(1)):
        found.append(tqdm.monitor.report())
    if process is not None:
        process.close()
    print("found", found)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="fork is not safe")
def test_the_monitor_of_tqdm_keeps_no_worker_from_being_forked_once_no_bar_is_open() -> None:
    output, _ = warm.call(fork_after_a_bar).communicate()
    assert output.endswith("found [False, True, True]\n"), output


ONCE = """
import builtins
from transformers import TrainerCallback
if hasattr(builtins, "imported_once"):
    raise ValueError("registered already")
builtins.imported_once = True
class Once(TrainerCallback):
    pass
"""


def search_with_a_module_that_registers(folder: Path) -> None:
    """Search with a module that cannot be imported twice in a process; print the states, and the children's runs."""
    folder.joinpath("once.py").write_text(ONCE)
    sys.path.insert(0, str(folder))
    once = importlib.import_module("once")
    diary = Diary(folder / "diary")
    best = search(folder / "out", 1, once.Once(), WritesParents(diary, ""), sampler="random")
    print(states(best), [name for name, parent in diary.read() if parent == os.getpid()])


@pytest.mark.process
def test_where_the_forked_worker_cannot_load_the_trainer_one_from_the_server_does(tmp_path: Path) -> None:
    output, _ = warm.call(search_with_a_module_that_registers, tmp_path).communicate()
    assert output.endswith("['complete'] []\n"), output


def test_the_log_says_why_no_worker_is_forked(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    monkeypatch.setattr(worker_process, "_server", None)
    monkeypatch.setattr(forked_here.ForkConditions, "here", classmethod(lambda _: SAFE))
    with caplog.at_level(logging.INFO, "hpsearch.executors.processes"):
        assert worker_process.fork_first_worker(most_memory=1e9) is None
    assert "the program has 1000 MB of memory" in caplog.text
