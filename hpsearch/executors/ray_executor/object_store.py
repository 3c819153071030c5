"""The trainer on its way to Ray's workers: it goes into Ray's object store once."""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

import ray
from ray.cloudpickle import CloudPickler

from ...errors import HpsearchError, StudyError
from ..processes.access_tokens import LeavesOutTokens
from ..processes.joined_arguments import JoinsGroups
from ..processes.pickling import REMEDY, culprit, first_line


class Sent(NamedTuple):
    """A pickled trainer; its large buffers are beside the pickle, and workers read them where Ray keeps them."""

    content: bytes
    buffers: list[pickle.PickleBuffer]

    def load(self) -> Any:
        """Return the trainer."""
        return pickle.loads(self.content, buffers=self.buffers)  # noqa: S301 - our own pickle


class _Pickler(JoinsGroups, LeavesOutTokens, CloudPickler):
    """Ray's pickler, without tokens; training arguments join the group of the process that loads them."""


def put(recipe: object) -> ray.ObjectRef[Sent]:
    """Put a trainer into Ray's object store, from where each worker takes it once.

    Raises:
        StudyError: a part of it cannot be pickled; the message names the attribute. Or the object store cannot take it.
    """
    try:
        content, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        pickler: pickle.Pickler = _Pickler(content, protocol=5, buffer_callback=buffers.append)  # type: ignore[no-untyped-call]
        pickler.dump(recipe)
        return ray.put(Sent(content.getvalue(), buffers))
    except HpsearchError:  # of a part that says itself what is wrong with it
        raise
    except Exception as error:
        found = culprit(recipe)
        if found is None:
            raise StudyError(f"Ray's object store cannot hold the trainer: {first_line(error)}") from error
        name, reason = found
        raise StudyError(
            f"The trainer cannot be sent to Ray's workers: {name} cannot be pickled ({reason}). {REMEDY}"
        ) from error
