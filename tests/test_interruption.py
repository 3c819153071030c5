"""SIGTERM and SIGUSR1 while a search runs: noticed, passed on, and undone afterwards."""

from __future__ import annotations

import faulthandler
import os
import pickle
import shlex
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpsearch import SearchInterrupted
from hpsearch.search.process_group import OneProcess
from hpsearch.system.interruption import Interruption, noticing_signals, own_command, set_exit_code
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


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (
            SearchInterrupted("Ended.", signal=signal.SIGTERM, command="python a.py"),
            143,
            "Ended.\nTo continue: python a.py\n",
        ),
        (SearchInterrupted("Ended.", signal=signal.SIGUSR1), 138, "Ended.\n"),
        (SearchInterrupted("Ended."), 130, "earlier hook\n"),
        (ValueError("x"), None, "earlier hook\n"),
    ],
)
def test_the_program_exits_with_the_code_of_the_signal_and_other_errors_are_shown_as_before(
    error: BaseException, code: int | None, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "excepthook", lambda *_: sys.stderr.write("earlier hook\n"))
    set_exit_code()
    set_exit_code()
    ended: SystemExit | None = None
    try:
        sys.excepthook(type(error), error, None)
    except SystemExit as exit_:
        ended = exit_
    assert (None if ended is None else ended.code) == code
    assert capsys.readouterr().err == shown
    if isinstance(error, SearchInterrupted):
        assert pickle.loads(pickle.dumps(error)).exit_code == error.exit_code


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
