"""Which GPUs several trials share, as far as memory allows it, and which trials have a GPU to themselves.

`trials_per_device="auto"`: each GPU begins with one worker. With the first report of its trial it is known how much
memory that has used, and so how many workers there may be; a later trial that uses more lowers their number. A trial
that has run out of memory on a shared GPU runs again alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .device_memory import SHARE_OF_MEMORY, DeviceMemory


class SharedDevices:
    """The GPUs whose workers depend on the memory that trials use; empty if that does not matter.

    Args:
        devices: the GPUs.
        most_workers: of all of them together.
        machine_memory: the bytes of memory of the machine, of which nine tenths are for workers.
    """

    def __init__(self, devices: Sequence[int] = (), most_workers: int = 0, machine_memory: float = math.inf) -> None:
        self._devices, self._most_workers, self._machine_memory = list(devices), most_workers, machine_memory
        self._memory: dict[int, DeviceMemory] = {}
        self._of_a_worker = 1
        self._alone: dict[int, list[int]] = {device: [] for device in devices}

    def note(self, device: int, memory: DeviceMemory, of_worker: int) -> bool:
        """Note what a trial has used; return whether this is the first note of a GPU, which is of its only worker.

        Args:
            device: the GPU.
            memory: what its process has used of the GPU.
            of_worker: the bytes of the machine's memory that its process has.
        """
        known = self._memory.get(device)
        self._memory[device] = memory if known is None else known.with_peak_of(memory)
        self._of_a_worker = max(self._of_a_worker, of_worker)
        return known is None

    def workers_on(self, device: int) -> int | None:
        """Return how many workers are to share a GPU; None if that does not depend on memory."""
        if device not in self._devices:
            return None
        if device not in self._memory:
            return 1
        fit_into_machine = SHARE_OF_MEMORY * self._machine_memory / self._of_a_worker
        in_all, place = int(min(self._most_workers, fit_into_machine)), self._devices.index(device)
        here = in_all // len(self._devices) + (place < in_all % len(self._devices))
        return max(1, min(self._memory[device].parallel_trials, here))

    def described(self, device: int) -> str:
        """Return how many trials share a GPU and why, in words."""
        memory, count = self._memory[device], self.workers_on(device)
        of_a_trial, total = (f"{each / 1e9:.1f} GB" for each in (memory.of_a_trial, memory.total))
        limit = "" if count == memory.parallel_trials else f" (its memory has room for {memory.parallel_trials})"
        trials = "1 trial at a time" if count == 1 else f"{count} trials in parallel"
        return f"GPU {device}: {trials}{limit}, as the largest so far takes {of_a_trial} of {total}"

    def keep_for(self, device: int, number: int) -> None:
        """Keep a GPU for a trial that runs again alone, after those that it is kept for already."""
        self._alone[device].append(number)

    def alone_on(self, device: int) -> int | None:
        """Return the trial that a GPU is kept for; None if others may use it."""
        kept = self._alone.get(device)
        return kept[0] if kept else None

    def kept(self) -> list[int]:
        """Return the GPUs that are kept for a trial."""
        return [device for device, numbers in self._alone.items() if numbers]

    def share_again(self, device: int) -> int:
        """Note that the trial that a GPU was kept for has left it; return its number."""
        return self._alone[device].pop(0)
