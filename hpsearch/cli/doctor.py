"""`hpsearch doctor`: what this machine has, and what is missing; or what is damaged in a study."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import CheckpointError, StudyError
from ..search.store.read_study import STUDY_FILE, read_settings, read_trials
from ..search.store.stored_study import StoredStudy
from ..search.store.study_folder import check_own_files
from ..search.trial_record import TrialRecord
from ..search.wording import counted
from ..system import machine
from ..system.json_types import JsonObject
from ..version import __version__
from .best import model_in
from .json_output import JsonOption, print_json

_NEEDED = ("torch", "transformers", "accelerate", "datasets", "optuna", "numpy", "safetensors")


@dataclass(frozen=True)
class _Extra:
    """A package that only some users need: what for, and what installs it."""

    package: str
    purpose: str
    installed_by: str

    @property
    def pip(self) -> str:
        """The command that installs it."""
        return f"pip install '{self.installed_by}'"


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
    as_json: JsonOption = False,
) -> None:
    """List versions, devices, installed and missing packages; or check a study's folder.

    Of a study it names all that is damaged and what to do, and changes nothing; exit code 1 if anything is.

    \b
    hpsearch doctor
    hpsearch doctor runs/digits
    """
    if study is None:
        machine_now = _machine()
        print_json(machine_now) if as_json else _show_machine(machine_now)
        return
    folder = study.parent if study.name == STUDY_FILE else study
    problems, count = _problems(folder)
    if as_json:
        print_json({"folder": str(folder), "trials": count, "problems": problems})
    else:
        _show_problems(folder, problems, count)
    if problems:
        raise typer.Exit(1)


def _show_problems(folder: Path, problems: Sequence[str], count: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for each in problems:
        console.print(each, style="yellow", markup=False)
    verdict = counted(len(problems), "problem") if problems else "sound"
    console.print(f"{folder}: {counted(count, 'trial')} can be read; {verdict}", markup=False)


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


def _machine() -> JsonObject:
    """Return what this machine has."""
    import torch

    return {
        "hpsearch": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in _NEEDED},
        "cores": machine.cores(),
        "memory": machine.memory(),
        "gpus": _gpus(torch),
        "extras": [
            {"package": each.package, "purpose": each.purpose, "version": _version(each.package), "install": each.pip}
            for each in _EXTRAS
        ],
    }


def _show_machine(found: JsonObject) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_row("hpsearch", found["hpsearch"])
    grid.add_row("Python", f"{found['python']} on {found['system']}")
    for name, version in found["packages"].items():
        grid.add_row(name, version or Text("missing", style="bold red"))
    grid.add_row("cores", f"{found['cores']}")
    grid.add_row("memory", _gibibytes(found["memory"]))
    gpus = [f"{each['index']}: {each['name']}, {_gibibytes(each['memory'])}" for each in found["gpus"]]
    grid.add_row("GPUs", "\n".join(gpus) or "none: trials train on the CPU")
    console = Console(highlight=False)
    console.print(grid)
    extras = Table.grid(padding=(0, 2))
    for each in found["extras"]:
        missing = Text(f"not installed: {each['install']}", style="yellow")
        version = Text(each["version"]) if each["version"] else missing
        extras.add_row(each["package"], Text(each["purpose"], style="dim"), version)
    console.print()
    console.print(extras)


def _gibibytes(size: float) -> str:
    return f"{size / 2**30:.0f} GiB"


def _gpus(torch: Any) -> list[JsonObject]:
    found = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        found.append({"index": index, "name": about.name, "memory": about.total_memory})
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
