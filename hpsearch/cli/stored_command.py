"""The command in a study's folder, which may come from someone else: its values are checked when it is read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import StudyError, one_of
from ..search.store.read_study import read_own_json
from ..search.store.study_folder import COMMAND_FILE
from ..system.spelling import nearest_name
from .study_file import Command


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_time(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and value > 0)


# What `hpsearch run` records about the search: each option with a check of its value, and what is allowed.
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n_trials": (_is_count, "a whole number of at least 1"),
    "budget": (lambda value: type(value) in (int, float) and 1 <= value < math.inf, "a number of at least 1"),
    "max_resource": (_is_count, "a whole number of at least 1"),
    "n_jobs": (lambda value: type(value) is int, "a whole number"),
    "devices": (
        lambda value: isinstance(value, list) and all(type(each) is int for each in value),
        "a list of whole numbers",
    ),
    "trials_per_device": (lambda value: value == "auto" or _is_count(value), "a whole number of at least 1, or 'auto'"),
    "processes_per_trial": (_is_count, "a whole number of at least 1"),
    "placement": (lambda value: value in ("pack", "spread"), one_of(("pack", "spread"))),
    "repeats": (_is_count, "a whole number of at least 1"),
    "timeout": (_is_time, "a number of seconds above 0, or null"),
    "backend": (lambda value: value in ("optuna", "ray"), one_of(("optuna", "ray"))),
    "storage": (lambda value: isinstance(value, str), "a text"),
    "study_name": (lambda value: isinstance(value, str), "a text"),
    "preflight": (lambda value: type(value) is bool, "true or false"),
}


def read_command(study: Path) -> Command:
    """Read the command that a study was begun with, for the folder in which the study is now.

    Nothing that the command names is opened; see `admitted` for what may run.

    Raises:
        StudyError: the study was begun by a program of its own, or the file cannot be what `hpsearch run` wrote.
    """
    file = study / COMMAND_FILE
    try:
        command: Command | None = _checked(read_own_json(file))
    except FileNotFoundError:
        command = None
    except (OSError, ValueError, RecursionError) as error:
        raise StudyError(f"{str(file)!r} cannot be read: {error}. Run the study file again.") from error
    if command is None:
        raise StudyError(
            f"The study in {str(study)!r} was not started by `hpsearch run`: run its own program again to continue."
        )
    place = study.resolve()  # it may have been moved, or copied
    command.arguments["output_dir"] = str(place.parent)
    command.search["study_name"] = place.name
    return command


def _checked(found: object) -> Command:
    """Return the content of a command file as a command.

    Raises:
        ValueError: the content, or a part of it, cannot be what `hpsearch run` wrote.
    """
    fields = _mapping("the file", found)
    unknown = next((name for name in fields if name not in Command.__dataclass_fields__), None)
    if unknown is not None:
        raise ValueError(f"it has an unknown {unknown!r}; allowed: {one_of(Command.__dataclass_fields__)}")
    arguments, search = (_mapping(name, fields.get(name, {})) for name in ("arguments", "search"))
    for name in arguments:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"the argument {name!r} is not the name of a training argument")
    for name, value in search.items():
        if name not in _OPTIONS:
            raise ValueError(
                f"{name!r} is not an option of `hpsearch run`; allowed: {one_of(_OPTIONS)}."
                f"{nearest_name(name, _OPTIONS)}"
            )
        is_allowed, allowed = _OPTIONS[name]
        if not is_allowed(value):
            raise ValueError(f"{name} is {value!r}, which must be {allowed}")
    left_out = fields.get("left_out", [])
    if not isinstance(left_out, list) or not all(isinstance(each, str) for each in left_out):
        raise ValueError(f"left_out is {left_out!r}, which must be a list of names")
    file, folder = (_absolute_path(name, fields.get(name)) for name in ("file", "folder"))
    return Command(file, folder, arguments, search, left_out)


def _mapping(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r}, which must be a mapping")
    return dict(value)


def _absolute_path(name: str, value: object) -> str:
    """Return a path without links.

    Raises:
        ValueError: the value is not an absolute path.
    """
    if not isinstance(value, str) or not os.path.isabs(value) or "\0" in value:
        raise ValueError(f"{name} is {value!r}, which must be an absolute path")
    return os.path.realpath(value)  # a text that no file can be named raises UnicodeEncodeError, a ValueError
