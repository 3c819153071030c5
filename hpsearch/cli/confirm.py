"""`hpsearch confirm`: the best trials of a study, trained again with other seeds."""

from __future__ import annotations

from typing import Annotated

import typer

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
    print(open_study(folder).confirm(repeats=repeats, top=top))
    if not is_for_another:
        continue_study(folder, given)
