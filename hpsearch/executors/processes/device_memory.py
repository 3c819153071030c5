"""The memory of a GPU: how much of it a trial has used, and how many such trials share it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

# Of the memory of a GPU, and of that of the machine.
SHARE_OF_MEMORY = 0.9
# The most that CUDA's context of a process takes, with the kernels of its libraries; the rest is of other programs.
_LARGEST_CONTEXT = 2**30


@dataclass(frozen=True)
class DeviceMemory:
    """What one process has used of a GPU, in bytes.

    Attributes:
        total: of the GPU.
        peak: the most that torch has reserved in the process so far.
        others: what is used beside that: CUDA's context of the process, and other processes.
    """

    total: int
    peak: int
    others: int

    @classmethod
    def measured(cls) -> DeviceMemory | None:
        """Return what this process has used of its GPU; None if it has used none."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return None
        free, total = torch.cuda.mem_get_info()
        return cls(total, torch.cuda.max_memory_reserved(), max(0, total - free - torch.cuda.memory_reserved()))

    def with_peak_of(self, other: DeviceMemory) -> DeviceMemory:
        """Return this with the larger peak of the two."""
        return dataclasses.replace(self, peak=max(self.peak, other.peak))

    @property
    def of_a_trial(self) -> int:
        """The number of bytes that a process with such a trial takes, its context of CUDA included."""
        return self.peak + min(self.others, _LARGEST_CONTEXT)

    @property
    def parallel_trials(self) -> int:
        """The number of such trials that fit into nine tenths of the GPU, beside other programs; at least 1.

        `others` must have been measured while one process of the search used the GPU.

        >>> gib = 2**30
        >>> DeviceMemory(total=80 * gib, peak=8 * gib, others=gib // 2).parallel_trials
        8
        >>> DeviceMemory(total=80 * gib, peak=8 * gib, others=40 * gib).parallel_trials  # another program has 39 GiB
        3
        """
        of_other_programs = max(0, self.others - _LARGEST_CONTEXT)
        room = SHARE_OF_MEMORY * self.total - of_other_programs
        return max(1, math.floor(room / max(1, self.of_a_trial)))
