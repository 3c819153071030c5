"""A search, in two workers or none, in a process of its own, which can be killed; everything in it begins at once.

The process is forked from a warm interpreter, and the server that its workers are forked from is forked from it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import transformers
from transformers import TrainerCallback

from hpsearch import Trainer
from hpsearch.any_trainer.tuning import TunedFunction
from hpsearch.executors.processes import worker_process
from tests.support import warm
from tests.support.loop_in_groups import STEPS, LoopInGroups
from tests.support.search_processes import RATE
from tests.support.searching import Diary
from tests.support.small_trainer import TwoLayers, points, small_trainer, transformers_trainer

EPOCHS = 6
# Ways to train a trial several times.
SEVERAL_RUNS: dict[str, dict[str, Any]] = {"repeats in workers": {"repeats": 3}, "folds in workers": {"folds": 3}}


class WritesSteps(TrainerCallback):
    """Writes the run, the step, the rank and the process of each optimizer step into a diary; waits if it `holds`."""

    def __init__(self, diary: Diary, holds: bool = False) -> None:
        self.diary, self._holds = diary, holds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.diary.write((Path(args.output_dir).name, state.global_step, args.process_index, os.getpid()))
        if self._holds:
            threading.Event().wait()


def trainer_of(folder: Path, *callbacks: Any, **arguments: Any) -> Trainer:
    """Return the trainer of the search, with a checkpoint after each of its epochs."""
    return small_trainer(folder, *callbacks, **{"num_train_epochs": EPOCHS, "save_strategy": "epoch", **arguments})


def recipe_of(folder: Path, way: str = "workers", *callbacks: Any, **arguments: Any) -> Trainer | TunedFunction:
    """Return what is searched: the trainer, or for `tune` a function that makes one of transformers, or a loop."""
    if way == "loop in groups":
        diaries = [each.diary for each in callbacks]
        return TunedFunction(LoopInGroups(*diaries), RATE, folder)
    if not way.startswith("tune"):
        data = (
            {"train_dataset": points(18, 0), "eval_dataset": None, "eval_strategy": "no"}
            if way.startswith("folds")
            else {}
        )
        return trainer_of(folder, *callbacks, **data, **arguments)
    settings = {"num_train_epochs": EPOCHS, "save_strategy": "epoch", **arguments}

    def make(trial: Any) -> transformers.Trainer:
        return transformers_trainer(folder, TwoLayers(), *callbacks, **settings, **trial.params)

    return TunedFunction(make, RATE, folder)


def start(
    folder: Path,
    diary: Path,
    temporary: Path,
    n_trials: int,
    seed: int,
    n_jobs: int | None = 2,
    holds: bool = False,
    way: str = "workers",
    address: str = "",
    **arguments: Any,
) -> warm.Program:
    """Start, or continue, a search with rungs in `folder`.

    Args:
        folder: the trainer's `output_dir`.
        diary: a file for what the trials write down.
        temporary: the folder for temporary files of the search.
        n_trials, seed, n_jobs: of the search.
        way: how trials are trained: "workers", "tune in workers", "repeats in workers", "folds in workers", "groups" or
            "loop in groups" of two processes, or "ray".
        address: of the cluster of Ray.
        arguments: of the trainer.
    """
    options: dict[str, Any] = {"n_trials": n_trials, "seed": seed, "n_jobs": n_jobs}
    if way.endswith("groups"):
        options |= {"processes_per_trial": 2, "trial_retries": 1000}
    if way in SEVERAL_RUNS:
        options |= SEVERAL_RUNS[way]
    if way == "loop in groups":
        options["max_resource"] = STEPS
    if way == "ray":
        del options["n_jobs"]
        each = {"resources_per_trial": {"cpu": 1}, "max_concurrent_trials": 2}
        options |= {"backend": "ray", "address": address, **each}
    return warm.call(_search, folder, WritesSteps(Diary(diary), holds), temporary, way, options, arguments)


def processes_of(driver: warm.Program) -> set[int]:
    """Return the processes of a search that run: its own one, workers, and those that load data."""
    return {pid for pid in psutil.pids() if _session(pid) == driver.pid and _runs(pid)}


def kill_all(driver: warm.Program) -> None:
    """Kill all processes of a search, as the end of a job or a container does."""
    while processes := processes_of(driver):
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_in(diary: Path) -> set[int]:
    """Return the processes that have written into a diary."""
    return {pid for *_, pid in Diary(diary).read()}


def have_ended(pids: set[int]) -> Callable[[], bool]:
    """Return a condition: none of these processes runs any more."""
    return lambda: not any(_runs(pid) for pid in pids)


def _session(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# In the process that searches.


def _search(
    folder: Path, callback: WritesSteps, temporary: Path, way: str, options: dict[str, Any], arguments: dict[str, Any]
) -> None:
    os.environ["TMPDIR"], tempfile.tempdir = str(temporary), None
    if options.get("n_jobs") is not None:
        worker_process._interpreter = _Forked  # type: ignore[assignment,misc]
        worker_process.prepare()  # before this process has threads
    recipe = recipe_of(folder, way, callback, **arguments)
    recipe.hyperparameter_search(RATE, "loss", progress=False, **options)


def _close_all_but(kept: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):  # the one that has listed them
                os.close(number)


class _Forked:
    """A forked process that calls a function with a connection, in place of an interpreter that imports for seconds."""

    def __init__(self, module: str, function: str, connection: Connection, variables: dict[str, str]) -> None:
        self.returncode: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _close_all_but(connection.fileno())  # as Popen does: else the server itself holds the driver's end
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
