"""The server that workers are forked from: it changes nothing in this process, and never outlives its connection."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import types
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from hpsearch.executors.processes import fork_server, worker_process
from hpsearch.executors.processes.pool import Worker
from hpsearch.executors.processes.worker_process import WorkerProcess
from tests.support import warm


@pytest.fixture
def _own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let there be no server yet; end the one that the test starts."""
    monkeypatch.setattr(worker_process, "_server", None)
    yield
    worker_process._end_server()


@pytest.fixture
def _quick_switches() -> Iterator[None]:
    """Let threads take turns after a microsecond, so that one sees what another does for a moment."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def settings_of_this_process() -> tuple[Any, ...]:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM)]
    of_multiprocessing = forkserver.connect_to_new_process, multiprocessing.get_start_method(allow_none=True)
    return sys.modules["__main__"], id(sys.path), list(sys.path), dict(os.environ), handlers, of_multiprocessing


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="there is no server")
@pytest.mark.usefixtures("_own_server", "_quick_switches")
def test_no_thread_ever_sees_this_process_changed_and_a_killed_server_is_replaced() -> None:
    before = set(psutil.Process().children())
    with nothing_changes():
        worker_process.prepare()
    (server,) = set(psutil.Process().children()) - before
    server.kill()  # while it imports: the first worker has another one started
    server.wait(60)
    first = WorkerProcess()
    with nothing_changes():
        second = WorkerProcess()
    first.connection.close()  # as if this process had ended
    first.join(60)
    assert first.exitcode == -signal.SIGKILL
    parent = psutil.Process(second.pid).parent()
    assert parent is not None
    assert parent.pid not in (os.getpid(), server.pid)
    parent.kill()
    second.join(60)
    assert second.exitcode == 255, "nobody knows it"
    second.connection.close()


@contextlib.contextmanager
def nothing_changes() -> Iterator[None]:
    """Check that another thread, which looks all the time, sees this process as it is while the block runs."""
    before, has_looked, is_over = settings_of_this_process(), threading.Event(), threading.Event()
    others: list[tuple[Any, ...]] = []

    def look() -> None:
        while not is_over.is_set():
            others.extend(each for each in [settings_of_this_process()] if each != before)
            has_looked.set()

    looking = threading.Thread(target=look)
    looking.start()
    has_looked.wait()
    try:
        yield
    finally:
        is_over.set()
        looking.join()
    assert others == []


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="there is no server")
def test_the_server_ends_with_its_connection_while_it_imports_and_not_at_ctrl_c(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    (tmp_path / "slow.py").write_text(f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(1000)\n")
    search, theirs = multiprocessing.Pipe()
    with theirs:
        server = worker_process._interpreter(
            "hpsearch.executors.processes.fork_server", "main", theirs, dict(os.environ)
        )
    try:
        search.send([str(tmp_path), *worker_process.module_path()])
        search.send(["no_such_module", "slow"])
        begun.read_text()  # waits until the import has begun
        server.send_signal(signal.SIGINT)
        search.close()
        assert server.wait(60) == 1
    finally:
        server.kill()
        server.wait()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="there is no server")
@pytest.mark.usefixtures("_own_server")
def test_ctrl_c_while_a_worker_is_requested_leaves_nothing_behind_that_the_next_one_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    send = socket.socket.sendmsg

    def interrupted(*arguments: Any) -> int:
        sent.append(send(*arguments))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "sendmsg", interrupted)
        with pytest.raises(KeyboardInterrupt):
            WorkerProcess()
    assert sent == [1]
    worker = WorkerProcess()
    worker.close()


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="there is no server")
@pytest.mark.usefixtures("_own_server")
def test_a_child_that_the_program_forks_holds_no_connection_to_a_worker() -> None:
    worker = WorkerProcess()
    child = os.fork()
    if child == 0:
        os._exit(0 if worker.connection.closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not worker.connection.closed
    worker.close()


def test_a_fork_that_the_system_refuses_is_reported_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(worker_process, "_FORK_IS_SAFE", True)
    monkeypatch.setattr(worker_process, "_fork", lambda theirs, status: fork_server._fork(status))
    with pytest.raises(BlockingIOError, match="temporarily unavailable"):
        WorkerProcess()


@pytest.mark.process
def test_a_worker_that_ends_deletes_the_temporary_folder_of_multiprocessing() -> None:
    begin = "from multiprocessing import util; print(util.get_temp_dir(), flush=True)"
    output = warm.run("-c", f"{begin}; from hpsearch.executors.processes.worker import _exit; _exit()").stdout
    assert output.strip()
    assert not Path(output.strip()).exists()


class _Memory(NamedTuple):
    rss: int


class _Process:
    """A process as psutil shows it where the system counts no shared memory and this user may not ask for more."""

    def __init__(self, pid: int) -> None:
        pass

    def memory_info(self) -> _Memory:
        return _Memory(1000)

    def memory_full_info(self) -> Any:
        raise psutil.AccessDenied


def test_where_the_system_does_not_tell_what_memory_is_shared_all_of_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "Process", _Process)
    worker = Worker.__new__(Worker)
    worker._processes = [types.SimpleNamespace(pid=1)]  # type: ignore[list-item]
    assert worker.memory == 1000


@pytest.mark.process
def test_a_request_to_a_server_that_has_ended_says_so_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_FIRST", "a module that does not exist")
    server = worker_process._ForkServer()
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, pytest.raises(OSError, match="has ended with exit code -9"):
        server.request(ours, theirs)
    server.end()
