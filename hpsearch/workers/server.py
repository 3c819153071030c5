"""The process that workers are forked from: it has imported everything, and has never touched a GPU.

It is one of our own, beside that of `multiprocessing`, which the program may use for something else, and may have
started before there was anything to import.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from ..surroundings import environment, ignoring_ctrl_c

_FIRST, _LAST = "hpsearch.trainer", "hpsearch.workers.preload"
# What this process has imported of these is imported there too: trials will need it, and it takes time.
_PACKAGES = ("transformers.models.", "peft.")
_MODULES = ("evaluate", "sentence_transformers", "sklearn.metrics", "transformers.trainer", "trl")
_INSTALLED = {"site-packages", "dist-packages"}
_LOCK = threading.Lock()
_server: forkserver.ForkServer | None = None
# What is changed for all threads while a process starts, as it was before.
_before: tuple[types.ModuleType, Callable[..., Any], list[str]] | None = None


def prepare() -> None:
    """Start the server, which imports meanwhile; if it cannot be now, workers try again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, EOFError), _LOCK:
            _running()


def start(target: Callable[..., None], arguments: Sequence[Any], name: str) -> Any:
    """Return a process that calls `target`: forked from the server, where that is safe; else a new one.

    Raises:
        OSError, EOFError: it cannot be started.
    """
    is_forked = sys.platform == "linux"
    context: Any = multiprocessing.get_context("forkserver" if is_forked else "spawn")
    process = context.Process(target=target, args=tuple(arguments), name=name)
    with _LOCK:
        server = _running() if is_forked else None
        with _in_place_of_the_programs(server):
            process.start()
    return process


def _running() -> forkserver.ForkServer:
    """Return the server, started if it is not there."""
    global _server
    if _server is None:
        _server = forkserver.ForkServer()
    _server.set_forkserver_preload([_FIRST, *_imported_here(), _LAST])
    # To ask whether there is a GPU must not touch it: a process that has cannot be forked. Nor may Ctrl-C end it while
    # it imports. And it has to find what this process finds, wherever that is.
    before, sys.path = sys.path, _places()
    try:
        settings = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with environment(settings), ignoring_ctrl_c():
            _server.ensure_running()
    finally:
        sys.path = before
    return _server


def _places() -> list[str]:
    """Return where this process finds modules, as other processes are to be told.

    An interactive session looks in the folder it is in now, not in the one it began in. What is no text is none of
    these places: Python does not look there.
    """
    return [each or os.getcwd() for each in sys.path if isinstance(each, str)]


def _imported_here() -> list[str]:
    """Return which modules this process has imported that trials will need; a file of the user's is none of them."""
    known = list(sys.modules.items())
    installed = (name for name, each in known if name in _MODULES and _INSTALLED & {*Path(_file(each)).parts})
    return sorted([*(name for name, _ in known if name.startswith(_PACKAGES)), *installed])


def _file(module: Any) -> str:
    return str(getattr(module, "__file__", None) or "")


@contextlib.contextmanager
def _in_place_of_the_programs(server: forkserver.ForkServer | None) -> Iterator[None]:
    """Let a new process of `multiprocessing` come from this server, and not import the program itself.

    What is defined there travels along. Other threads find the program as it was while the server is waited for.
    """
    global _before
    _before = sys.modules["__main__"], forkserver.connect_to_new_process, sys.path
    sys.modules["__main__"], sys.path = types.ModuleType("__main__"), _places()
    if server is not None:

        def connect(fds: Sequence[int]) -> tuple[int, int]:
            _put_back()
            return server.connect_to_new_process(fds)

        forkserver.connect_to_new_process = connect
    try:
        yield
    finally:
        _put_back()


def _put_back() -> None:
    global _before
    if _before is not None:
        sys.modules["__main__"], forkserver.connect_to_new_process, sys.path = _before
        _before = None


def _forget() -> None:
    """Forget the server in a process that was forked: it is its parent's, and would live as long as both."""
    global _LOCK, _server
    _put_back()
    inherited = getattr(_server, "_forkserver_alive_fd", None)
    if inherited is not None:
        with contextlib.suppress(OSError):
            os.close(inherited)
    _LOCK, _server = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
