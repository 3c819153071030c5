"""A search whose trials run in workers: gives them trials, answers their reports and records the results."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ...coordinator.coordinator import Coordinator
from ...coordinator.lost_worker import Loss
from ...errors import HpsearchError, StorageError, StudyError
from ...search.study import Study, check_whole
from ...system.ctrl_c import at_ctrl_c, ignoring_ctrl_c
from ...system.machine import memory
from ...system.temporary_folders import scratch_folder
from ...trial.ending import Ended
from ...trial.messages import Message, Progress
from ...trial.searchable import Searchable
from .device_slots import Slot, slots_for
from .group_checks import check_alone, check_group, checked_timeout, effective_batch
from .payload import CannotBeWritten, Payload, pack
from .pickling import REMEDY, check_objectives, culprit, first_line, for_workers
from .pool import Lost, Worker, Workers
from .worker_process import WorkerProcess, fork_first_worker, prepare

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_WORTH_TELLING = 1.0
_SHARE_OF_MEMORY = 0.9


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
        trials_per_device: int | None,
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
        self._group_timeout = checked_timeout(group_timeout, processes_per_trial)
        if trials_per_worker is not None:
            check_whole("trials_per_worker", trials_per_worker, 1, "None or ")
        check_whole("trial_retries", trial_retries, 0)
        is_number = isinstance(worker_memory, (int, float)) and not isinstance(worker_memory, bool)
        if worker_memory is not None and not (is_number and worker_memory > 0):
            raise StudyError(f"worker_memory must be None or a number of bytes, but got {worker_memory!r}.")
        self._most_trials, self._most_memory, self.retries = trials_per_worker, worker_memory, trial_retries
        self._slots: tuple[Slot, ...] = ()
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
        self._slots, note = self._slots_of(study.n_trials, 0 if recipe.args.use_cpu else _gpus())
        self.notes = [note]
        if self.processes > 1:
            check_group(recipe, self.processes, has_gpus=bool(self._slots[0].devices))
            self.notes.append(effective_batch(recipe, study, self.processes))
        check_objectives(study, "workers")
        with self._first_process(), scratch_folder() as folder:
            try:
                prepare()  # after the fork: a child must not hold the server's connection
                self._payload = _pack(recipe, study, folder / "data")
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

    def _slots_of(self, n_trials: int | None, gpus: int) -> tuple[tuple[Slot, ...], str]:
        """Return the slots, at most one for each trial, and a note that describes them."""
        slots = slots_for(*self._wanted, gpus, self._least, self.processes)
        if n_trials is None or len(slots) <= n_trials:
            return slots, _described(slots)
        slots = slots_for(n_trials, self._wanted[1], None, gpus, least=1, processes=self.processes)
        kind = "groups" if self.processes > 1 else "workers"
        return slots, f"{_described(slots)} (no more {kind} than trials)"

    def _share(self) -> float:
        """Return the number of bytes that each worker may have."""
        return _SHARE_OF_MEMORY * memory() / len(self._slots)

    def run(self, coordinator: Coordinator) -> None:
        """Start workers, and let them train the trials of the study.

        Raises:
            TrialEndedSearch, KeyboardInterrupt, StudyError: the error that ended the search early.
        """
        assert self._payload is not None, "packed() comes first"
        first, self._first = self._first, None
        memory_limit = self._most_memory or self._share()
        workers = Workers(self._slots, self._payload, self._most_trials, memory_limit, first, self._group_timeout)
        ParallelSearch(coordinator, workers).run()


def _pack(recipe: Searchable, study: Study, file: Path) -> Payload:
    """Pickle the trainer and the settings that workers need."""
    try:
        return pack((recipe.with_arguments(), for_workers(study)), file)
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


class ParallelSearch:
    """Lets workers train the trials of a search.

    Args:
        coordinator: gives the trials, and receives what they report.
        workers: train them.
    """

    def __init__(self, coordinator: Coordinator, workers: Workers) -> None:
        self._coordinator, self._workers = coordinator, workers
        self._trials: dict[Worker, int] = {}  # the number of the trial that each worker trains
        self._has_announced_start = False

    def run(self) -> None:
        """Run trials until there are none left; record an error that ends the search early, then raise it."""
        coordinator = self._coordinator
        try:
            with at_ctrl_c(lambda: coordinator.end_with(KeyboardInterrupt())):
                self._workers.start()
                while not coordinator.is_ending:
                    self._give()
                    if coordinator.is_over:
                        break
                    for worker, message in self._workers.wait(_SECONDS_BETWEEN_LOOKS):
                        self._take(worker, message)
                    self._announce_start()
                if coordinator.interruption.signal:
                    self._finish_steps()
        except BaseException as error:
            coordinator.end_with(error)
        finally:
            with ignoring_ctrl_c():
                self._end()
        if coordinator.error is not None:
            raise coordinator.error

    def _announce_start(self) -> None:
        """Say once how long the first worker took to be ready, if that was long enough to wonder."""
        seconds = self._workers.seconds_to_first
        if seconds is not None and not self._has_announced_start:
            self._has_announced_start = True
            if seconds >= _SECONDS_WORTH_TELLING:
                self._coordinator.announce(f"First worker ready after {seconds:.1f} s")

    def _finish_steps(self) -> None:
        """Let the trials finish their steps and write checkpoints, as long as there is time; they are recorded."""
        interruption = self._coordinator.interruption
        self._coordinator.end_with(KeyboardInterrupt())
        if self._trials:
            self._coordinator.announce(f"{interruption.name}: the trials write their checkpoints")
        self._workers.finish_steps(interruption.signal)
        while self._trials and not interruption.is_overdue:
            for worker, message in self._workers.wait(_SECONDS_BETWEEN_LOOKS):
                self._take(worker, message)

    def _give(self) -> None:
        """Give a trial to each worker that is ready."""
        for worker in self._workers.ready():
            assignment = self._coordinator.next()
            if assignment is None:
                return
            if self._workers.train(worker, assignment):
                self._trials[worker] = assignment.number
            else:  # the worker has died: another one takes the trial
                self._coordinator.give_back(assignment.number)
        if not self._trials and not self._coordinator.running:  # no worker is ready, and perhaps none is needed
            assignment = self._coordinator.next()
            if assignment is not None:
                self._coordinator.give_back(assignment.number)

    def _take(self, worker: Worker, message: Message | Ended | Lost) -> None:
        """Record a message of a worker, and answer it."""
        number = self._trials[worker]
        if isinstance(message, Ended):
            del self._trials[worker]
            worker.is_ready = True  # also if the result cannot be recorded
            self._coordinator.ended(message)
            self._workers.release(worker, has_failed=message.record.traceback is not None)
        elif isinstance(message, Lost):
            del self._trials[worker]
            ended = self._coordinator.lost(number, Loss(message.reason))
            if ended is not None:
                self._coordinator.ended(ended)
        else:
            answer = self._coordinator.receive(number, message)
            if not isinstance(message, Progress):
                worker.send(answer)

    def _end(self) -> None:
        """Let the workers leave their trials, and record these as interrupted: they can be resumed."""
        error = self._coordinator.error
        try:
            if error is not None and not isinstance(error, StorageError):
                for worker, message in self._workers.abandon():
                    if worker in self._trials and isinstance(message, Ended):
                        worker.is_ready = True
                        del self._trials[worker]
                        self._coordinator.left(message)
        finally:
            try:
                self._workers.end()
            finally:
                self._coordinator.close()
