"""`hpsearch doctor`: what this machine has, and what is missing; or what is damaged in a study."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import CheckpointError, StudyError
from ..search.store.read_study import STUDY_FILE, read_settings, read_trials
from ..search.store.stored_study import StoredStudy
from ..search.store.study_folder import check_own_files
from ..search.trial import TrialRecord
from ..system import machine
from ..version import __version__
from .best import model_in

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


def doctor(
    study: Annotated[Path | None, typer.Argument(help="Folder of a study to check.", show_default=False)] = None,
) -> None:
    """List versions, devices, installed and missing packages; or check a study's folder.

    Of a study it names all that is damaged and what to do, and changes nothing; exit code 1 if anything is.

    \b
    hpsearch doctor
    hpsearch doctor runs/digits
    """
    if study is None:
        _show_machine()
    elif _show_problems(study):
        raise typer.Exit(1)


def _show_problems(folder: Path) -> bool:
    """Say what is damaged in the folder of a study; return whether anything is."""
    if folder.name == STUDY_FILE:
        folder = folder.parent
    problems, count = _problems(folder)
    console = Console(highlight=False, soft_wrap=True)
    for each in problems:
        console.print(each, style="yellow", markup=False)
    verdict = f"{len(problems)} problems" if len(problems) > 1 else "1 problem" if problems else "sound"
    console.print(f"{folder}: {count} trials can be read; {verdict}", markup=False)
    return bool(problems)


def _problems(folder: Path) -> tuple[list[str], int]:
    """Return the problems of a study, in one line each, and the number of readable trials.

    Raises:
        StudyError: there is no study in the folder.
    """
    problems, settings = [], None
    try:
        check_own_files(folder)
        settings = read_settings(folder)
    except StudyError as error:
        problems.append(str(error))
    objectives = None if settings is None else len(StoredStudy.read(folder).objectives)
    trials = read_trials(folder, objectives)
    if settings is None and not problems:
        if not trials.records and not trials.problems:
            raise StudyError(f"There is no study in {str(folder)!r}: it has no {STUDY_FILE} and no trials.")
        problems.append(f"{STUDY_FILE} is missing; restore a copy, or repeat the call of the search")
    if settings is not None:
        from ..ledger.checkup import problems_of_storage

        problems += problems_of_storage(
            folder, settings, lambda: [each.number for each in read_trials(folder, objectives).records]
        )
    problems += [each for record in trials.records for each in _problems_of_weights(record, folder)]
    return [*trials.problems, *problems], len(trials.records)


def _problems_of_weights(record: TrialRecord, folder: Path) -> list[str]:
    """Return the problem of a trial's stored weights, if any; a running search may delete them meanwhile."""
    checkpoint = record.checkpoint
    if checkpoint is None or not record.state.is_counted:
        return []
    try:
        model_in(checkpoint, folder)
    except (CheckpointError, StudyError, OSError) as error:
        reason = str(error).partition(" Use another checkpoint")[0]
        remedy = f"restore them, or train the trial again: hpsearch replay {record.number}"
        return [f"the weights of trial {record.number}: {reason} ({remedy})"] if checkpoint.is_dir() else []
    return []


def _show_machine() -> None:
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
