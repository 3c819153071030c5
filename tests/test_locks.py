"""A lock keeps others away while it is held, and no longer: not after its holder has died, nor by a forked child."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpsearch.locks import KernelLock

HOLD = """
import os, sys, time
from hpsearch.locks import KernelLock
lock = KernelLock(sys.argv[1])
lock.acquire()
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def lock(tmp_path: Path) -> KernelLock:
    return KernelLock(tmp_path / "lock")


class Holder:
    """Another process that holds a lock; `children` of it are ended, too."""

    def __init__(self, path: Path, *how: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path), *how], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def holder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Holder]:
    holder = Holder(tmp_path / "lock", *getattr(request, "param", ()))
    yield holder
    holder.end()


def seconds_to_take(lock: KernelLock) -> float:
    begin = time.monotonic()
    with lock:
        return time.monotonic() - begin


@pytest.mark.process
@pytest.mark.parametrize("holder", [(), ("fork",)], indirect=True, ids=["alone", "with a child of its own"])
def test_a_lock_is_waited_for_until_the_process_that_holds_it_dies(lock: KernelLock, holder: Holder) -> None:
    threading.Timer(1.0, holder.kill).start()
    assert 0.5 < seconds_to_take(lock) < 10


def test_a_lock_may_be_nested_and_keeps_other_threads_away(lock: KernelLock) -> None:
    other: list[float] = []
    thread = threading.Thread(target=lambda: other.append(seconds_to_take(lock)))
    with lock:
        with lock:
            assert lock.is_locked
            thread.start()
        time.sleep(0.5)
        assert lock.is_locked
        assert not other
    thread.join()
    assert other[0] > 0.4
    assert not lock.is_locked


@pytest.mark.process
def test_a_lock_whose_file_was_deleted_excludes_those_who_lock_the_new_file(lock: KernelLock, tmp_path: Path) -> None:
    with lock:
        (tmp_path / "lock").unlink()
    holder = Holder(tmp_path / "lock")
    try:
        threading.Timer(1.0, holder.kill).start()
        assert seconds_to_take(lock) > 0.5
    finally:
        holder.end()


def test_a_lock_in_a_folder_that_is_gone_is_an_error_and_can_be_taken_later(tmp_path: Path) -> None:
    lock = KernelLock(tmp_path / "folder" / "lock")
    with pytest.raises(FileNotFoundError):
        lock.acquire()
    (tmp_path / "folder").mkdir()
    assert seconds_to_take(lock) < 5


@pytest.mark.process
def test_a_child_that_was_forked_inside_the_lock_leaves_it_alone_and_can_wait_for_it(lock: KernelLock) -> None:
    child = None
    with lock:
        child = os.fork()
    if child == 0:
        begin = time.monotonic()
        with lock:
            os._exit(0 if time.monotonic() - begin < 30 else 1)
    assert os.waitpid(child, 0)[1] == 0
    with lock:
        child = os.fork()
        if child == 0:
            lock.release()
            lock.acquire()  # waits for the parent, which gives it back a second later
            os._exit(0)
        time.sleep(1.0)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.process
def test_a_forked_child_does_not_hold_the_lock_of_its_parent(lock: KernelLock) -> None:
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(int(lock.is_locked))
        assert os.waitpid(child, 0)[1] == 0
        assert lock.is_locked
