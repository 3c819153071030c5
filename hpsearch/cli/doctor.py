"""`hpsearch doctor`: what this machine has, and what is missing."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import machine
from ..version import __version__

_NEEDED = ("torch", "transformers", "accelerate", "datasets", "optuna", "numpy", "safetensors")


@dataclass(frozen=True)
class _Extra:
    """A package that only some users need: what for, and what installs it."""

    package: str
    purpose: str
    installed_by: str


_EXTRAS = (
    _Extra("optuna-dashboard", "hpsearch dashboard", "hpsearch[dashboard]"),
    _Extra("plotly", "plots in hpsearch report", "hpsearch[report]"),
    _Extra("ray", "clusters: backend='ray'", "hpsearch[ray]"),
    _Extra("psycopg2-binary", "PostgreSQL storages", "hpsearch[postgresql]"),
    _Extra("scikit-learn", "f1 and others in study.toml", "scikit-learn"),
    _Extra("peft", "LoRA", "peft"),
)


def doctor() -> None:
    """Say which versions and devices are here, what is installed, and what is missing.

    \b
    hpsearch doctor
    """
    import torch

    grid = Table.grid(padding=(0, 2))
    grid.add_row("hpsearch", __version__)
    grid.add_row("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in _NEEDED:
        grid.add_row(name, _version(name) or Text("missing", style="bold red"))
    grid.add_row("cores", f"{machine.cores()}")
    grid.add_row("memory", f"{machine.memory() / 2**30:.0f} GiB")
    grid.add_row("GPUs", "\n".join(_gpus(torch)) or "none: trials train on the CPU")
    console = Console(highlight=False)
    console.print(grid)
    extras = Table.grid(padding=(0, 2))
    for each in _EXTRAS:
        version = _version(each.package)
        told = Text(version) if version else Text(f"not installed: pip install '{each.installed_by}'", style="yellow")
        extras.add_row(each.package, Text(each.purpose, style="dim"), told)
    console.print()
    console.print(extras)


def _gpus(torch: object) -> list[str]:
    cuda = torch.cuda  # type: ignore[attr-defined]
    found = []
    for place in range(cuda.device_count()):
        about = cuda.get_device_properties(place)
        found.append(f"{place}: {about.name}, {about.total_memory / 2**30:.0f} GiB")
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
