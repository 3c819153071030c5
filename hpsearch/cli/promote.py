"""`hpsearch promote`: a trial is to train to completion."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..search.store.manual_promotion import promote as promote_by_hand
from ..search.store.study_folder import read_records
from ..search.trial import TrialState
from .which_study import study_folder, trial_of


def promote(
    number: Annotated[int, typer.Argument(help="Number of the trial.")],
    study: Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")] = None,
) -> None:
    """Let a trial that is paused, running or interrupted train to completion, whatever the rungs decide.

    The search that is at work in the folder takes it up as soon as a worker is free; else the next one does.

    \b
    hpsearch promote 7 runs/digits
    """
    folder = study_folder(study)
    promote_by_hand(folder, number)
    waits = trial_of(read_records(folder), number).state is TrialState.PAUSED
    print(f"trial {number} {'resumes when a worker is free' if waits else 'trains to completion'}")
