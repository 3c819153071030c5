"""A search in two workers in a process of its own, which can be killed; everything in it begins at once.

The process is forked from a warm interpreter, and the server that its workers are forked from is forked from it.
"""

from __future__ import annotations

import importlib
import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from transformers import TrainerCallback

from hpsearch import Trainer
from hpsearch.workers import worker_process
from tests.support import warm
from tests.support.search_processes import RATE
from tests.support.searching import Diary
from tests.support.small_trainer import small_trainer

EPOCHS = 6


class WritesSteps(TrainerCallback):
    """Writes the run, the step and the process of each optimizer step into a diary."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write((Path(args.output_dir).name, state.global_step, os.getpid()))


def trainer_of(folder: Path, *callbacks: Any) -> Trainer:
    """Return the trainer of the search, with a checkpoint after each of its epochs."""
    return small_trainer(folder, *callbacks, num_train_epochs=EPOCHS, save_strategy="epoch")


def start(folder: Path, diary: Path, temporary: Path, n_trials: int, seed: int) -> warm.Program:
    """Start, or continue, a search with rungs in `folder`; `temporary` is its folder for temporary files."""
    return warm.call(_search, folder, diary, temporary, n_trials, seed)


def processes_in(diary: Path) -> set[int]:
    """Return the processes that have written into a diary."""
    return {pid for *_, pid in Diary(diary).read()}


def have_ended(pids: set[int]) -> Callable[[], bool]:
    """Return a condition: none of these processes runs any more."""
    return lambda: not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# In the process that searches.


def _search(folder: Path, diary: Path, temporary: Path, n_trials: int, seed: int) -> None:
    os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
    worker_process._interpreter = _Forked  # type: ignore[assignment,misc]
    worker_process.prepare()  # before this process has threads
    trainer_of(folder, WritesSteps(Diary(diary))).hyperparameter_search(
        RATE, "loss", n_trials=n_trials, n_jobs=2, seed=seed, progress=False
    )


class _Forked:
    """A forked process that calls a function with a connection, in place of an interpreter that imports for seconds."""

    def __init__(self, module: str, function: str, connection: Connection, variables: dict[str, str]) -> None:
        self.returncode: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setpgid(0, 0)
                os.environ.update(variables)
                connection.recv()  # sys.path
                getattr(importlib.import_module(module), function)(connection)
            finally:
                os._exit(0)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self.returncode
