"""The trainer on its way to the workers: it has to be picklable, and goes into Ray's object store once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ray
from ray import cloudpickle

from ...errors import StudyError
from ...search.study import Study


def put(recipe: Any) -> ray.ObjectRef[Any]:
    """Put a trainer into Ray's object store, from where each worker takes it once.

    Raises:
        StudyError: a part of it cannot be pickled; the message names the attribute. Or the object store cannot take it.
    """
    try:
        return ray.put(recipe)
    except Exception as error:
        if _problem(recipe) is None:
            raise StudyError(f"Ray's object store cannot take the trainer: {_line(error)}") from error
        name, reason = _culprit(recipe, error)
        raise StudyError(
            f"The trainer cannot be sent to Ray's workers: {name} cannot be pickled ({reason}). Open files, locks, "
            "connections and the like must be made where they are used: in model_init, in a callback's on_train_begin, "
            "or in the function that needs them."
        ) from error


def for_workers(study: Study) -> Study:
    """Return the settings without what only the process that searches needs, which may not be picklable."""
    return replace(study, space=_nothing, hp_name=None, start_with=())


def check_objectives(study: Study) -> None:
    """Check that the settings of a search can be sent to workers: its objectives and constraints.

    Raises:
        StudyError: they cannot.
    """
    for argument, parts in (("compute_objective", study.objectives), ("constraints", study.constraints)):
        for part in parts:
            reason = _problem(part)
            if reason is not None:
                raise StudyError(
                    f"{argument}: the function {part.name!r} cannot be sent to Ray's workers, because it cannot be "
                    f"pickled ({reason})."
                )


def _nothing(trial: Any) -> None:
    """Stand for a search space in a worker, which asks for none."""


def _culprit(recipe: Any, error: Exception) -> tuple[str, str]:
    """Return which attribute of a trainer cannot be pickled, the innermost one that can be named, and why."""
    for name, value in _parts(recipe):
        reason = _problem(value)
        if reason is not None:
            for inner, each in _parts(value):
                inside = _problem(each)
                if inside is not None:
                    return f"{name}{inner}", inside
            return name, reason
    return type(recipe).__name__, _line(error)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, or the elements of a list or dict, with how they are written."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{place}]", each) for place, each in enumerate(value))
    else:
        yield from ((f".{key}", each) for key, each in getattr(value, "__dict__", {}).items())


def _problem(value: Any) -> str | None:
    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:
        return f"{type(value).__name__}: {_line(error)}"
    return None


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
