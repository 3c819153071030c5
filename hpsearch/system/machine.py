"""The cores and the memory that this process may use, within the limits of its container.

Sources: the kernel's documentation of control groups, version 2 (`cpu.max`, `memory.max`) and version 1
(`cpu.cfs_quota_us`, `memory.limit_in_bytes`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_ROOT = Path("/")
# The names of processes that are workers begin so; a number follows.
WORKER = "worker"


def whereabouts() -> str:
    """Return where this process trains, in words: the machine, the worker if it is one, and the GPU if it uses any.

    Examples:
        ``"node-7, worker 2, GPU 3 (NVIDIA H100 80GB HBM3)"``
    """
    here = [platform.node() or "this machine"]
    process = multiprocessing.current_process()
    if process.name.startswith(WORKER):
        here.append(process.name)
    torch = sys.modules.get("torch")  # which is there where a GPU is used; to ask must not touch one
    if torch is not None and torch.cuda.is_initialized():
        index = torch.cuda.current_device()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        number = visible[index] if index < len(visible) and visible[index] else str(index)
        here.append(f"GPU {number} ({torch.cuda.get_device_name(index)})")
    return ", ".join(here)


def cores(root: Path = _ROOT) -> int:
    """Return how many cores this process may use: those it is bound to, and no more than its container is given.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas: list[float] = []
    for text in _limits(root, "cpu", "cpu.max"):
        quota, _, period = text.partition(" ")
        quotas += [_number(quota) / _number(period or "100000")]
    periods = [_number(text) for text in _limits(root, "cpu", "cpu.cfs_period_us")]
    quotas += [
        _number(text) / period
        for text, period in zip(_limits(root, "cpu", "cpu.cfs_quota_us"), periods, strict=False)
        if not text.startswith("-")  # no limit
    ]
    return max(1, int(min([bound, *quotas])))


def memory(root: Path = _ROOT) -> int:
    """Return how many bytes of memory this process and its children may use: the machine's, or those of its container.

    Args:
        root: where ``proc`` and ``sys`` are.
    """
    limits = [*_limits(root, "memory", "memory.max"), *_limits(root, "memory", "memory.limit_in_bytes")]
    return int(min([psutil.virtual_memory().total, *map(_number, limits)]))


def memory_of(pid: int) -> int:
    """Return the resident memory of a process in bytes, where possible without shared pages of files; 0 if it ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        used = process.memory_info()
        if hasattr(used, "shared"):
            return int(used.rss) - int(used.shared)
        with contextlib.suppress(psutil.AccessDenied):  # slower, and not for everybody everywhere
            return int(process.memory_full_info().uss)
        return int(used.rss)
    return 0


def _limits(root: Path, controller: str, file: str) -> Iterator[str]:
    """Yield what a file of the control groups of this process says: of its own one, and of all that this is in."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, names, own = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / (controller if names else "")
        group = PurePosixPath(own.lstrip("/"))
        for each in (group, *group.parents) if group.name else (group,):
            with contextlib.suppress(OSError):
                yield (mounted / each / file).read_text().strip()


def _number(text: str) -> float:
    return float("inf") if text == "max" else float(text)
