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
# So long an error of another process waits for what process 0 sends.
_SECONDS_OF_MAIN = 5.0


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
    """Return the first message of a worker, which is ended then; an error of a process after the first one waits.

    If process 0 ends by a report, or by an error of its own, the others may lose their connection to it, and their
    errors come first.
    """
    try:
        wait(worker.sources)
        message = worker.receive()
        if isinstance(message, Called) and message.rank > 0 and wait(worker.sources, _SECONDS_OF_MAIN):
            of_main = worker.receive()
            message = of_main if isinstance(of_main, Called) and of_main.rank == 0 else message
        return message
    finally:
        worker.end()
