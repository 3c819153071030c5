"""Training arguments that were made in the searching process join the group of the process that loads them.

Arguments find out when they are made which device they train on and with how many processes: the searching process has
one, and its trials may have several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers

from ...errors import StudyError
from ...search.process_group import OneProcess, Ranks
from ...trial.distributed_ranks import ranks_of
from ...trial.searchable import Searchable
from ...trial.store_ranks import StoreRanks
from .rendezvous import is_in_group

# What transformers keeps of the devices and the processes, and finds out again where it is missing.
_OF_THE_PROCESS = ("_setup_devices", "distributed_state", "_n_gpu")


class JoinsGroups:
    """A mixin of picklers: training arguments, wherever they are, join the group of the process that loads them."""

    def reducer_override(self, value: object) -> Any:
        """Reduce training arguments to their attributes and how to set them; leave all else to the pickler."""
        reduced = super().reducer_override(value)  # type: ignore[misc]
        if isinstance(value, transformers.TrainingArguments):
            reduced = value.__reduce_ex__(5) if reduced is NotImplemented else reduced
            if isinstance(reduced[2], dict) and not any(reduced[3:]):
                return (*reduced[:3], None, None, set_attributes)
        return reduced


def set_attributes(args: transformers.TrainingArguments, attributes: Mapping[str, object]) -> None:
    """Give arguments their attributes; in a process of a group, find out its device, and join the group."""
    vars(args).update(attributes)
    if is_in_group():
        for name in _OF_THE_PROCESS:
            vars(args).pop(name, None)
        args._setup_devices  # noqa: B018 - asking for the device joins the group


def ranks_in_group(recipe: Searchable, processes: int) -> Ranks:
    """Return the processes that train each trial; the arguments of the recipe have joined them as they were loaded.

    A plain function has no such arguments, and joins torch's process group by itself, or has none.

    Raises:
        StudyError: the arguments have not joined them.
    """
    if processes > 1 and recipe.writes_its_checkpoints:
        return StoreRanks.of_environment()
    ranks = ranks_of(recipe.args) if processes > 1 else OneProcess()
    if ranks.size != processes:
        raise StudyError(
            f"processes_per_trial={processes}: the training arguments found {ranks.size} process(es) to train with. "
            "Arguments of a class with a __reduce__ of its own cannot be sent to a group of processes."
        )
    return ranks
