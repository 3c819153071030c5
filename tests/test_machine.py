"""What a process may use of the machine is what its container is given."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from hpsearch.system.machine import cores, memory

GB = 2**30
ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """Write what the kernel tells of control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "gb", "of_cores"),
    [
        ("0::/\n", {"memory.max": str(GB), "cpu.max": "100000 100000"}, 1, 1),
        (
            "0::/pod/box\n",
            {"pod/memory.max": str(GB), "pod/box/memory.max": "max", "pod/cpu.max": "150000 100000"},
            1,
            1,
        ),
        ("0::/pod/box\n", {"pod/memory.max": str(2 * GB), "pod/box/memory.max": str(GB)}, 1, ALL),
        ("0::/\n", {"memory.max": "max", "cpu.max": "max 100000"}, None, ALL),
        (
            "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            {
                "memory/memory.limit_in_bytes": str(GB),  # the container's own, which it sees at the top
                "cpu/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            1,
            1,
        ),
        (
            "4:memory:/\n3:cpu,cpuacct:/\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            None,
            ALL,
        ),
        ("", {}, None, ALL),
    ],
    ids=[
        "version 2",
        "a group around it",
        "the least counts",
        "no limit",
        "version 1",
        "no limit in version 1",
        "none",
    ],
)
def test_the_limits_of_a_container_count(
    tmp_path: Path, groups: str, files: dict[str, str], gb: int | None, of_cores: int
) -> None:
    root = machine(tmp_path, groups, files)
    assert memory(root) == (psutil.virtual_memory().total if gb is None else gb * GB)
    assert cores(root) == of_cores


def test_without_what_the_kernel_tells_all_of_the_machine_counts(tmp_path: Path) -> None:
    assert memory(tmp_path) == psutil.virtual_memory().total
    assert cores(tmp_path) == ALL
    assert 1 <= cores() <= (os.cpu_count() or 1)
    assert 0 < memory() <= psutil.virtual_memory().total
