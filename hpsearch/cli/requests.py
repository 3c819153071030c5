"""The commands that make a request to a search that is running, or that will continue; and the list of requests."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ..errors import StudyError
from ..search.requests.make_request import when_it_continues
from ..search.requests.request import Kind, Request
from ..search.store.live_sessions import sessions_at_work
from ..searching.opened_study import OpenedStudy, open_study
from ..system.files import short_path
from ..system.json_types import JsonObject
from .json_output import JsonOption, print_json
from .values import seconds, value_of
from .which_study import say_problems, study_folder

Number = Annotated[int, typer.Argument(help="Number of the trial.")]
Study = Annotated[Path | None, typer.Argument(help="Folder of the study.", show_default="the newest")]
Like = Annotated[int | None, typer.Option("--like", help="Take missing parameters from this trial.")]
_OF_A_REQUEST = ("kind", "trial", "params", "arguments", "made")
# For commands with options of any name, such as --learning_rate 3e-4.
ANY_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


def requests(study: Study = None, as_json: JsonOption = False) -> None:
    """List the requests to a study that no search has fulfilled.

    \b
    hpsearch requests runs/digits
    hpsearch requests --json
    """
    opened = _opened(study)
    if as_json:
        print_json([_as_json(each) for each in opened.requests])
    else:
        print("\n".join(_in_words(opened)))
    say_problems(opened)


def _as_json(request: Request) -> JsonObject:
    values = request.to_json()
    return {"id": values.pop("id"), "command": str(request), **{name: values[name] for name in _OF_A_REQUEST}}


def _in_words(opened: OpenedStudy) -> list[str]:
    """Return a line for each request, when they are followed, and whether the search is paused."""
    pending = [each for each in opened.requests if each.kind is not Kind.PAUSE]
    lines = [f"{each}, made {_clock(each.made)}" for each in pending]
    if pending:
        folder = Path(opened.study.folder)
        is_running = bool(sessions_at_work(folder))
        when = "by the search that is running, when it can" if is_running else when_it_continues(folder)
        lines.append(f"followed {when}")
    return [*lines, *pause_in_words(opened)] or ["no pending requests"]


def pause_in_words(opened: OpenedStudy) -> list[str]:
    """Return a sentence that says since when a search is paused, and how it continues; nothing if it is not."""
    return [
        f"the search has been paused by hand since {_clock(each.made)}: "
        f"hpsearch unpause {shlex.quote(short_path(opened.study.folder))} lets it continue"
        for each in opened.requests
        if each.kind is Kind.PAUSE
    ]


def _clock(seconds_since_1970: float) -> str:
    return datetime.fromtimestamp(seconds_since_1970).astimezone().strftime("%Y-%m-%d %H:%M")


def stop(number: Number, study: Study = None) -> None:
    """Stop a trial with the value that it has; it may still be the best.

    \b
    hpsearch stop 7 runs/digits
    """
    print(_opened(study).stop(number))


def promote(number: Number, study: Study = None) -> None:
    """Train a trial that is paused, running or interrupted to completion, whatever the rungs decide.

    \b
    hpsearch promote 7 runs/digits
    """
    print(_opened(study).promote(number))


def retry(number: Number, study: Study = None) -> None:
    """Begin a new trial with the parameters of one that has ended.

    \b
    hpsearch retry 7 runs/digits
    """
    print(_opened(study).retry(number))


def add(context: typer.Context, like: Like = None) -> None:
    """Begin a new trial with parameters of your own; the sampler chooses missing ones.

    \b
    hpsearch add --learning_rate 3e-4 runs/digits
    hpsearch add --like 7 --learning_rate 3e-4 runs/digits
    """
    params, study = _options(context.args)
    print(_opened(study).add(params, like=like))


def extend(context: typer.Context, number: Number) -> None:
    """Begin a new trial that continues from the checkpoint of another one, with a schedule of the new length.

    \b
    hpsearch extend 7 --num_train_epochs 10 runs/digits
    """
    arguments, study = _options(context.args)
    print(_opened(study).extend(number, **arguments))


def pause(study: Study = None) -> None:
    """Pause the running search: its trials write checkpoints and leave, and none begins.

    \b
    hpsearch pause runs/digits
    """
    print(_opened(study).pause())


def unpause(study: Study = None) -> None:
    """Let a paused search continue.

    \b
    hpsearch unpause runs/digits
    """
    print(_opened(study).unpause())


def set(
    settings: Annotated[list[str], typer.Argument(help="n_trials=100 or timeout=2h; then the folder of the study.")],
) -> None:
    """Change the number of trials or the time limit of the running search, until it ends.

    \b
    hpsearch set n_trials=100 timeout=2h runs/digits
    """
    given = dict(each.split("=", 1) for each in settings if "=" in each and not Path(each).exists())
    study = _one_study([each for each in settings if "=" not in each or Path(each).exists()])
    values = {name: seconds(text) if name == "timeout" else value_of(text) for name, text in given.items()}
    print(_opened(study).set(**values))


def _opened(study: Path | None) -> OpenedStudy:
    return open_study(study_folder(study))


def _options(texts: Sequence[str]) -> tuple[Mapping[str, object], Path | None]:
    """Return options of any name with their values, and the study.

    Raises:
        StudyError: an option has no value, or there are several studies.
    """
    given: dict[str, object] = {}
    bare: list[str] = []
    rest = list(texts)
    while rest:
        text = rest.pop(0)
        if not text.startswith("--"):
            bare.append(text)
            continue
        name, equals, own = text.removeprefix("--").partition("=")
        if not equals:
            if not rest or not name:
                raise StudyError(f"{text} has no value; write it as {text} 0.1.")
            own = rest.pop(0)
        given[name] = value_of(own)
    return given, _one_study(bare)


def _one_study(texts: Sequence[str]) -> Path | None:
    if len(texts) > 1:
        raise StudyError(f"Expected the folder of one study, but got {', '.join(texts)}; options begin with --.")
    return Path(texts[0]) if texts else None
