"""Ctrl-C, SIGTERM and SIGUSR1 while a search runs: noticed, passed on, and undone afterwards."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import queue
import shlex
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpsearch import SearchInterrupted
from hpsearch.search.process_group import OneProcess
from hpsearch.system.ctrl_c import ctrl_c_as_interruption
from hpsearch.system.interruption import (
    Interruption,
    finishing_at_ctrl_c,
    noticing_signals,
    own_command,
    set_exit_code,
)
from hpsearch.trial.agreed_interruption import AgreedInterruption

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["SIGTERM", "SIGUSR1"])


class Clock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def called() -> Iterator[list[int]]:
    """The signals that handlers of the program have been called with."""
    found: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    for number in before:
        signal.signal(number, lambda each, frame: found.append(each))
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


@BOTH
def test_a_signal_is_noted_and_the_handlers_are_restored(number: int) -> None:
    interruption = Interruption()
    assert interruption.reason == "interrupted by the user"
    assert signal.getsignal(number) == signal.SIG_DFL
    with noticing_signals(interruption):
        signal.raise_signal(number)
    assert interruption.signal == number
    assert interruption.reason == f"interrupted by {signal.Signals(number).name}"
    assert signal.getsignal(number) == signal.SIG_DFL


@BOTH
def test_a_handler_of_the_program_is_called_each_time_and_alone_by_a_later_signal(
    number: int, called: list[int], clock: Clock
) -> None:
    interruption = Interruption(clock)
    with noticing_signals(interruption, clock):
        for moment in (100.0, 101.0, 106.0):  # the first two are one request: a launcher passes on what it received
            clock.now = moment
            signal.raise_signal(number)
    assert called == [number] * 3
    signal.raise_signal(number)
    assert called == [number] * 4


def test_the_first_of_two_signals_decides_the_exit_code(called: list[int]) -> None:
    interruption = Interruption()
    with noticing_signals(interruption):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
    assert interruption.signal == signal.SIGUSR1


def test_only_sigterm_announces_that_the_process_will_be_killed(clock: Clock) -> None:
    interruption = Interruption(clock)
    interruption.note(signal.SIGUSR1)
    clock.now += 1e6
    assert not interruption.is_overdue
    interruption.note(signal.SIGTERM)
    clock.now += 20
    interruption.note(signal.SIGTERM)
    assert not interruption.is_overdue
    clock.now += 5
    assert interruption.is_overdue


def test_a_signal_that_the_program_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        interruption = Interruption()
        with noticing_signals(interruption):
            signal.raise_signal(signal.SIGUSR1)
        assert interruption.signal == 0
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_the_program_sets_meanwhile_stays(called: list[int]) -> None:
    with noticing_signals(Interruption()):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says which signals are caught")
def test_a_handler_that_is_not_of_python_stays(tmp_path: Path) -> None:
    with (tmp_path / "traces").open("w") as traces:
        faulthandler.register(signal.SIGUSR1, traces)
        try:
            interruption = Interruption()
            with noticing_signals(interruption):
                signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert interruption.signal == 0
    assert "test_a_handler_that_is_not_of_python_stays" in (tmp_path / "traces").read_text()


def handler_of_ray(called: list[int]) -> Any:
    def handle(number: int, frame: Any) -> None:
        called.append(number)

    handle.__module__ = "ray._private.worker"
    return handle


def test_the_handler_of_ray_which_would_end_the_program_waits_for_a_second_signal(
    called: list[int], clock: Clock
) -> None:
    signal.signal(signal.SIGTERM, handler_of_ray(called))
    with noticing_signals(Interruption(clock), clock):
        signal.raise_signal(signal.SIGTERM)
        assert called == []
        clock.now += 6
        signal.raise_signal(signal.SIGTERM)
    assert called == [signal.SIGTERM]


@pytest.mark.process
@BOTH
def test_a_second_signal_ends_the_process_and_a_forked_child_is_ended_by_the_first(number: int, clock: Clock) -> None:
    """`Pool.terminate` waits for its processes, which must end by SIGTERM."""

    def end_of_child(act: Callable[[], None]) -> int:
        child = os.fork()
        if child == 0:
            try:
                act()
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def receive_twice() -> None:
        with noticing_signals(Interruption(clock), clock):
            signal.raise_signal(number)
            clock.now += 6
            signal.raise_signal(number)

    earlier = signal.signal(number, signal.SIG_DFL)  # tests of Ray leave a handler of Ray's
    try:
        assert end_of_child(receive_twice) == -number
        with noticing_signals(Interruption()):
            assert end_of_child(lambda: signal.raise_signal(number)) == -number
    finally:
        signal.signal(number, earlier)


class AwaitsCtrlC:
    """A block of a search in which a trial trains, and what it has announced."""

    def __init__(self, clock: Clock, is_awaited: bool = True) -> None:
        self.interruption = Interruption(clock)
        self.interruption.is_awaited = is_awaited
        self.announced: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.block = finishing_at_ctrl_c(self.interruption, self.announced.put, clock)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[Any], None]]:
    """Sets the program's own handler of Ctrl-C, for the time of the test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler) and None
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_finishes_the_step_of_a_trial_and_the_second_ends_immediately(clock: Clock) -> None:
    search, before = AwaitsCtrlC(clock), signal.getsignal(signal.SIGINT)
    with search.block:
        with ctrl_c_as_interruption():
            press()
        assert search.interruption.signal == signal.SIGINT
        assert search.interruption.reason == "interrupted by the user"
        assert search.announced.get(timeout=60).endswith("Ctrl-C again ends immediately")
        with pytest.raises(ZeroDivisionError), ctrl_c_as_interruption():  # the press that was noted makes nothing of it
            1 // 0  # noqa: B018
        with pytest.raises(KeyboardInterrupt):
            press()
    assert search.announced.empty()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.process
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_forked_child_lets_the_first_ctrl_c_pass_in_silence(clock: Clock, is_awaited: bool) -> None:
    """A terminal sends Ctrl-C to the workers of a DataLoader too, whose parent finishes the step with their batches."""
    announced: list[str] = []
    interruption = Interruption(clock)
    interruption.is_awaited = is_awaited
    with finishing_at_ctrl_c(interruption, announced.append, clock):
        child = os.fork()
        if child == 0:
            try:
                press()
                for thread in set(threading.enumerate()) - {threading.current_thread()}:
                    thread.join()
                with contextlib.suppress(KeyboardInterrupt):
                    press()
                    os._exit(10)
                os._exit(len(announced))
            finally:
                os._exit(20)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_ctrl_c_ends_immediately_while_there_is_nothing_to_lose(clock: Clock) -> None:
    search = AwaitsCtrlC(clock, is_awaited=False)
    with search.block, pytest.raises(KeyboardInterrupt):
        press()
    assert search.interruption.signal == 0


def test_ctrl_c_after_a_signal_ends_immediately(clock: Clock) -> None:
    search = AwaitsCtrlC(clock)
    search.interruption.note(signal.SIGTERM)
    with search.block, pytest.raises(KeyboardInterrupt):
        press()
    assert search.interruption.reason == "interrupted by SIGTERM"


def test_a_launcher_passes_on_the_ctrl_c_that_its_processes_have_received_and_both_are_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    search = AwaitsCtrlC(clock)
    with search.block:
        press()
        search.interruption.is_awaited = False  # the trial has left
        press()
        clock.now += 6
        with pytest.raises(KeyboardInterrupt):
            press()


def test_what_the_programs_handler_of_ctrl_c_raises_waits_for_the_end_of_the_search(
    clock: Clock, ctrl_c: Callable[[Any], None]
) -> None:
    ctrl_c(lambda *_: sys.exit(3))
    search = AwaitsCtrlC(clock)
    with search.block:
        press()
    assert search.interruption.signal == signal.SIGINT
    assert isinstance(search.interruption.error, SystemExit)


def test_a_handler_of_ctrl_c_that_lets_the_program_continue_does_so(
    clock: Clock, ctrl_c: Callable[[Any], None], called: list[int]
) -> None:
    ctrl_c(lambda number, frame: called.append(number))
    search = AwaitsCtrlC(clock)
    with search.block:
        press()
    assert (called, search.interruption.signal) == ([signal.SIGINT], 0)


@pytest.mark.parametrize("first", [0, signal.SIGUSR1])
def test_a_search_in_other_processes_waits_for_their_checkpoints_until_ctrl_c_comes_again(
    first: int, clock: Clock
) -> None:
    interruption = Interruption(clock)
    if first:
        interruption.note(first)
    else:
        interruption.press()
        clock.now += 1e6
    assert not interruption.is_overdue
    interruption.press()
    assert interruption.is_overdue
    assert interruption.signal == (first or signal.SIGINT)


class Two:
    """Two processes of a trial, of which the other one gives what a script says; counts the all-reduces."""

    size = 2

    def __init__(self, other: dict[int, int], is_main: bool = True, interval: int = 0) -> None:
        self._other, self.is_main, self._interval, self.count = other, is_main, interval, 0

    def largest(self, *values: int) -> tuple[int, ...]:
        self.count += 1
        return max(values[0], self._other.get(self.count, 0)), max(values[1], self._interval)


@pytest.mark.parametrize(("seconds", "most"), [(0.001, 20), (0.1, 110), (2.0, 1000)])
def test_processes_agree_about_once_a_second_and_a_signal_to_any_of_them_is_for_all(
    clock: Clock, seconds: float, most: int
) -> None:
    ranks = Two({})
    agreed = AgreedInterruption(Interruption(), ranks, clock)  # type: ignore[arg-type]
    for _ in range(1000):
        clock.now += seconds
        assert not agreed.has_come()
    assert 1000 * min(seconds, 1.0) <= ranks.count <= most

    interruption = Interruption()
    agreed = AgreedInterruption(interruption, Two({2: signal.SIGUSR1}), clock)  # type: ignore[arg-type]
    while not agreed.has_come():
        clock.now += 0.3
    assert interruption.signal == signal.SIGUSR1


def test_a_process_that_is_not_the_main_one_takes_over_how_often_they_agree(clock: Clock) -> None:
    ranks = Two({}, is_main=False, interval=5)
    agreed = AgreedInterruption(Interruption(), ranks, clock)  # type: ignore[arg-type]
    assert not any(agreed.has_come() for _ in range(11))
    assert ranks.count == 3  # at steps 1, 6 and 11


def test_one_process_sees_its_signal_at_the_next_step() -> None:
    interruption = Interruption()
    agreed = AgreedInterruption(interruption, OneProcess())
    assert not agreed.has_come()
    interruption.note(signal.SIGTERM)
    assert agreed.has_come()
    assert agreed.reason == "interrupted by SIGTERM"


ENDED = SearchInterrupted("Ended.", command="python a.py")


def show(error: BaseException) -> int | str | None:
    """Let the hook show an error that nothing has caught; return the exit code that it demands."""
    set_exit_code()
    set_exit_code()
    try:
        sys.excepthook(type(error), error, None)
    except SystemExit as ended:
        return ended.code
    return None


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (ENDED, 130, "Ended.\nTo continue: python a.py\n"),
        (SearchInterrupted("Ended.", signal=signal.SIGTERM), 143, "Ended.\n"),
        (SearchInterrupted("Ended.", signal=signal.SIGUSR1), 138, "Ended.\n"),
        (ValueError("x"), None, "ValueError: x\n"),
        (KeyboardInterrupt(), None, "KeyboardInterrupt\n"),
    ],
)
def test_an_interruption_is_shown_without_a_traceback_and_gives_the_exit_code(
    error: BaseException, code: int | None, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    forget_notebooks(monkeypatch)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert show(error) == code
    assert capsys.readouterr().err == shown
    if isinstance(error, SearchInterrupted):
        assert pickle.loads(pickle.dumps(error)).exit_code == error.exit_code


@pytest.mark.parametrize("error", [ENDED, ValueError("x")])
def test_a_hook_of_the_program_or_of_a_debugger_shows_an_interruption_as_any_other_error(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    forget_notebooks(monkeypatch)
    hooked: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *event: hooked.append(event))
    assert show(error) == (130 if error is ENDED else None)
    assert hooked == [(type(error), error, None)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("module", ["torch.distributed.distributed_c10d", "ray._private.worker"])
def test_the_hook_of_a_library_that_trials_run_with_does_not_bring_the_traceback_back(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    forget_notebooks(monkeypatch)

    def hook(*event: object) -> None:
        raise AssertionError

    hook.__module__ = module
    monkeypatch.setattr(sys, "excepthook", hook)
    assert show(ENDED) == 130
    assert capsys.readouterr().err == "Ended.\nTo continue: python a.py\n"


def test_a_console_shows_the_message_and_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert show(ENDED) is None
    assert capsys.readouterr().err == "Ended.\nTo continue: python a.py\n"


def forget_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what tests of notebooks have left in this process."""
    monkeypatch.delattr(sys, "ps1", raising=False)


@pytest.mark.parametrize(
    ("words", "is_shown"),
    [
        (["--pad-token", "<pad>", "--storage", "postgresql://host/name", "--push_to_hub"], True),
        (["run", "study.py", "--set", "seed=3"], True),
        (["--storage", "postgresql://user:word@host/name"], False),
        (["--storage=postgresql://user:word@host/name?sslmode=require"], False),
        (["postgresql://user:word@host/name?sslmode=require"], False),
        (["--hub_token", "hf_abc"], False),
        (["--hub-token=hf_abc"], False),
        (["--set", "hub_token=hf_abc"], False),
    ],
)
def test_the_command_that_continues_is_not_shown_if_it_holds_a_secret(
    words: list[str], is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_notebooks(monkeypatch)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", *words])
    command = own_command()
    assert (None if command is None else shlex.split(command)[2:]) == (words if is_shown else None)


@pytest.mark.parametrize(("processes", "is_known"), [("", True), ("1", True), ("many", True), ("2", False)])
def test_the_command_of_one_process_of_several_is_not_known(
    processes: str, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_notebooks(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", processes)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])
    assert own_command() == ("python train.py" if is_known else None)


@pytest.mark.parametrize(("is_console", "is_known"), [(False, True), (True, False)])
def test_the_command_is_known_of_a_program_that_imports_ipykernel_and_not_of_a_console(
    is_console: bool, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_notebooks(monkeypatch)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])
    if is_console:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert own_command() == ("python train.py" if is_known else None)
