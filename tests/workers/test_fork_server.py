"""The server that workers are forked from changes nothing of the program, in whatever moment that forks."""

from __future__ import annotations

import os
import sys
import types
from multiprocessing import forkserver
from typing import Any, NamedTuple

import psutil
import pytest

from hpsearch.workers import server
from hpsearch.workers.pool import Worker, Workers

pytestmark = pytest.mark.process


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_that_is_forked_while_a_worker_starts_is_the_program_as_it_was() -> None:
    main, connect = sys.modules["__main__"], forkserver.connect_to_new_process
    ours = forkserver.ForkServer()
    with server._in_place_of_the_programs(ours):
        assert sys.modules["__main__"] is not main
        assert forkserver.connect_to_new_process != connect
        child = os.fork()
        if child == 0:
            is_as_before = sys.modules["__main__"] is main and forkserver.connect_to_new_process == connect
            os._exit(0 if is_as_before else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sys.modules["__main__"] is main
    assert forkserver.connect_to_new_process == connect


@pytest.mark.skipif(sys.platform != "linux", reason="there is no server")
def test_while_the_server_is_waited_for_other_threads_find_the_program_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main, connect = sys.modules["__main__"], forkserver.connect_to_new_process
    seen, places = [], sys.path

    def looks(self: Any, descriptors: Any) -> Any:
        seen.append((sys.modules["__main__"], forkserver.connect_to_new_process, sys.path is places))
        return connects(self, descriptors)

    connects = forkserver.ForkServer.connect_to_new_process
    monkeypatch.setattr(forkserver.ForkServer, "connect_to_new_process", looks)
    process = server.start(_nothing, (), "a process")
    process.join(60)
    assert process.exitcode == 0
    assert seen == [(main, connect, True)]


def _nothing() -> None:
    pass


class _Told(NamedTuple):
    rss: int


class _Process:
    """As psutil shows processes where they are another user's, or where it takes more rights to look."""

    def __init__(self, pid: int) -> None:
        pass

    def memory_info(self) -> _Told:
        return _Told(1000)

    def memory_full_info(self) -> Any:
        raise psutil.AccessDenied


def test_where_the_system_does_not_tell_what_memory_is_shared_all_of_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "Process", _Process)
    worker = Worker.__new__(Worker)
    worker._process = types.SimpleNamespace(pid=1)
    assert worker.memory == 1000


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_what_the_error_says() -> None:
    workers = Workers([], None)  # type: ignore[arg-type]
    workers._failed_starts[0] = 2
    with pytest.raises(
        Exception, match=r"AF_UNIX path too long\. The variable TMPDIR must name a folder with a shorter"
    ):
        workers._note_failed_start(0, "AF_UNIX path too long")
