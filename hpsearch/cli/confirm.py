"""`hpsearch confirm`: the best trials of a study, trained again with other seeds."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from ..search.metrics.replicas import runs_of_trial
from ..search.requests.make_request import when_it_continues
from ..search.result.best_run import SearchSummary
from ..search.result.chance_of_best import chance_of_best
from ..search.store.live_sessions import sessions_at_work
from ..search.store.study_folder import COMMAND_FILE
from ..search.wording import format_chance
from ..searching.opened_study import open_study
from ..system.files import short_path
from .requests import Study
from .run_and_resume import continue_study
from .stored_command import read_command
from .trust import File, Given, Trust, admitted
from .which_study import study_folder

# With a chance below this, more runs are suggested, and how many.
_CLEAR, _MORE = 0.9, 3
_TOP = 4

Repeats = Annotated[int, typer.Option(min=2, help="Most training runs of each trial, those that it has had included.")]
Top = Annotated[int, typer.Option(min=1, help="How many of the best trials to train again.")]


def confirm(
    study: Study = None, repeats: Repeats = 5, top: Top = _TOP, file: File = None, trust: Trust = False
) -> None:
    """Train the best trials again with other seeds, until the best of them is clear.

    A search that is running follows. Otherwise a study that `hpsearch run` began continues here; the last lines say
    which trial is the best then, and which command comes next.

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
        before = {each.number for each in summary.best()}
        continue_study(folder, given)
        print("\n".join(next_steps(open_study(folder), before, repeats, top)))


def next_steps(summary: SearchSummary, before: Collection[int], repeats: int, top: int = _TOP) -> list[str]:
    """Return which trial is the best after all repeats, and which command to use next, a line each.

    Args:
        summary: of the study.
        before: the numbers of the trials that were the best before.
        repeats: the most training runs of each trial that were requested.
        top: the number of trials that they were requested for.
    """
    best, study = summary.best(), shlex.quote(short_path(summary.study.folder))
    if not best:
        return []
    if len(summary.study.objectives) > 1:
        front = ", ".join(str(each.number) for each in best)
        return [f"on the Pareto front of means: {front}; choose one: hpsearch best {study} --trial {best[0].number}"]
    [number] = (each.number for each in best)
    chance = (chance_of_best(summary.records, summary.objective) or {}).get(number)
    is_same = "still the best" if number in before else "the best now"
    said = [f"trial {number} is {is_same}{'' if chance is None else f', with a chance of {format_chance(chance)}'}"]
    export = "" if best[0].checkpoint is None else " --export model"
    what = "its parameters" if best[0].checkpoint is None else "its parameters, and its model"
    said.append(f"{what}: hpsearch best {study}{export}")
    has_all_runs = len(runs_of_trial(summary.records, number).records) >= repeats
    if chance is not None and chance < _CLEAR and has_all_runs:
        which = "" if top == _TOP else f" --top {top}"
        said.append(f"to be surer: hpsearch confirm {study} --repeats {repeats + _MORE}{which}")
    return said
