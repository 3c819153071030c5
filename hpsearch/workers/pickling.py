"""What travels to other processes has to be picklable; if it is not, which part of it is at fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..errors import StudyError
from ..search.study import Study
from .parcel import Pickler

REMEDY = (
    "Open files, locks, connections and the like must be made where they are used: in model_init, in a callback's "
    "on_train_begin, or in the function that needs them."
)


def for_workers(study: Study) -> Study:
    """Return the settings without what only the process that searches needs, which may not be picklable."""
    return replace(study, space=_nothing, hp_name=None, start_with=())


def check_objectives(study: Study, where: str) -> None:
    """Check that the settings of a search can be sent to `where`: its objectives and constraints.

    Raises:
        StudyError: they cannot.
    """
    for argument, parts in (("compute_objective", study.objectives), ("constraints", study.constraints)):
        for part in parts:
            reason = problem(part)
            if reason is not None:
                raise StudyError(
                    f"{argument}: the function {part.name!r} cannot be sent to {where}, because it cannot be pickled "
                    f"({reason}). {REMEDY}"
                )


def culprit(recipe: Any) -> tuple[str, str] | None:
    """Return which attribute of a trainer cannot be pickled, the innermost one that can be named, and why.

    None if the trainer can be pickled.
    """
    whole = problem(recipe)
    if whole is None:
        return None
    for name, value in _parts(recipe):
        reason = problem(value)
        if reason is not None:
            for inner, each in _parts(value):
                inside = problem(each)
                if inside is not None:
                    return f"{name}{inner}", inside
            return name, reason
    return type(recipe).__name__, whole


def problem(value: Any) -> str | None:
    """Return why something cannot be pickled; None if it can. It is pickled into nowhere: it may be large."""
    try:
        Pickler(_Nowhere(), buffer_callback=lambda buffer: False).dump(value)
    except Exception as error:
        return f"{type(value).__name__}: {first_line(error)}"
    return None


class _Nowhere:
    """Takes what is written to it, and forgets it."""

    def write(self, content: Any) -> int:
        """Return the number of bytes."""
        return memoryview(content).nbytes


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return str(error).partition("\n")[0]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, or the elements of a list or dict, with how they are written."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", each) for place, each in enumerate(value))
    else:
        yield from ((f".{key}", each) for key, each in getattr(value, "__dict__", {}).items())


def _nothing(trial: Any) -> None:
    """Stand for a search space in a worker, which asks for none."""
