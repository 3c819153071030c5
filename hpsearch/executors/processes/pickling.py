"""Finds the part of a trainer or a study that cannot be pickled, and so cannot be sent to other processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...errors import StudyError
from ...search.study import Study
from .payload import Pickler

REMEDY = (
    "Open files, locks, connections and the like must be created where they are used: in model_init, in a callback's "
    "on_train_begin, or in the function that needs them."
)


def for_workers(study: Study) -> Study:
    """Return the settings without those that only the searching process needs, which may not be picklable."""
    return replace(study, space=_nothing, hp_name=None, start_with=())


def check_objectives(study: Study, where: str) -> None:
    """Check that the objectives and constraints of a search can be sent to `where`.

    Raises:
        StudyError: one of them cannot.
    """
    for argument, parts in (("compute_objective", study.objectives), ("constraints", study.constraints)):
        for part in parts:
            reason = problem(part)
            if reason is not None:
                raise StudyError(
                    f"{argument}: the function {part.name!r} cannot be sent to {where}, because it cannot be pickled "
                    f"({reason}). {REMEDY}"
                )


def culprit(recipe: object) -> tuple[str, str] | None:
    """Return the innermost attribute of a trainer that cannot be pickled and can be named, and the reason.

    Return None if the trainer can be pickled. A recipe that adapts a trainer has it as `trainer`.
    """
    if problem(recipe) is None:
        return None
    trainer = getattr(recipe, "trainer", recipe)
    for name, value in _parts(trainer):
        reason = problem(value)
        if reason is not None:
            for inner, each in _parts(value):
                inside = problem(each)
                if inside is not None:
                    return f"{name}{inner}", inside
            return name, reason
    return type(trainer).__name__, problem(trainer) or problem(recipe) or ""


def problem(value: object) -> str | None:
    """Return the reason why a value cannot be pickled, or None. The pickle, which may be large, is not kept."""
    try:
        Pickler(_Nowhere(), buffer_callback=lambda buffer: False).dump(value)
    except Exception as error:
        return f"{type(value).__name__}: {first_line(error)}"
    return None


class _Nowhere:
    """A stream that discards its input."""

    def write(self, content: Any) -> int:
        """Return the number of bytes."""
        return memoryview(content).nbytes


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error."""
    return str(error).partition("\n")[0]


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object, or the elements of a list or dict, each with its expression."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", each) for place, each in enumerate(value))
    else:
        yield from ((f".{key}", each) for key, each in getattr(value, "__dict__", {}).items())


def _nothing(trial: object) -> None:
    """Take the place of a search space in a worker, which needs none."""
