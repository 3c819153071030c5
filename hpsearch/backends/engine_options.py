"""Options of the engines that scripts written for transformers pass through: taken, taken with a notice, or refused."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import StudyError, one_of
from ..system.spelling import nearest_name

# Options that an earlier version had.
_REMOVED = {
    "paused_memory": "the checkpoints of paused trials are on disk. If the disk is slow, put output_dir on a RAM disk, "
    "such as /dev/shm, and copy the study's folder away afterwards."
}
# Options of `tune`.
_FOR_FUNCTIONS = {
    "max_resource": "it is the last step of a plain function, which hpsearch.tune or hpsearch run searches; a trainer "
    "knows its own length"
}


def _any_value(value: object) -> bool:
    return True


def _no_value(value: object) -> bool:
    """Return False, whatever the value."""
    return False


@dataclass(frozen=True)
class EngineOption:
    """An option of the engine itself.

    Attributes:
        instead: what to do where the option is refused.
        notice: says what the search does in place of the option.
        takes: whether a value changes nothing about the result of the search.
    """

    instead: str = ""
    notice: str = ""
    takes: Callable[[Any], bool] = _no_value

    @classmethod
    def harmless(cls, notice: str) -> EngineOption:
        """Return an option whose values change nothing about the result of a search."""
        return cls(notice=notice, takes=_any_value)


def take_options(
    engine: str,
    given: Mapping[str, object],
    options: Iterable[str],
    known: Mapping[str, EngineOption],
    arguments: Iterable[str] = (),
) -> tuple[dict[str, object], list[str]]:
    """Return those of the `given` options that the backend takes, and a notice of those that it does not need.

    An option of the engine that is None was not given.

    Args:
        engine: its name.
        given: the options that the user gave, by name.
        options: the names of those that the backend takes.
        known: the options of the engine itself that the backend takes with some values only, or not at all.
        arguments: the names of the arguments of the search itself, one of which may have been misspelled.

    Raises:
        StudyError: some are refused; the message names all of them.
    """
    options = tuple(options)
    taken, notices, refused, are_unknown = {}, [], [], False
    for name, value in given.items():
        option = known.get(name)
        if name in _REMOVED:
            refused.append(f"{_shown(name, value)} was removed: {_REMOVED[name]}")
        elif name in _FOR_FUNCTIONS:
            refused.append(f"{_shown(name, value)} is not taken: {_FOR_FUNCTIONS[name]}.")
        elif option is None and name not in options:
            near = nearest_name(name, [*options, *arguments])
            refused.append(f"{_shown(name, value)} is unknown.{near}")
            are_unknown = True
        elif option is None:
            taken[name] = value
        elif value is None:
            continue
        elif not option.takes(value):
            refused.append(f"{_shown(name, value)} is not taken: {option.instead}.")
        else:
            if name in options:
                taken[name] = value
            if option.notice:
                notices.append(f"{name}: {option.notice}")
    if refused:
        raise StudyError(_refusal(engine, refused, options if are_unknown else ()))
    return taken, [f"Options of {engine}, and what the search does: {'; '.join(notices)}."] if notices else []


def _shown(name: str, value: object) -> str:
    return f"{name}={reprlib.repr(value)}"


def _refusal(engine: str, refused: list[str], options: Iterable[str]) -> str:
    where = f"hyperparameter_search(backend={engine!r})"
    lines = [f"{where}: {refused[0]}"]
    if len(refused) > 1:
        lines = [f"{where} does not take {len(refused)} of its options:", *(f"  {each}" for each in refused)]
    if options:
        lines.append(f"The {engine} backend takes {one_of(options)}.")
    return "\n".join(lines)
