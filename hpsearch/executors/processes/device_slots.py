"""Divides the machine among workers: devices and a number of threads for each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import StudyError
from ...search.study import check_whole
from ...system.machine import cores

# Memory decides how many trials share a GPU.
AUTO = "auto"


@dataclass(frozen=True)
class Slot:
    """The part of the machine that a worker may use.

    Attributes:
        devices: the indices of its GPUs among those that this process sees, one for each process; empty: the CPU.
        threads: the number of threads of torch in each process.
        processes: the number of processes that train each trial together; more than one are a group.
        is_measured: whether the worker reports how much memory of its GPU it has used.
    """

    devices: tuple[int, ...]
    threads: int
    processes: int = 1
    is_measured: bool = False


def slots_for(
    n_jobs: int | None,
    devices: Sequence[int] | None,
    trials_per_device: int | str | None,
    gpus: int,
    least: int = 0,
    processes: int = 1,
) -> tuple[Slot, ...]:
    """Return the slot of each worker; none if trials run in this process, in series.

    Args:
        n_jobs: the number of workers; -1: as many as there are GPUs for, or cores if there is no GPU; None: as the
            other arguments say.
        devices: the GPUs to use; None: all.
        trials_per_device: the number of workers on each GPU; None: 1, or as many as `n_jobs` needs; "auto": one to
            begin with, and later as many as its memory allows (see `shared_devices.py`), at most `n_jobs` in all.
        gpus: the number of GPUs.
        least: 1 if there must be a worker.
        processes: the number of processes of each worker.

    Raises:
        StudyError: a number is out of range, or they contradict each other.

    Examples:
        >>> [slot.devices for slot in slots_for(None, [0, 1], 2, gpus=2)]
        [(0,), (1,), (0,), (1,)]
        >>> [slot.devices for slot in slots_for(None, [0, 1, 2, 3], None, gpus=4, processes=2)]
        [(0, 1), (2, 3)]
    """
    if n_jobs not in (None, -1):
        check_whole("n_jobs", n_jobs, 1, "-1 or ")
    if trials_per_device is not None and trials_per_device != AUTO:
        check_whole("trials_per_device", trials_per_device, 1, f"None, {AUTO!r} or ")
    check_whole("processes_per_trial", processes, 1)
    if processes > 1:
        return _groups(n_jobs, devices, trials_per_device, gpus, processes)
    if devices is None and trials_per_device is None:
        n_jobs = 1 if n_jobs is None else n_jobs
        if n_jobs == 1 and not least:
            return ()
    used = _devices(devices, gpus)
    if not used:
        if trials_per_device is not None:
            raise StudyError(
                f"trials_per_device={trials_per_device!r}: this process has no GPU; n_jobs sets the number of "
                "parallel trials on the CPU."
            )
        count = cores() if n_jobs == -1 else n_jobs or 1
        return (Slot((), _threads(count)),) * count
    if trials_per_device == AUTO:
        most = most_workers(n_jobs, len(used))
        return tuple(Slot((device,), _threads(most), is_measured=True) for device in used[:most])
    return _fixed(n_jobs, used, trials_per_device)


def most_workers(n_jobs: int | None, gpus: int) -> int:
    """Return how many workers there may be if memory decides how many trials share a GPU.

    A worker keeps a core busy, which starts the computations of the GPU.
    """
    return max(gpus, cores()) if n_jobs in (None, -1) else n_jobs or 1


def _fixed(n_jobs: int | None, used: Sequence[int], trials_per_device: Any) -> tuple[Slot, ...]:
    """Return the slots of workers whose number is given."""
    if n_jobs in (None, -1):
        count = len(used) * (trials_per_device or 1)
    else:
        count = n_jobs or 1
        if trials_per_device is not None and count != len(used) * trials_per_device:
            raise StudyError(
                f"n_jobs={n_jobs} contradicts trials_per_device={trials_per_device} on {len(used)} devices; leave one "
                "of them out."
            )
    return tuple(Slot((used[place % len(used)],), _threads(count)) for place in range(count))


def _groups(
    n_jobs: int | None, devices: Sequence[int] | None, trials_per_device: int | str | None, gpus: int, processes: int
) -> tuple[Slot, ...]:
    """Return a slot for each group of processes; on GPUs, each process has a GPU of its own."""
    if trials_per_device not in (None, 1):
        raise StudyError(
            f"trials_per_device={trials_per_device!r} and processes_per_trial={processes} contradict each other: each "
            "process of a trial has a GPU of its own. Leave one of them out."
        )
    used = _devices(devices, gpus)
    if not used:
        count = max(1, cores() // processes) if n_jobs == -1 else n_jobs or 1
        return (Slot((), _threads(count * processes), processes),) * count
    most = len(used) // processes
    count = most if n_jobs in (None, -1) else n_jobs or 1
    if count > most or most == 0:
        count = max(count, 1)
        wanted = f"processes_per_trial={processes}{f' with n_jobs={count}' if count > 1 else ''}"
        raise StudyError(
            f"{wanted} needs {count * processes} GPUs, one for each process, but the search has {len(used)} "
            f"({_listed(used)}). Use fewer processes or fewer parallel trials; use_cpu=True trains on the CPU."
        )
    return tuple(
        Slot(tuple(used[first : first + processes]), _threads(count * processes), processes)
        for first in range(0, count * processes, processes)
    )


def _devices(devices: Any, gpus: int) -> list[int]:
    if devices is None:
        return list(range(gpus))
    is_list = isinstance(devices, Sequence) and not isinstance(devices, str) and len(devices) > 0
    if not is_list or not all(isinstance(each, int) and not isinstance(each, bool) for each in devices):
        raise StudyError(f"devices must be a list of numbers of GPUs, such as [0, 1], but got {devices!r}.")
    if len(set(devices)) < len(devices):
        raise StudyError(
            f"devices={list(devices)!r} names a GPU twice; to share GPUs between trials, use trials_per_device."
        )
    unknown = [each for each in devices if not 0 <= each < gpus]
    if unknown:
        known = f"has {_listed(range(gpus))}" if gpus else "has none (n_jobs= runs trials on the CPU)"
        raise StudyError(f"devices={list(devices)!r}: GPU {unknown[0]} does not exist; this process {known}.")
    return list(devices)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _threads(processes: int) -> int:
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() and int(said) else max(1, cores() // processes)
