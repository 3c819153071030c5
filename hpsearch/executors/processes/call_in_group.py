"""Calls a function in all processes of a new group, before there are trials: to find out what it does there."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, TypeVar

from ...errors import HpsearchError
from .device_slots import Slot
from .group_call import Called, GroupCall
from .payload import Payload
from .pool import Lost, Worker
from .worker import Unusable

Result = TypeVar("Result")

_MOST_GROUPS = 3


def call_in_group(pack: Callable[[GroupCall], Payload], function: Callable[[], Result], slot: Slot) -> Result:
    """Return what a function returns in the first process of a group, or raise the first error of any process.

    If a process dies, another group calls the function, a limited number of times.

    Args:
        pack: pickles for other processes.
        function: is called once in each process.
        slot: the part of the machine that the group may use.

    Raises:
        HpsearchError: processes have died, or cannot load the function.
    """
    payload = pack(GroupCall(function))
    message: Called | Lost | Unusable = Lost("")
    for _ in range(_MOST_GROUPS):
        message = _message_of(Worker(0, slot, payload))
        if not isinstance(message, Lost):
            break
    if not isinstance(message, Called):
        raise HpsearchError(f"The function cannot be called in a group of processes: {message.reason}.")
    if message.error is not None:
        raise message.error
    return message.returned  # type: ignore[return-value]


def _message_of(worker: Worker) -> Any:
    """Return the first message of a worker, which is ended then."""
    try:
        wait(worker.sources)
        return worker.receive()
    finally:
        worker.end()
