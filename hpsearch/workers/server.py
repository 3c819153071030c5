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
from typing import Any

from ..surroundings import environment, ignoring_ctrl_c

_FIRST, _LAST = "hpsearch.trainer", "hpsearch.workers.preload"
# What this process has imported of these is imported there too: trials will need it, and it takes time.
_PACKAGES = ("transformers.models.", "peft.")
_MODULES = ("evaluate", "sentence_transformers", "sklearn.metrics", "transformers.trainer", "trl")
_LOCK = threading.Lock()
_server: forkserver.ForkServer | None = None


def prepare() -> None:
    """Start the server, which imports meanwhile; if it cannot be now, workers try again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, EOFError), _LOCK, _without_main():
            _running()


def start(target: Callable[..., None], arguments: Sequence[Any], name: str) -> Any:
    """Return a process that calls `target`: forked from the server, where that is safe; else a new one.

    Raises:
        OSError, EOFError: it cannot be started.
    """
    is_forked = sys.platform == "linux"
    context: Any = multiprocessing.get_context("forkserver" if is_forked else "spawn")
    process = context.Process(target=target, args=tuple(arguments), name=name)
    with _LOCK, _without_main():
        if is_forked:
            with _in_place_of_the_programs(_running()):
                process.start()
        else:
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
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    with environment({"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "PYTHONPATH": places}), ignoring_ctrl_c():
        _server.ensure_running()
    return _server


def _imported_here() -> list[str]:
    """Return which modules this process has imported that trials will need."""
    return sorted(name for name in sys.modules if name.startswith(_PACKAGES) or name in _MODULES)


@contextlib.contextmanager
def _in_place_of_the_programs(server: forkserver.ForkServer) -> Iterator[None]:
    """Let a new process of `multiprocessing` come from this server."""
    before = forkserver.connect_to_new_process
    forkserver.connect_to_new_process = server.connect_to_new_process
    try:
        yield
    finally:
        forkserver.connect_to_new_process = before


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new process from importing the program itself: what is defined there travels along."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _forget() -> None:
    """Forget the server in a process that was forked: it is its parent's, and would live as long as both."""
    global _LOCK, _server
    inherited = getattr(_server, "_forkserver_alive_fd", None)
    if inherited is not None:
        with contextlib.suppress(OSError):
            os.close(inherited)
    _LOCK, _server = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
