"""The processes of a group that train a plain function: they meet in a store, which belongs to the search.

The function may make and end torch's process group as it likes, or have none, so no collective is used here. Process 0
writes its decisions under a name and does not wait; the other processes wait until they find them. A process that has
failed writes its error, which ends the waits of the others. Process 0 need not call what only the others call.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import cloudpickle
from torch.distributed import PrefixStore, TCPStore

from ..errors import CommunicationError, HpsearchError, ProcessFailedError
from ..system.communication import naming_lost_processes
from . import distributed_ranks
from .distributed_ranks import packed_error, unpacked_error

Result = TypeVar("Result")

# Between two looks into the store: it would print a warning at the end of each wait of its own.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.01
_SIGN = b"1"  # an empty value would be that of a key that does not exist


class StoreRanks:
    """The processes of a group, as one of them sees them; see `Ranks`.

    Args:
        store: in which they meet.
        rank, size: the number of this process, and of all.
        seconds_to_arrive: how long a process waits for the others after an error of one of them.

    Attributes:
        is_main: True in process 0, which decides.
    """

    def __init__(self, store: Any, rank: int, size: int, seconds_to_arrive: float) -> None:
        self.rank, self.size, self.is_main = rank, size, rank == 0
        self._root, self._seconds_to_arrive = store, seconds_to_arrive
        self._actions = itertools.count()  # the same in every process
        self._store: Any = store  # of the present action
        self._written: set[str] = set()  # by this process, in this action
        self._written_before: tuple[Any, set[str]] = (store, set())  # in the last one
        self._begin()

    @classmethod
    def of_environment(cls) -> StoreRanks:
        """Return the processes of the group that the environment of this process names."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = PrefixStore("hpsearch", TCPStore(address, port, is_master=False))
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return cls(store, rank, size, distributed_ranks.SECONDS_TO_ARRIVE)

    def write(self, name: str, value: object = None) -> None:
        """Write a value under a name, for the other processes; those of one action are dropped after the next one."""
        with naming_lost_processes():
            self._store.set(name, _SIGN + cloudpickle.dumps(value))
        self._written.add(name)

    def has(self, *names: str) -> bool:
        """Return whether a process has written values under all of these names."""
        with naming_lost_processes():
            return bool(self._store.check(list(names)))

    def read(self, name: str) -> Any:
        """Wait until a process has written a value under this name, and return it.

        Raises:
            CommunicationError: another process has failed.
            HpsearchError: process 0 has ended without.
        """
        with naming_lost_processes():
            for _ in self.looks():
                if self.has(name):
                    break
                if self.has_left(0) and not self.has(name):
                    raise HpsearchError(
                        f"process {self.rank} waits for {name!r} of process 0, which has left the function: all "
                        "processes must ask the trial for the same, in the same order."
                    )
            return pickle.loads(self._store.get(name)[len(_SIGN) :])  # noqa: S301 - from a process of this program

    def leave(self) -> None:
        """Wait until all processes are here, after which none of them reads or writes in this action.

        Raises:
            CommunicationError: another process has failed.
        """
        self.write(_left(self.rank))
        for _ in self.looks():
            if self.has(*map(_left, range(self.size))):
                return

    def has_left(self, rank: int) -> bool:
        """Return whether a process has called `leave`."""
        return self.has(_left(rank))

    def looks(self) -> Iterator[None]:
        """Yield again and again, with a pause in between, while no other process has failed.

        Raises:
            CommunicationError: one has.
        """
        for _ in _pauses():
            yield
            self.check_connected()

    def report_error(self, error: BaseException) -> None:
        """Let the other processes find an error, unless one of them has reported another one before."""
        with naming_lost_processes():
            self._store.compare_set(_ERROR, "", packed_error(error, self.rank))
        self._written.add(_ERROR)

    def decide(self, choose: Callable[[], Result]) -> Result:
        """Call `choose` in the main process; return in all of them what it returned."""
        name = f"decision {next(self._decisions)}"
        if not self.is_main:
            return self.read(name)  # type: ignore[no-any-return]
        chosen = choose()
        self.write(name, chosen)
        return chosen

    def agree(self, choose: Callable[[], bool]) -> bool:
        """As `decide`, for yes or no."""
        return self.decide(choose)

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return, for each of these, the largest that any process has given."""
        number = next(self._decisions)
        self.write(f"numbers {number} of {self.rank}", values)
        given = [self.read(f"numbers {number} of {rank}") for rank in range(self.size)]
        return tuple(map(max, zip(*given, strict=True)))

    def check_connected(self) -> None:
        """Raise a CommunicationError if another process has failed."""
        if self.has(_ERROR):
            rank, error = unpacked_error(self._store.get(_ERROR))
            raise CommunicationError(f"Process {rank} of the trial has failed: {type(error).__name__}: {error}")

    def together(self, action: Callable[[], Result]) -> Result:
        """Return `action()`; if it raises in any process, raise the first error in all of them.

        Raises:
            ProcessFailedError: it raised in one process, and another one has not ended the action in time.
        """
        result: Any = None
        own: Exception | None = None
        try:
            result = action()
        except BaseException as raised:
            self.report_error(raised)
            if not isinstance(raised, Exception):  # the search ends, and with it the other processes
                raise
            own = raised
        self.write(_arrived(self.rank))
        have_all_arrived = self._wait_for_all()
        failed = unpacked_error(self._store.get(_ERROR)) if self.has(_ERROR) else None
        if have_all_arrived:
            self._begin()
        if failed is None:
            return result  # type: ignore[no-any-return]
        rank, elsewhere = failed
        first = own if own is not None and rank == self.rank else elsewhere
        if rank > 0:
            first.add_note(f"in process {rank}")
        if have_all_arrived or not isinstance(first, Exception):
            raise first
        raise ProcessFailedError(rank, first) from first

    def _begin(self) -> None:
        """Begin an action, under a prefix of its own; all processes have left the one before the last one."""
        store, names = self._written_before
        for name in names:
            store.delete_key(name)
        self._written_before = (self._store, self._written)
        self._store, self._written = PrefixStore(str(next(self._actions)), self._root), set()
        self._decisions = itertools.count()

    def _wait_for_all(self) -> bool:
        """Wait until all processes have ended the action; after an error a limited time. Return whether they have."""
        names, latest = [_arrived(rank) for rank in range(self.size)], math.inf
        for _ in _pauses():
            if self.has(*names):
                return True
            if latest == math.inf and self.has(_ERROR):
                latest = time.monotonic() + self._seconds_to_arrive
            if time.monotonic() > latest:
                break
        return False


_ERROR = "error"


def _pauses() -> Iterator[None]:
    """Yield, the first time immediately, then after pauses that grow."""
    pause = _SHORTEST_PAUSE
    while True:
        yield
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _left(rank: int) -> str:
    return f"leaving of process {rank}"


def _arrived(rank: int) -> str:
    return f"end of process {rank}"
