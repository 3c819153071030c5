"""`hpsearch replay`: one trial of a study again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..search.wording import counted
from ..system.files import short_path
from .stored_command import read_command
from .study_file import make_trainer
from .trust import File, Given, Trust, admitted, announce
from .which_study import study_folder


def replay(
    number: Annotated[int, typer.Argument(help="Number of the trial.")],
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
    file: File = None,
    trust: Trust = False,
) -> None:
    """Train one trial again, alone, and say whether it made the same reports. For studies of `hpsearch run`.

    The exit code is 0 if it did, and 1 if it did not. The study file runs only if it lies in the current folder,
    outside of the study's output folder, or is given.

    \b
    hpsearch replay 7 runs/digits
    hpsearch replay 7 shared/digits --file studies/digits.py
    """
    folder = study_folder(study).resolve()
    allowed = Given(f"hpsearch replay {number}", file, trust)
    command = admitted(read_command(folder), folder, allowed)
    announce(command, allowed)
    plan = command.plan()
    search = {**plan.search, **command.search}
    objective = {name: search[name] for name in ("compute_objective", "direction") if name in search}
    again = make_trainer(plan, command).replay(folder.name, number, **objective)
    for note in again.notes:
        print(note)
    if not again.is_equal:
        print(f"trial {number} differs from its record: {again.first_difference}")
        raise typer.Exit(1)
    checkpoint = again.record.checkpoint
    weights = "no weights were kept" if checkpoint is None else f"weights in {short_path(checkpoint)}"
    print(f"trial {number} gave the same {counted(len(again.record.reports), 'report')}; {weights}")
