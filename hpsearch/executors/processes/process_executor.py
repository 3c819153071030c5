"""The options about workers, and what they need: the slots, the pickled trainer, the checks before the first trial."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from ...coordinator.coordinator import Coordinator
from ...errors import HpsearchError, StudyError
from ...search.study import Study, check_whole
from ...system.machine import memory
from ...system.temporary_folders import scratch_folder
from ...trial.searchable import Searchable
from .call_in_group import call_in_group
from .device_memory import SHARE_OF_MEMORY
from .device_slots import AUTO, Slot, most_workers, slots_for
from .group_checks import check_alone, check_group, checked_timeout, effective_batch
from .parallel_search import ParallelSearch
from .payload import CannotBeWritten, Payload, pack
from .pickling import REMEDY, check_objectives, culprit, first_line, for_workers
from .pool import Workers
from .shared_devices import SharedDevices
from .worker_process import WorkerProcess, fork_first_worker, prepare

Result = TypeVar("Result")


class ProcessExecutor:
    """The options about workers, and the search in them.

    Args:
        n_jobs, devices, trials_per_device, processes_per_trial, trials_per_worker, worker_memory, trial_retries,
            group_timeout: as for `OptunaBackend`.

    Attributes:
        is_wanted: whether trials run in workers.
        processes: the number of processes of each worker.
        retries: the number of times that a trial is resumed in another worker after its worker has died.
        notes: the number of workers and their devices, in words.

    Raises:
        StudyError: one of them is out of range.
    """

    def __init__(
        self,
        n_jobs: int | None,
        devices: Sequence[int] | None,
        trials_per_device: int | str | None,
        processes_per_trial: int,
        trials_per_worker: int | None,
        worker_memory: float | None,
        trial_retries: int,
        group_timeout: float | None,
    ) -> None:
        self._wanted, self.processes = (n_jobs, devices, trials_per_device), processes_per_trial
        self._least = int(trials_per_worker is not None or worker_memory is not None)
        check_whole("processes_per_trial", processes_per_trial, 1)
        # Whether a trainer in groups may use GPUs, if none are named, is known later.
        gpus = _gpus() if processes_per_trial == 1 or devices is not None else 0
        self.is_wanted = bool(slots_for(*self._wanted, gpus, self._least, processes_per_trial))
        self._given_timeout, self._group_timeout = group_timeout, checked_timeout(group_timeout, processes_per_trial)
        if trials_per_worker is not None:
            check_whole("trials_per_worker", trials_per_worker, 1, "None or ")
        check_whole("trial_retries", trial_retries, 0)
        is_number = isinstance(worker_memory, (int, float)) and not isinstance(worker_memory, bool)
        if worker_memory is not None and not (is_number and worker_memory > 0):
            raise StudyError(f"worker_memory must be None or a number of bytes, but got {worker_memory!r}.")
        self._most_trials, self._most_memory, self.retries = trials_per_worker, worker_memory, trial_retries
        self._slots: tuple[Slot, ...] = ()
        self._shared = SharedDevices()
        self._payload: Payload | None = None
        self._first: WorkerProcess | None = None
        self.notes: list[str] = []

    @contextlib.contextmanager
    def packed(self, study: Study, recipe: Searchable) -> Iterator[None]:
        """Pickle the trainer for the workers, if there are any; the file exists while the block runs.

        Raises:
            StudyError: the trainer cannot be pickled (the message names the attribute), or workers cannot be used here.
        """
        if self.processes == 1:
            check_alone(recipe)
        if not self.is_wanted:
            yield
            return
        self._check_process(recipe)
        self._check_measurable(recipe, study)
        self._slots, note = self._slots_of(study.n_trials, 0 if recipe.args.use_cpu else _gpus())
        self.notes = [note]
        if self.processes > 1:
            check_group(recipe, self.processes, has_gpus=bool(self._slots[0].devices))
            if not recipe.writes_its_checkpoints:
                self.notes.append(effective_batch(recipe, study, self.processes))
            elif self._given_timeout is None:  # a function may compute for hours before it reports
                self._group_timeout = math.inf
        check_objectives(study, "workers")
        with self._first_process(), scratch_folder() as folder:
            try:
                prepare()  # after the fork: a child must not hold the server's connection
                self._payload = _pack(lambda: (recipe.with_arguments(), for_workers(study)), recipe, folder / "data")
                yield
            finally:
                self._payload = None

    @contextlib.contextmanager
    def _first_process(self) -> Iterator[None]:
        """Fork the first worker now if that is safe: nothing of the search is open yet that it would inherit.

        With `worker_memory` it is not forked, as the memory of the program would count as its own. Nor is a group: its
        processes are to be alike.
        """
        is_possible = self.processes == 1 and not any(slot.devices for slot in self._slots)
        self._first = fork_first_worker(self._share()) if is_possible and self._most_memory is None else None
        try:
            yield
        finally:
            if self._first is not None:  # the search has ended before it has begun
                self._first.kill()
                self._first.close()
                self._first = None

    def _check_process(self, recipe: Searchable) -> None:
        """Check that this process may start workers, and that its trainer may use GPUs if they are asked for."""
        n_jobs, devices, trials_per_device = self._wanted
        if recipe.args.world_size > 1:
            asked = f"processes_per_trial={self.processes}" if self.processes > 1 else f"n_jobs={n_jobs!r}"
            raise StudyError(
                f"{asked} starts workers for the trials, but this search was started in {recipe.args.world_size} "
                "processes, which train each trial together. Start it without torchrun or accelerate launch, or leave "
                "n_jobs, devices, trials_per_device and processes_per_trial out."
            )
        if multiprocessing.current_process().daemon:
            raise StudyError(
                f"n_jobs={n_jobs!r} starts workers, which this process may not: it is a daemon, such as a process "
                "of multiprocessing.Pool. Call the search in the main program, or leave n_jobs, devices, "
                "trials_per_device and processes_per_trial out."
            )
        for name, wanted in (("devices", devices), ("trials_per_device", trials_per_device)):
            if wanted is not None and recipe.args.use_cpu:
                raise StudyError(
                    f"{name}={wanted!r} is about GPUs, but use_cpu=True trains on the CPU. Leave one of them out; "
                    "n_jobs sets the number of parallel trials."
                )

    def _check_measurable(self, recipe: Searchable, study: Study) -> None:
        """Check that the peak of the memory that a trial uses of its GPU can be measured, if it is needed."""
        if self._wanted[2] != AUTO:
            return
        if not getattr(recipe.args, "skip_memory_metrics", True):
            raise StudyError(
                "trials_per_device='auto' and skip_memory_metrics=False both measure the memory of the GPU, and would "
                "disturb each other. Leave one of them out, or pass a number of trials_per_device."
            )
        if study.oom_fallback:
            raise StudyError(
                "trials_per_device='auto' and oom_fallback=True contradict each other: a trial that runs out of memory "
                "would run again alone, or continue in smaller batches. Leave one of them out."
            )

    def _slots_of(self, n_trials: int | None, gpus: int) -> tuple[tuple[Slot, ...], str]:
        """Return the slots, at most one for each trial, and a note that describes them."""
        slots = slots_for(*self._wanted, gpus, self._least, self.processes)
        if slots[0].is_measured:
            slots = slots[:n_trials]
            most = most_workers(self._wanted[0], len(slots))
            self._shared = SharedDevices([slot.devices[0] for slot in slots], min(most, n_trials or most), memory())
            return slots, f"{_described(slots)}; more as soon as a trial shows how much memory of the GPU it uses"
        if n_trials is None or len(slots) <= n_trials:
            return slots, _described(slots)
        slots = slots_for(n_trials, self._wanted[1], None, gpus, least=1, processes=self.processes)
        kind = "groups" if self.processes > 1 else "workers"
        return slots, f"{_described(slots)} (no more {kind} than trials)"

    def _share(self) -> float:
        """Return the number of bytes that each worker may have."""
        return SHARE_OF_MEMORY * memory() / len(self._slots)

    def call_in_group(self, recipe: Searchable, function: Callable[[], Result]) -> Result:
        """Call a function once in each process of a new group; return what it returns in the first one.

        Raises:
            StudyError: groups cannot be used here, or the function cannot be pickled.
            HpsearchError: a process has died.
            BaseException: the first error of a process.
        """
        self._check_process(recipe)
        [slot], _ = self._slots_of(1, 0 if recipe.args.use_cpu else _gpus())
        with scratch_folder() as folder:
            return call_in_group(lambda call: _pack(lambda: call, recipe, folder / "data"), function, slot)

    def run(self, coordinator: Coordinator) -> None:
        """Start workers, and let them train the trials of the study.

        Raises:
            TrialEndedSearch, KeyboardInterrupt, StudyError: the error that ended the search early.
        """
        assert self._payload is not None, "packed() comes first"
        first, self._first = self._first, None
        limits = self._most_trials, self._most_memory, SHARE_OF_MEMORY * memory()
        workers = Workers(self._slots, self._payload, *limits, first, self._group_timeout)
        ParallelSearch(coordinator, workers, self._shared).run()


def _pack(made: Callable[[], object], recipe: Searchable, file: Path) -> Payload:
    """Pickle what a function makes for workers, which has the trainer in it."""
    try:
        return pack(made(), file)
    except CannotBeWritten as error:
        raise StudyError(
            f"The trainer's data cannot be written for workers: {error}. The variable TMPDIR names another "
            "folder for it."
        ) from error
    except HpsearchError:  # of a part that says itself what is wrong with it
        raise
    except Exception as error:
        name, reason = culprit(recipe) or ("it", first_line(error))
        raise StudyError(
            f"The trainer cannot be sent to workers: {name} cannot be pickled ({reason}). {REMEDY}"
        ) from error


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _described(slots: Sequence[Slot]) -> str:
    """Describe the number of workers, their processes, devices and threads."""
    devices = sorted({device for slot in slots for device in slot.devices})
    where = f"on GPU{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}" if devices else "on the CPU"
    threads, processes, count = slots[0].threads, slots[0].processes, len(slots)
    plural = "s" if count > 1 else ""
    workers = f"{count} worker{plural}" if processes == 1 else f"{count} group{plural} of {processes} processes"
    each = "each" if processes == 1 else "each process"
    return f"{workers} {where}, {each} with {threads} thread{'s' if threads > 1 else ''}"
