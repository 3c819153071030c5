"""`hpsearch run` and `hpsearch resume`: the search of a study file."""

from __future__ import annotations

import os
import shlex
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import SearchInterrupted
from ..search.listener import SearchListener, showing
from ..system.files import short_path
from .stored_command import read_command
from .study_file import Command, LeavesCommand, make_trainer
from .trust import File, Given, Trust, admitted, announce, speaks
from .values import numbers, seconds, settings, trials_sharing_a_device
from .which_study import study_folder


class BackendName(StrEnum):
    """The backends that run a search."""

    OPTUNA = "optuna"
    RAY = "ray"


class PlacementName(StrEnum):
    """Placements of the processes of a trial on the nodes of a cluster."""

    PACK = "pack"
    SPREAD = "spread"


StudyFile = Annotated[Path, typer.Argument(help="Python file that defines study = SearchPlan(...), or TOML file.")]
Trials = Annotated[int | None, typer.Option("--n-trials", "-n", min=1, help="Total number of trials of the study.")]
Budget = Annotated[float | None, typer.Option("--budget", min=1, help="Budget of the study, in full training runs.")]
Repeats = Annotated[
    int | None, typer.Option("--repeats", min=1, help="Most training runs of a trial, each with another seed.")
]
MaxResource = Annotated[
    int | None, typer.Option("--max-resource", min=1, help="Last step that a plain function reports; for rungs.")
]
Jobs = Annotated[
    int | None, typer.Option("--n-jobs", "-j", help="Parallel trials on this machine; -1: as many as fit.")
]
Devices = Annotated[str | None, typer.Option(help="GPUs to use, such as 0,1; one trial on each.")]
Processes = Annotated[
    int | None,
    typer.Option("--processes-per-trial", min=1, help="Processes that train each trial together, each on its own GPU."),
]
Sharing = Annotated[
    str | None,
    typer.Option("--trials-per-device", help="Trials that share a GPU; auto: as many as fit into its memory."),
]
Placement = Annotated[
    PlacementName | None,
    typer.Option("--placement", help="On Ray: pack the processes of a trial on few nodes, or spread them."),
]
Time = Annotated[str | None, typer.Option(help="End after 90s, 30m, 2h or 1d; none: no limit.")]
Backend = Annotated[BackendName | None, typer.Option("--backend", help="Run on this machine, or on a Ray cluster.")]
Storage = Annotated[str | None, typer.Option(help="URL of a database, a file ending in .log, or journal.")]
Name = Annotated[str | None, typer.Option("--study-name", help="Name of the study and its folder.")]
Output = Annotated[str | None, typer.Option(help="Parent folder of the study's folder.")]
Preflight = Annotated[
    bool | None, typer.Option("--preflight/--no-preflight", help="Try one step and two batches before the first trial.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A training argument, or a parameter of the space, name=value; repeatable."),
]


def run(
    file: StudyFile,
    n_trials: Trials = None,
    budget: Budget = None,
    repeats: Repeats = None,
    max_resource: MaxResource = None,
    n_jobs: Jobs = None,
    devices: Devices = None,
    trials_per_device: Sharing = None,
    processes_per_trial: Processes = None,
    placement: Placement = None,
    time: Time = None,
    backend: Backend = None,
    storage: Storage = None,
    study_name: Name = None,
    output: Output = None,
    preflight: Preflight = None,
    set_: Set = None,
) -> None:
    """Search, as a study file says. The same command again continues.

    \b
    hpsearch run study.py --n-trials 50 --time 2h
    hpsearch run study.py --n-jobs 4 --set num_train_epochs=3 --set bf16=true
    hpsearch run study.toml --repeats 3
    hpsearch run function.py --max-resource 50
    hpsearch run study.py --devices 0,1 --storage journal --output runs
    hpsearch run study.py --devices 0,1,2,3 --processes-per-trial 2
    hpsearch run study.py --trials-per-device auto
    hpsearch run study.py --backend ray --processes-per-trial 2 --placement spread
    """
    search = _options(
        n_trials,
        n_jobs,
        devices,
        trials_per_device,
        time,
        budget=budget,
        repeats=repeats,
        max_resource=max_resource,
        processes_per_trial=processes_per_trial,
        placement=placement,
        backend=backend,
        storage=storage,
        study_name=study_name,
        preflight=preflight,
    )
    arguments = settings(set_ or [])
    if output is not None:
        arguments["output_dir"] = output
    _search(Command(str(file.resolve()), os.getcwd(), arguments, search))


def resume(
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    n_trials: Trials = None,
    budget: Budget = None,
    repeats: Repeats = None,
    max_resource: MaxResource = None,
    n_jobs: Jobs = None,
    devices: Devices = None,
    trials_per_device: Sharing = None,
    processes_per_trial: Processes = None,
    placement: Placement = None,
    time: Time = None,
    storage: Storage = None,
    set_: Set = None,
    file: File = None,
    trust: Trust = False,
) -> None:
    """Continue a study that `hpsearch run` began, with the options it was begun with, or others.

    The study file runs only if it lies in the current folder, outside of the study's output folder, or is given.

    \b
    hpsearch resume
    hpsearch resume runs/digits --n-trials 100 --time none
    hpsearch resume shared/digits --file studies/digits.py
    """
    folder = study_folder(study)
    search = _options(
        n_trials,
        n_jobs,
        devices,
        trials_per_device,
        time,
        budget=budget,
        repeats=repeats,
        max_resource=max_resource,
        processes_per_trial=processes_per_trial,
        placement=placement,
        storage=storage,
    )
    continue_study(folder, Given("hpsearch resume", file, trust, settings(set_ or []), search))


def continue_study(folder: Path, given: Given) -> None:
    """Continue the search of a study that `hpsearch run` began.

    Raises:
        StudyError: a part of its command needs trust, or is secret.
    """
    command = admitted(read_command(folder), folder, given)
    announce(command, given)
    _search(command)


def _options(
    n_trials: int | None,
    n_jobs: int | None,
    devices: str | None,
    sharing: str | None,
    time: str | None,
    **others: object,
) -> dict[str, object]:
    """Return the arguments of the search that were given; a timeout that is None lifts the limit."""
    given = {
        "n_trials": n_trials,
        "n_jobs": n_jobs,
        "devices": None if devices is None else numbers(devices),
        "trials_per_device": trials_sharing_a_device(sharing),
        **others,
    }
    plain = {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}
    search = {name: value for name, value in plain.items() if value is not None}
    return search if time is None else {**search, "timeout": seconds(time)}


def _search(command: Command) -> None:
    from ..reports.console import console_listener
    from ..reports.tables import describe_best, trials_table

    with showing(console_listener(is_shown=speaks()), f"importing {os.path.relpath(command.file)}"):
        plan = command.plan()
    shown = {**plan.search, **command.search}.get("progress", True)
    listener = shown if isinstance(shown, SearchListener) else console_listener(is_shown=bool(shown))
    with showing(listener, "making the trainer and its data"):
        trainer = make_trainer(plan, command)
    leaving = LeavesCommand(command, listener)
    search, names = plan.settings(command.arguments, {**command.search, "progress": leaving}, trainer)
    if names and speaks():
        print(
            f"not searched, as --set gives them: {', '.join(f'{name}={command.arguments[name]!r}' for name in names)}"
        )
    try:
        found = trainer.hyperparameter_search(**search)
    except SearchInterrupted as interruption:
        if interruption.command is not None and leaving.folder is not None:
            interruption.command = f"hpsearch resume {shlex.quote(str(leaving.folder))}"
        raise
    best = found if isinstance(found, list) else [found]
    if not speaks():
        return
    summary = best[0].run_summary
    console = Console(highlight=False)
    console.print(trials_table(summary.study, summary.records, has_heading=not shown))
    for each in best:
        console.print(describe_best(each, has_test_set=not shown), soft_wrap=not console.is_terminal, markup=False)
    folder = shlex.quote(short_path(summary.study.folder))
    console.print(f"report: hpsearch report {folder}", style="dim", soft_wrap=True, markup=False)
