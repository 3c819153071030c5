"""Workers of Ray that are forked from a process which has imported everything.

A fresh worker needs eight seconds of a core to import torch, transformers and Ray Tune; a forked one needs one second:
it imports Ray alone. Ray starts a worker by `sys.executable .../default_worker.py ...`: an instance that is started
within `warm_workers()` gets a script in place of `sys.executable`, which asks a server to fork. In all other respects
the worker is a usual one: a process of its own, with the arguments, variables and files that Ray gives it, which sees
the file systems of its node.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

# What workers import but Ray itself, which reads its settings and its token when it is loaded.
PRELOADED = (
    *(
        "torch",
        "transformers",
        "transformers.trainer",
        "optuna",
        "hpsearch.trainer.trainer",
        "hpsearch.any_trainer.trainer_function",
    ),
    *("hpsearch.backends.optuna_backend", "hpsearch.trial.remote_trial", "hpsearch.executors.processes.worker"),
    *("fsspec", "google.protobuf.json_format", "jsonschema", "msgpack", "pandas", "pyarrow.fs", "pydantic", "requests"),
    *("rich.progress", "tensorboardX", "tests.support.search_processes", "tests.support.searching"),
    *("tests.support.scarce_memory", "tests.support.shelf", "tests.support.small_trainer"),
)
MOUNTS = "/proc/self/ns/mnt"  # the file systems that a process sees, on Linux
CLONE_NEWNS = 0x20000
SCRIPT = """#!/bin/sh
case "$*" in
*/default_worker.py*) exec '{python}' -IS '{client}' '{address}' "$@" ;;
*) exec '{python}' "$@" ;;
esac
"""

STARTS = """#!{python}
import sys
sys.executable = "{script}"
from ray.scripts.scripts import main
sys.exit(main())
"""


@contextlib.contextmanager
def warm_workers() -> Iterator[None]:
    """Let nodes of Ray that this process starts in the block fork their workers, for as long as this process lives."""
    _start_server()
    python, sys.executable = sys.executable, os.environ[_VARIABLE]
    try:
        yield
    finally:
        sys.executable = python


_server: list[Any] = []  # its process, if this one has started it
# The variable with the script: processes that a test starts use the same server.
_VARIABLE = "HPSEARCH_TESTS_WARM_WORKERS"


def warm_if_there_is_a_server() -> contextlib.AbstractContextManager[None]:
    """Do the same in a process that a test has started, if the test's process has a server."""
    return warm_workers() if _VARIABLE in os.environ else contextlib.nullcontext()


def end_server() -> None:
    """End the server, if there is one."""
    while _server:
        process = _server.pop()
        del os.environ[_VARIABLE]
        process.stdin.close()
        process.wait(20)


def _start_server() -> None:
    """Start the server, unless there is one; it ends with this process at the latest, whose pipe it watches."""
    import multiprocessing.spawn  # remembers sys.executable  # noqa: F401

    if _VARIABLE in os.environ:
        return
    import subprocess
    import tempfile

    folder = tempfile.mkdtemp(prefix="warm")
    address, script = os.path.join(folder, "socket"), os.path.join(folder, "python")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    with open(script, "w") as stream:
        stream.write(SCRIPT.format(python=sys.executable, client=__file__, address=address))
    os.chmod(script, 0o700)
    starts = os.path.join(folder, "ray")  # beside the script, as `ray` lies beside Python
    with open(starts, "w") as stream:
        stream.write(STARTS.format(python=sys.executable, script=script))
    os.chmod(starts, 0o700)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(listener.fileno()), folder],
        cwd=root,
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
    )
    listener.close()
    _server.append(process)
    os.environ[_VARIABLE] = script


def _ask(address: str, command: list[str]) -> None:
    """Run in the process that Ray has started: hand all that it was given to the server."""
    told = json.dumps({"command": command, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        mounts = [os.open(MOUNTS, os.O_RDONLY)] if os.path.exists(MOUNTS) else []
        socket.send_fds(connection, [len(told).to_bytes(8, "big")], [0, 1, 2, *mounts])
        connection.sendall(told)
        connection.recv(1)


def _serve(listener: socket.socket, folder: str) -> None:
    """Fork a worker for each that asks, until the process that has started this one is gone."""
    import importlib
    import select
    import shutil
    import signal

    import torch

    torch.set_num_threads(1)
    for module in PRELOADED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
        connection, _ = listener.accept()
        with connection:
            size, files, _, _ = socket.recv_fds(connection, 8, 4)
            with connection.makefile("rb") as stream:
                told = json.loads(stream.read(int.from_bytes(size, "big")))
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                connection.close()
                _become(told["command"], told["environment"], told["folder"], files)
            for each in files:
                os.close(each)


def _become(command: list[str], environment: dict[str, str], folder: str, files: list[int]) -> None:
    """Become the worker that a command starts, as `setup_worker.py` and `default_worker.py` of Ray do."""
    import runpy
    import tempfile
    import traceback

    import numpy as np

    status = 1
    try:
        os.setsid()
        for each in files[3:]:
            _enter(each)
        for place, each in enumerate(files[:3]):
            os.dup2(each, place)
            os.close(each)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        tempfile.tempdir = None  # is read again
        np.random.seed()
        (script,) = (each for each in command if each.endswith("/default_worker.py"))
        sys.argv = [script]
        for each in command[command.index(script) + 1 :]:
            name, _, value = each.partition("=")
            if name == "--serialized-runtime-env-context":
                os.environ.update(json.loads(value)["env_vars"])
            elif name != "--language":
                sys.argv.append(each)
        runpy.run_path(script, run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _enter(mounts: int) -> None:
    """See the file systems that the process sees which has asked: those of its node."""
    import ctypes

    if os.fstat(mounts).st_ino != os.stat(MOUNTS).st_ino:
        library = ctypes.CDLL(None, use_errno=True)
        if library.setns(mounts, CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "setns fails")
    os.close(mounts)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    else:
        _ask(sys.argv[1], sys.argv[2:])
