"""`hpsearch confirm`: the best trials of a study, trained again with other seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..search.requests.make_request import when_it_continues
from ..search.store.live_sessions import sessions_at_work
from ..search.store.study_folder import COMMAND_FILE
from ..searching.opened_study import open_study
from .requests import Study
from .run_and_resume import continue_study
from .stored_command import read_command
from .trust import File, Given, Trust, admitted
from .which_study import study_folder

Repeats = Annotated[int, typer.Option(min=2, help="Most training runs of each trial, those that it has had included.")]
Top = Annotated[int, typer.Option(min=1, help="How many of the best trials to train again.")]


def confirm(study: Study = None, repeats: Repeats = 5, top: Top = 4, file: File = None, trust: Trust = False) -> None:
    """Train the best trials again with other seeds, until the best of them is clear.

    A search that is running follows. Otherwise a study that `hpsearch run` began continues here.

    \b
    hpsearch confirm
    hpsearch confirm runs/digits --repeats 5 --top 4
    """
    folder = study_folder(study)
    is_for_another = bool(sessions_at_work(folder)) or not (folder / COMMAND_FILE).exists()
    given = Given("hpsearch confirm", file, trust)
    if not is_for_another:
        admitted(read_command(folder), folder, given)  # raises before anything is requested
    summary = open_study(folder)
    told = summary.confirm(repeats=repeats, top=top)
    if is_for_another:
        print(told)
    else:
        print(told.removesuffix(f", {when_it_continues(Path(summary.study.folder))}"))
        continue_study(folder, given)
