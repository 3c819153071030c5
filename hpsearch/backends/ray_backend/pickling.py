"""The trainer on its way to Ray's workers: it goes into Ray's object store once."""

from __future__ import annotations

from typing import Any

import ray

from ...errors import HpsearchError, StudyError
from ...workers.pickling import REMEDY, culprit, first_line, without_tokens


def put(recipe: Any) -> ray.ObjectRef[Any]:
    """Put a trainer into Ray's object store, from where each worker takes it once.

    Raises:
        StudyError: a part of it cannot be pickled; the message names the attribute. Or the object store cannot take it.
    """
    try:
        return ray.put(without_tokens(recipe))
    except HpsearchError:  # of a part that says itself what is wrong with it
        raise
    except Exception as error:
        found = culprit(recipe)
        if found is None:
            raise StudyError(f"Ray's object store cannot take the trainer: {first_line(error)}") from error
        name, reason = found
        raise StudyError(
            f"The trainer cannot be sent to Ray's workers: {name} cannot be pickled ({reason}). {REMEDY}"
        ) from error
