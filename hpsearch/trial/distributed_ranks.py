"""The processes that train the same trials: those of a launcher, or a group that a search has started in a slot.

They communicate through torch's process group. Each of them runs the same action, and they meet at its end: a process
that returned waits in the group, one that raised reports its error to the store that the group was made with and waits
there. If all of them arrive, having begun the same collectives, no collective is left half done: the first error is
raised in all processes, and the search continues.

If one does not arrive, it is in a collective that the process that raised will never join. Torch cannot free it. A
group is ended then, and replaced. Under a launcher the search ends: the process that raised leaves, its connections
close, the others get an error from their collective and find the first error in the store. A process that died, or the
agent that keeps the store, has left no error there: the remaining processes raise a `CommunicationError`.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import pickle
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from ..arguments import TrainingArguments
from ..errors import CommunicationError, ProcessFailedError
from ..search.process_group import OneProcess, Ranks
from ..system.communication import communication_error, is_of_communication, naming_lost_processes

Result = TypeVar("Result")

SECONDS_TO_ARRIVE = 30.0  # after an error: a process that has not arrived by then is in a collective
_SECONDS_BETWEEN_LOOKS = 0.01  # of a process waiting for the others
_SECONDS_BETWEEN_CHECKS = 1.0  # of the store, in a process that trains
# Groups in which a collective may be half done, with the reason; also for a later search of this process.
_left_groups: weakref.WeakKeyDictionary[object, CommunicationError] = weakref.WeakKeyDictionary()


def ranks_of(args: TrainingArguments) -> Ranks:
    """Return the processes that train together under these arguments.

    Raises:
        CommunicationError: the store of their group cannot be reached, or their group was left by an earlier search.
    """
    if args.world_size == 1:
        return OneProcess()
    with naming_lost_processes():
        return DistributedRanks(args.device, SECONDS_TO_ARRIVE)


class ErrorElsewhere(Exception):
    """The traceback of an error in another process; shown as the cause of that error here."""


class _Raised(NamedTuple):
    """An error of the main process, on its way to the others."""

    packed: str


class DistributedRanks:
    """The processes of torch's default group, as one of them sees them.

    Args:
        device: where this process trains.
        seconds_to_arrive: how long a process in which an action failed waits for the others.

    Attributes:
        is_main: True in process 0, which decides.
        rank: the number of this process.
        size: how many processes there are.
    """

    def __init__(self, device: torch.device, seconds_to_arrive: float = SECONDS_TO_ARRIVE) -> None:
        self.size = distributed.get_world_size()
        self.rank = distributed.get_rank()
        self.is_main = self.rank == 0
        self._device, self._seconds_to_arrive = device, seconds_to_arrive
        self._group: Any = distributed.group.WORLD
        self._store = cast(Any, distributed_c10d._get_default_store())
        self._checked_at = time.monotonic()
        # A store may outlive the processes that torchrun restarts: these must not find the keys of the dead ones.
        self._name = self.decide(lambda: uuid.uuid4().hex)
        self._actions = itertools.count()  # the same in every process: all do the same actions in the same order

    def decide(self, choose: Callable[[], Result]) -> Result:
        """Call `choose` in the main process; return in all of them what it returned, or raise what it raised."""
        own: Exception | None = None
        values: list[Any] = [None]
        if self.is_main:
            try:
                values = [choose()]
            except Exception as error:
                own, values = error, [_Raised(packed_error(error, self.rank))]
        with self._in_group():
            distributed.broadcast_object_list(values, src=0, device=self._device)
        if isinstance(values[0], _Raised):
            raise own or unpacked_error(values[0].packed)[1]
        return cast(Result, values[0])

    def agree(self, choose: Callable[[], bool]) -> bool:
        """As `decide`, for yes or no, at half the cost."""
        flag = torch.tensor(self.is_main and choose(), dtype=torch.uint8, device=self._device)
        with self._in_group():
            distributed.broadcast(flag, src=0)
            return bool(flag)

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return, for each of these, the largest that any process has given."""
        given = torch.tensor(values, dtype=torch.int64, device=self._device)
        with self._in_group():
            distributed.all_reduce(given, distributed.ReduceOp.MAX)
            return tuple(given.tolist())

    def check_connected(self) -> None:
        """Raise a CommunicationError if the store was lost; look once a second."""
        if time.monotonic() - self._checked_at >= _SECONDS_BETWEEN_CHECKS:
            self._checked_at = time.monotonic()
            with self._in_group():
                self._store.check([self._name])

    def together(self, action: Callable[[], Result]) -> Result:
        """Return `action()`; if it raises in any process, raise the first error in all of them.

        Raises:
            ProcessFailedError: it raised in one process while another one was in a collective.
        """
        key = f"hpsearch/{self._name}/{next(self._actions)}"
        own: BaseException | None = None
        with self._in_group():
            try:
                result = action()
            except BaseException as error:
                own = communication_error(error) if is_of_communication(error) else error
            # Until all have met, which Ctrl-C may prevent.
            _left_groups[self._group] = CommunicationError("The processes of this search were interrupted.")
            lost, first = self._meet(key, own)
            if lost is None:
                del _left_groups[self._group]
            else:
                _left_groups[self._group] = first or lost
            if first is None:
                if lost is not None:
                    raise lost
                return result
            if lost is None or not isinstance(first.error, Exception):  # an interruption ends the search by itself
                raise first.error
            raise first from first.error

    @contextlib.contextmanager
    def _in_group(self) -> Iterator[None]:
        """Name errors of the communication.

        Raises:
            CommunicationError: another process cannot be reached, or the group was left before.
        """
        if self._group in _left_groups:
            raise _left_groups[self._group]
        with naming_lost_processes():
            yield

    def _meet(self, key: str, own: BaseException | None) -> tuple[CommunicationError | None, ProcessFailedError | None]:
        """Wait for the other processes; return what prevents a meeting, and the first error of all of them.

        Args:
            key: of the action, in the store.
            own: the error of this process.
        """
        lost = first = None
        try:
            self._arrive(key, own)
        except Exception as error:
            if not is_of_communication(error):
                raise
            lost = communication_error(error)
        try:
            first = self._first_error(key, own)
        except distributed.DistError as error:
            lost = lost or communication_error(error)
        return lost, first

    def _arrive(self, key: str, own: BaseException | None) -> None:
        """Wait until all processes are here, with no collective half done; a process that failed waits a limited time.

        Raises:
            CommunicationError: that cannot be, or this process was interrupted.
        """
        if isinstance(own, CommunicationError):
            raise own
        if own is not None:
            self._store.compare_set(f"{key}/error", "", packed_error(own, self.rank))
        self._store.set(f"{key}/{self.rank}", self._collectives())
        if own is not None and not (isinstance(own, Exception) and self._all_arrive(key)):
            raise CommunicationError("Another process is in a collective.")
        # If another process dies, the barrier raises immediately.
        is_nccl = distributed.get_backend() == "nccl"
        distributed.barrier(device_ids=[self._device.index] if is_nccl else None)

    def _first_error(self, key: str, own: BaseException | None) -> ProcessFailedError | None:
        """Return the first error that a process has reported; None if none has."""
        if not self._store.check([f"{key}/error"]):
            return None
        rank, error = unpacked_error(self._store.get(f"{key}/error"))
        first = own if own is not None and rank == self.rank else error
        if rank > 0:
            first.add_note(f"in process {rank}")
        return ProcessFailedError(rank, first)

    def _all_arrive(self, key: str) -> bool:
        """Wait for the other processes, a limited time; return whether all have come and begun the same collectives."""
        places = [f"{key}/{rank}" for rank in range(self.size)]
        end = time.monotonic() + self._seconds_to_arrive
        while not self._store.check(places):
            if time.monotonic() > end:
                return False
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return len({self._store.get(place) for place in places}) == 1

    def _collectives(self) -> str:
        """Return how many collectives this process has begun, in each of its groups.

        An asynchronous one may be half done although no process waits in it.
        """
        with contextlib.suppress(RuntimeError):  # some backends do not count
            return json.dumps(
                [
                    [str(device), group._get_backend(device)._get_sequence_number_for_group()]
                    for group in cast(Any, distributed_c10d._world.pg_map)
                    for device in group._device_types
                ]
            )
        return f"unknown in process {self.rank}"


def packed_error(error: BaseException, rank: int) -> str:
    """Return an error as text that another process can read; one that cannot travel becomes a RuntimeError."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301 - what was just written
    except Exception:
        data = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    trace = "".join(traceback.format_exception(error))
    return json.dumps({"rank": rank, "error": base64.b64encode(data).decode(), "trace": trace})


def unpacked_error(text: str | bytes) -> tuple[int, BaseException]:
    """Return the number of the process that failed, and its error."""
    sent = json.loads(text)
    error: BaseException = pickle.loads(base64.b64decode(sent["error"]))  # noqa: S301 - from a process of this program
    error.__cause__ = ErrorElsewhere(f"\n{sent['trace']}")
    return sent["rank"], error
