"""Training arguments that reach beyond a study's folder: a folder from someone else may not set them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping

from ..search.trial_record import TrialRecord

_ACTING = re.compile(
    r"hub_\w+|push_to_hub\w*|trackio_\w+|report_to|output_dir|(tensorboard_)?logging_dir|resume_from_checkpoint"
    r"|deepspeed|fsdp_config|accelerator_config|trust_remote_code"
)
_LOCAL_TRACKERS = ("none", "tensorboard")


def acts_outside(name: str, value: object) -> bool:
    """Return whether a training argument uploads, reports to a server, or opens files that it names.

    >>> [acts_outside(*each) for each in (("push_to_hub", True), ("report_to", "none"), ("learning_rate", 0.1))]
    [True, False, False]
    """
    name = name.rpartition(".")[2]
    if name == "report_to":
        trackers = value if isinstance(value, list) else [value]
        return any(each is not None and each not in _LOCAL_TRACKERS for each in trackers)
    is_off = value is None or (name == "push_to_hub" and value is False)
    return not is_off and _ACTING.fullmatch(name) is not None


def reaching_out(record: TrialRecord, asked_for: Collection[str] = ()) -> str | None:
    """Return an argument that acts elsewhere and that a trial on disk sets, with its value; None if there is none.

    The record may come from someone else.

    Args:
        record: of the trial.
        asked_for: the names of arguments that are the user's own, so that they may act.
    """
    parts = [*record.schedule, *record.fallbacks]
    arguments = [record.params, record.arguments, *(part["arguments"] for part in parts)]
    found = itertools.chain.from_iterable(each.items() for each in arguments)
    acting = (f"{name}={each!r}" for name, each in found if name not in asked_for and acts_outside(name, each))
    return next(acting, None)


def names_a_place(value: object) -> bool:
    """Return whether a value, or a part of it, may be the path of a file or an address.

    >>> names_a_place("cosine"), names_a_place({"config": "~/ds.json"}), names_a_place(["a", "https://host"])
    (False, True, True)
    """
    if isinstance(value, Mapping):
        return any(map(names_a_place, value.values()))
    if isinstance(value, list | tuple):
        return any(map(names_a_place, value))
    return isinstance(value, str) and (value.startswith("~") or "/" in value or "\\" in value)
