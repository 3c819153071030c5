"""Calls a function in all processes of a new group, before there are trials: to find out what it does there."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import wait
from typing import TypeVar

from ...errors import HpsearchError
from .device_slots import Slot
from .group_call import Called, GroupCall
from .payload import Payload
from .pool import Lost, Worker
from .worker import Unusable

Result = TypeVar("Result")


def call_in_group(pack: Callable[[GroupCall], Payload], function: Callable[[], Result], slot: Slot) -> Result:
    """Return what a function returns in the first process of a group, or raise the first error of any process.

    Args:
        pack: pickles for other processes.
        function: is called once in each process.
        slot: the part of the machine that the group may use.

    Raises:
        HpsearchError: a process has died, or cannot load the function.
    """
    worker = Worker(0, slot, pack(GroupCall(function)))
    try:
        wait(worker.sources)
        message: Called | Lost | Unusable = worker.receive()
        if not isinstance(message, Called):
            raise HpsearchError(f"The function cannot be called in a group of processes: {message.reason}.")
        if message.error is not None:
            raise message.error
        return message.returned  # type: ignore[return-value]
    finally:
        worker.end()
