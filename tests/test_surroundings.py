"""What is changed in this process for as long as something runs is as it was afterwards."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from hpsearch.system.ctrl_c import at_ctrl_c, ctrl_c_as_interruption


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("times", [1, 2])
def test_the_first_few_times_ctrl_c_acts_and_then_it_is_an_error_wherever_it_comes(times: int) -> None:
    acts: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    with at_ctrl_c(lambda: acts.append(1), times):
        for _ in range(times):
            with ctrl_c_as_interruption():
                press()
        with pytest.raises(KeyboardInterrupt):
            press()
        with ctrl_c_as_interruption(), pytest.raises(KeyboardInterrupt):
            press()
    assert len(acts) == times
    assert signal.getsignal(signal.SIGINT) is before


@ctrl_c_as_interruption()
def turn_ctrl_c_into(error: BaseException, is_pressed: bool = True) -> None:
    try:
        press() if is_pressed else None
    finally:
        raise error


def test_an_error_after_ctrl_c_is_an_interruption_and_one_without_is_itself() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        turn_ctrl_c_into(TypeError("a message"))
    assert isinstance(raised.value.__cause__, TypeError)
    with pytest.raises(TypeError):
        turn_ctrl_c_into(TypeError("a message"), is_pressed=False)
    with pytest.raises(SystemExit):
        turn_ctrl_c_into(SystemExit(3))


class PressesWhenItGoes:
    def __del__(self) -> None:
        press()


@ctrl_c_as_interruption()
@ctrl_c_as_interruption()
def press_in_a_destructor() -> None:
    PressesWhenItGoes()
    until = time.monotonic() + 60
    while time.monotonic() < until:  # ends with the interruption
        pass


def test_a_ctrl_c_that_python_drops_with_the_error_of_a_destructor_interrupts_nevertheless() -> None:
    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        press_in_a_destructor()
    assert sys.unraisablehook is before


def test_a_program_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with at_ctrl_c(pytest.fail), ctrl_c_as_interruption():
            press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
