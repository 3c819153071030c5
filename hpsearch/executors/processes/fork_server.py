"""The process that workers are forked from: it imports what trials need, never trains, and never touches a GPU.

`worker_process.py` starts it, in an interpreter of its own: the user's program is not imported here.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait

from ...system.interruption import ignore_signals


def main(search: Connection) -> None:
    """Import the modules that the searching process names, then fork workers until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the searching process decides when workers end
    ignore_signals()
    with _ending_with(search):
        for name in search.recv():
            with contextlib.suppress(Exception):  # a trial that needs the module will raise the error again
                importlib.import_module(name)
        from .worker import work  # imports torch

        search.send(True)  # see `is_server_ready`; it is never read
    gc.collect()
    gc.freeze()  # the collector does not touch what has been imported, so forked processes keep sharing its memory
    worker = _serve(search)
    if worker is None:
        os._exit(0)
    work(worker)


@contextlib.contextmanager
def _ending_with(search: Connection) -> Iterator[None]:
    """End this process immediately if the searching process closes the connection while the block runs."""
    stop, stopper = Pipe(duplex=False)

    def watch() -> None:
        poll = select.poll()
        poll.register(search, 0)  # only that it was closed
        poll.register(stop, select.POLLIN)
        if search.fileno() in dict(poll.poll()):
            os._exit(1)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stopper.send_bytes(b"stop")
        thread.join()  # a process with threads cannot be forked safely
        stop.close()
        stopper.close()


def _serve(search: Connection) -> Connection | None:
    """Fork a worker for each request; return its connection in the worker, and None here when the search is over.

    A request is a message with two descriptors: the worker's connection, and one on which the searching process learns
    its pid and, when it has ended, its exit code. Only this process keeps the second one, so what a worker starts
    cannot hold it open.
    """
    statuses: dict[int, Connection] = {}  # by pid
    child_ended, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = wait([search, child_ended])
        if child_ended in ready:
            child_ended.recv(4096)
            _report_exits(statuses)
        if search not in ready:
            continue
        received = _request(search)
        if received is None:
            return None
        worker, status = received
        pid = _fork(status)
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (search, status, *statuses.values()):
                each.close()
            child_ended.close()
            wakeup.close()
            return worker
        worker.close()
        if pid is not None:
            statuses[pid] = status


def _request(search: Connection) -> tuple[Connection, Connection] | None:
    """Return the worker's connection and the one for its status; None if the search is over."""
    with socket.fromfd(search.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        try:
            message, descriptors, *_ = socket.recv_fds(channel, 1, 2)
        except OSError:
            return None
    if not message:
        return None
    worker, status = descriptors
    return Connection(worker), Connection(status, readable=False)


def _fork(status: Connection) -> int | None:
    """Fork, and send the pid; if the system refuses, send its error and return None."""
    try:
        pid = os.fork()
    except OSError as error:
        _send(status, error)
        return None
    if pid:
        _send(status, pid)
    return pid


def _report_exits(statuses: dict[int, Connection]) -> None:
    """Send the exit code of each worker that has ended."""
    with contextlib.suppress(ChildProcessError):  # there is no child any more
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in statuses:
                connection = statuses.pop(pid)
                _send(connection, os.waitstatus_to_exitcode(status))
                connection.close()


def _send(status: Connection, message: int | OSError) -> None:
    with contextlib.suppress(OSError):  # the searching process does not want to know any more
        status.send(message)
