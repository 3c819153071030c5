"""The memory that a stage of a run used: construction, training, evaluation, prediction."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from ..arguments import TrainingArguments

_SECONDS_BETWEEN_SAMPLES = 0.001


class MemoryTracker:
    """Measures the stages of one run, if `skip_memory_metrics=False`; a stage inside another one is not measured.

    For every stage: `<stage>_mem_cpu_alloc_delta`, the resident memory of the process at its end minus that at its
    start, in bytes (negative if it gave memory back), and `<stage>_mem_cpu_peaked_delta`, by how much the highest
    value, sampled every millisecond, was above that at its end (never negative); the sum of the two is what the stage
    needed. The same for the accelerator (`_mem_gpu_`), as torch accounts for it. The figures of ``init`` (the model)
    are given once, with those of the first stage after it. Only the main process measures.

    Examples:
        >>> tracker = MemoryTracker(TrainingArguments("out", use_cpu=True, skip_memory_metrics=False))
        >>> with tracker.stage("train"):
        ...     sorted(tracker.stop("train"))
        ['train_mem_cpu_alloc_delta', 'train_mem_cpu_peaked_delta']
    """

    def __init__(self, args: TrainingArguments) -> None:
        self._is_on = not args.skip_memory_metrics and args.process_index == 0
        self._device = _DeviceMemory.of(args.device)
        self._stage: str | None = None
        self._sampler: _PeakSampler | None = None
        self._pending: dict[str, int] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the block as stage `name`; call `stop(name)` inside it for its figures."""
        self.start(name)
        try:
            yield
            self.stop(name)
        finally:
            if self._stage == name:
                self.abandon()

    def start(self, stage: str) -> None:
        """Begin to measure `stage`, unless another one is being measured."""
        if not self._is_on or self._stage is not None:
            return
        self._stage = stage
        gc.collect()
        if self._device is not None:
            self._device.start()
        self._sampler = _PeakSampler()
        self._sampler.start()
        if stage == "init":
            self._pending["before_init_mem_cpu"] = self._sampler.begin
            if self._device is not None:
                self._pending["before_init_mem_gpu"] = self._device.begin

    def stop(self, stage: str) -> dict[str, int]:
        """Return the figures of `stage`; empty if it was not measured."""
        if self._stage != stage or self._sampler is None:
            return {}
        gc.collect()
        end, peak = self._sampler.stop()
        figures = {
            f"{stage}_mem_cpu_alloc_delta": end - self._sampler.begin,
            f"{stage}_mem_cpu_peaked_delta": max(0, peak - end),
        }
        if self._device is not None:
            figures.update({f"{stage}_mem_gpu_{name}": value for name, value in self._device.stop().items()})
        self._stage = self._sampler = None
        if stage == "init":
            self._pending.update(figures)
            return {}
        pending, self._pending = self._pending, {}
        return {**pending, **figures}

    def abandon(self) -> None:
        """Stop measuring, whatever stage it is."""
        if self._sampler is not None:
            self._sampler.stop()
        self._stage = self._sampler = None


class _PeakSampler(threading.Thread):
    """Looks at the resident memory of this process, again and again, and remembers the highest value."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process()
        self._is_over = threading.Event()
        self.begin = self._peak = self._resident()

    def run(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN_SAMPLES):
            self._peak = max(self._peak, self._resident())

    def stop(self) -> tuple[int, int]:
        self._is_over.set()
        self.join()
        end = self._resident()
        return end, max(self._peak, end)

    def _resident(self) -> int:
        return int(self._process.memory_info().rss)


@dataclass
class _DeviceMemory:
    """The memory that torch allocated on the accelerator; `module` is torch.cuda or its like."""

    module: Any
    begin: int = 0

    @classmethod
    def of(cls, device: torch.device) -> _DeviceMemory | None:
        module: Any = None if device.type == "cpu" else torch.get_device_module(device)
        return cls(module) if hasattr(module, "max_memory_allocated") else None

    def start(self) -> None:
        self.module.reset_peak_memory_stats()
        self.module.empty_cache()
        self.begin = int(self.module.memory_allocated())

    def stop(self) -> dict[str, int]:
        self.module.empty_cache()
        end, peak = int(self.module.memory_allocated()), int(self.module.max_memory_allocated())
        return {"alloc_delta": end - self.begin, "peaked_delta": max(0, peak - end)}
