"""Remove the program's state from a process that was forked from it, to make it equal to one from the fork server.

The program's own objects are kept, not dropped: their finalizers would act on what they share with the program.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import logging
import os
import signal
import stat
import sys
import threading
import types
import warnings
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from accelerate.state import AcceleratorState, GradientState, PartialState

from .program_modules import is_of_program

# What libraries give their loggers when they are imported.
_OF_LIBRARIES = (logging.StreamHandler, logging.NullHandler)
_kept: list[object] = []


def leave_the_program(connection: Connection) -> None:
    """Drop all of the program that could change a trial or hold the program up; keep `connection`."""
    gc.freeze()  # what the program has made is not collected here: connections to databases, for example
    _leave_handlers_of_exits_and_signals()
    _leave_hooks_of_the_interpreter()
    _leave_streams()
    _leave_modules()
    _leave_warnings_and_errors_of_numbers()
    _leave_loggers()
    _leave_multiprocessing()
    _leave_pipes_and_sockets(connection)
    for state in (GradientState, AcceleratorState, PartialState):
        state._reset_state()


def _leave_handlers_of_exits_and_signals() -> None:
    """Let the end of this process, and signals, call nothing of the program; Ctrl-C is for the program alone."""
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave_hooks_of_the_interpreter() -> None:
    """Let no debugger or profiler of the program follow, and collect garbage again, as a new process does."""
    sys.settrace(None)
    sys.setprofile(None)
    threading.settrace(None)
    threading.setprofile(None)
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    gc.enable()


def _leave_streams() -> None:
    """Read nothing that was typed for the program, and write where the process writes."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def _leave_modules() -> None:
    """Import the program's modules again where they are used: the program may have changed them.

    `__main__` is an empty module: a process that a trial spawns would run the program's script if it had a file.
    """
    names = [name for name, module in list(sys.modules.items()) if is_of_program(name, module)]
    _kept.extend(sys.modules.pop(name) for name in names)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = types.ModuleType("__main__")
    importlib.invalidate_caches()


def _leave_warnings_and_errors_of_numbers() -> None:
    """Let warnings and numpy's errors raise no exception where they raise none in a new process.

    Filters with a message or module, or for a category of a library, are kept: libraries have set such ones.
    """
    logging.captureWarnings(False)
    warnings.showwarning = warnings._showwarning_orig  # type: ignore[attr-defined]
    special = [each for each in warnings.filters if each[0] != "error" and _is_special(each)]
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined] # as when Python starts
    warnings.filters[:0] = special  # type: ignore[index]
    np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
    np.seterrcall(None)


def _is_special(entry: tuple[Any, ...]) -> bool:
    _, message, category, module, _ = entry
    return bool(message or module) or category.__module__.partition(".")[0] not in ("builtins", "__main__")


def _leave_loggers() -> None:
    """Write no line to where the program's handlers write; the search sets the levels of libraries.

    Loggers of libraries have handlers that write to a stream as soon as they are imported; these stay.
    """
    logging.disable(logging.NOTSET)
    for logger in [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]:
        if not isinstance(logger, logging.Logger):
            continue
        is_of_library = logger.name.partition(".")[0] in sys.modules  # those of the program do not exist any more
        for handler in [*logger.handlers]:
            is_as_imported = isinstance(handler, _OF_LIBRARIES) and not isinstance(handler, logging.FileHandler)
            if not (is_of_library and is_as_imported):
                _kept.append(handler)
                logger.removeHandler(handler)
        if not is_of_library:
            logger.filters.clear()
            logger.propagate, logger.disabled = True, False
            logger.setLevel(logging.WARNING if logger is logging.root else logging.NOTSET)


def _leave_multiprocessing() -> None:
    """Drop the program's processes and the helpers of multiprocessing: they are no children of this process."""
    for package in ("multiprocessing", "multiprocess"):  # the second one is that of datasets
        if f"{package}.util" not in sys.modules:
            continue
        util = importlib.import_module(f"{package}.util")
        _kept.extend(util._finalizer_registry.values())
        util._finalizer_registry.clear()
        util._run_after_forkers()
        process = importlib.import_module(f"{package}.process")
        _kept.extend(process._children)
        process._children.clear()
        for name, helper in (("forkserver", "_forkserver"), ("resource_tracker", "_resource_tracker")):
            module = sys.modules.get(f"{package}.{name}")
            if module is not None:
                getattr(module, helper).__init__()  # as when it was imported; the descriptors are left below


def _leave_pipes_and_sockets(connection: Connection) -> None:
    """Let go of the program's pipes and sockets, whose other ends wait for all copies of this one to be closed.

    Their numbers stay in use: objects of the program may still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number <= 2 or number in (nothing, connection.fileno()):
            continue
        with contextlib.suppress(OSError):  # that of the listing has been closed
            mode = os.fstat(number).st_mode
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
