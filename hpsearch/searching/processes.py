"""The processes that `torchrun` or `accelerate launch` started, working on the same trials.

They communicate through torch's process group. A process that fails would leave the others waiting in that group for
ever, so it reports the failure through the store that the group was made with; then the group is broken, so that the
waiting processes get an error, and built anew.

None of this helps when a process has died, or the agent that keeps the store: then every remaining process raises a
`CommunicationError`, and the search ends.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import pickle
import socket
import stat
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from ..arguments import TrainingArguments
from ..errors import CommunicationError
from ..search.ranks import OneProcess, Ranks
from ..system.communication import communication_error, is_of_communication, naming_lost_processes

Result = TypeVar("Result")

_SECONDS_BETWEEN_LOOKS = 0.01  # of a process waiting for the others
_SECONDS_BETWEEN_CHECKS = 0.05  # of one that trains, whether another has failed
_FINE = b"fine"


def ranks_of(args: TrainingArguments) -> Ranks:
    """Return the processes that train together under these arguments.

    Raises:
        CommunicationError: the store of their group cannot be reached.
    """
    if args.world_size == 1:
        return OneProcess()
    with naming_lost_processes():
        return DistributedRanks(args.device)


class ErrorElsewhere(Exception):
    """The traceback of an error in another process; shown as the cause of that error here."""


class DistributedRanks:
    """The processes of torch's default group, as one of them sees them; the group outlives failures, but no death.

    Args:
        device: where this process trains; decides how the group talks (gloo or nccl).

    Attributes:
        is_main: True in process 0, which decides.
        size: how many processes there are.
    """

    def __init__(self, device: torch.device) -> None:
        self.size = distributed.get_world_size()
        self._rank = distributed.get_rank()
        self.is_main = self._rank == 0
        self._device = device
        self._backend = distributed.get_backend()
        group: Any = distributed.group.WORLD
        self._timeout = group._get_backend(device).options._timeout
        self._store = cast(Any, distributed_c10d._get_default_store())
        self._watched_store = self._store.clone()  # a connection of its own: a store serves one thread at a time
        self._late: BaseException | None = None
        self._lost: BaseException | None = None  # how the store was lost
        self._aborting = threading.Lock()
        # A store may outlive the processes that torchrun restarts: these must not find the keys of the dead ones.
        self._name = self.decide(lambda: uuid.uuid4().hex)
        self._actions = itertools.count()  # the same in every process: all do the same actions in the same order

    def decide(self, choose: Callable[[], Result]) -> Result:
        """Call `choose` in the main process and return in all of them what it returned."""
        values: list[Any] = [choose() if self.is_main else None]
        with naming_lost_processes():
            distributed.broadcast_object_list(values, src=0, device=self._device)
        return values[0]

    def agree(self, choose: Callable[[], bool]) -> bool:
        """As `decide`, for yes or no, at half the cost."""
        flag = torch.tensor(self.is_main and choose(), dtype=torch.uint8, device=self._device)
        with naming_lost_processes():
            distributed.broadcast(flag, src=0)
            return bool(flag)

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return, for each of these, the largest that any process has given."""
        given = torch.tensor(values, dtype=torch.int64, device=self._device)
        with naming_lost_processes():
            distributed.all_reduce(given, distributed.ReduceOp.MAX)
            return tuple(given.tolist())

    def check_connected(self) -> None:
        """Raise a CommunicationError if the store was lost, in no time."""
        if self._lost is not None:
            raise communication_error(self._lost)

    @naming_lost_processes()
    def together(self, action: Callable[[], Result]) -> Result:
        """Return `action()`; if it raises in any process, raise the first error immediately in all of them."""
        key = f"hpsearch/{self._name}/{next(self._actions)}"
        with self._watching(key):
            try:
                if self._late is not None:
                    late, self._late = self._late, None
                    raise late
                result = action()
                self._arrive()
                verdict = self._store.compare_set(f"{key}/verdict", "", _FINE.decode())
            except BaseException as error:
                own = communication_error(error) if is_of_communication(error) else error
                verdict = self._store.compare_set(f"{key}/verdict", "", _packed(own, self._rank))
                if verdict == _FINE:  # interrupted while it waited, when all had come through
                    self._late = error
                else:  # the first error decides; what comes of the broken group is not it
                    self._break_group(key, self._store)
        if verdict == _FINE:
            return result
        rank, first = _unpacked(verdict)
        if not isinstance(first, CommunicationError):
            self._rebuild_group(key)
        raise own if rank == self._rank else first

    def _arrive(self) -> None:
        """Wait in the group until every process is here, which is an error as soon as one of them dies."""
        distributed.barrier(device_ids=[self._device.index] if self._backend == "nccl" else None)

    def _meet(self, key: str) -> None:
        """Wait at the store, without the group, until every process is here.

        Raises:
            CommunicationError: one of them has not arrived within the timeout of the group.
        """
        self._store.set(f"{key}/{self._rank}", "here")
        places = [f"{key}/{rank}" for rank in range(self.size)]
        end = time.monotonic() + self._timeout.total_seconds()
        while not self._store.check(places):
            if time.monotonic() > end:
                missing = [rank for rank, place in enumerate(places) if not self._store.check([place])]
                raise communication_error(TimeoutError(f"rank {missing} has not come for {self._timeout}"))
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    @contextlib.contextmanager
    def _watching(self, key: str) -> Iterator[None]:
        """Break the group from the side when another process has failed, so that nothing here waits for it.

        Note it when the store is lost.
        """
        is_over = threading.Event()

        def watch() -> None:
            try:
                while not is_over.wait(_SECONDS_BETWEEN_CHECKS):
                    if self._watched_store.check([f"{key}/verdict"]):
                        if self._watched_store.get(f"{key}/verdict") != _FINE:
                            self._break_group(key, self._watched_store)
                        return
            except distributed.DistError as error:
                self._lost = error

        watcher = threading.Thread(target=watch, daemon=True, name="hpsearch ranks")
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()

    def _break_group(self, key: str, store: Any) -> None:
        """Make what the processes wait for in the group fail."""
        if self._backend == "nccl":
            with self._aborting:
                if distributed.is_initialized():
                    distributed_c10d._abort_process_group()
            return
        # gloo cannot be aborted, but gives up a lost connection at once, on both ends. A connection between two of the
        # processes is known by its two addresses; of each two, the process that tells its addresses last cuts it.
        ours = _connections(besides=_port_of(self._store))
        store.set(f"{key}/addresses/{self._rank}", json.dumps([each.own for each in ours]))
        others = [f"{key}/addresses/{rank}" for rank in range(self.size) if rank != self._rank]
        theirs = {tuple(own) for other in others if store.check([other]) for own in json.loads(store.get(other))}
        for each in ours:
            with each.handle, contextlib.suppress(OSError):
                if each.peer in theirs:
                    each.handle.shutdown(socket.SHUT_RDWR)

    def _rebuild_group(self, key: str) -> None:
        """Build the default group anew, once all processes have left the old one."""
        self._meet(f"{key}/left")
        if distributed.is_initialized():
            distributed.destroy_process_group()
        hook = sys.excepthook
        distributed.init_process_group(
            self._backend,
            store=distributed.PrefixStore(f"{key}/group", self._store),
            rank=self._rank,
            world_size=self.size,
            timeout=self._timeout,
            device_id=self._device if self._backend == "nccl" else None,
        )
        sys.excepthook = hook  # init_process_group wraps it every time
        self._meet(f"{key}/built")


def _packed(error: BaseException, rank: int) -> str:
    """Return an error as text that another process can read; one that cannot travel becomes a RuntimeError."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301 - what was just written
    except Exception:
        data = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    trace = "".join(traceback.format_exception(error))
    return json.dumps({"rank": rank, "error": base64.b64encode(data).decode(), "trace": trace})


def _unpacked(text: bytes) -> tuple[int, BaseException]:
    """Return the number of the process that failed, and its error."""
    sent = json.loads(text)
    error: BaseException = pickle.loads(base64.b64decode(sent["error"]))  # noqa: S301 - from a process of this program
    error.add_note(f"in process {sent['rank']}")
    error.__cause__ = ErrorElsewhere(f"\n{sent['trace']}")
    return sent["rank"], error


class _Connection(NamedTuple):
    """A TCP connection of this process: a handle of its own on it, and the addresses of both ends."""

    handle: socket.socket
    own: tuple[str, int]
    peer: tuple[str, int]


def _port_of(store: object) -> int | None:
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    return getattr(store, "port", None)


def _connections(besides: int | None) -> list[_Connection]:
    """Return the TCP connections of this process, besides those from and to a port."""
    found = []
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # closed meanwhile, or only listening
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as handle:
                    if handle.family in (socket.AF_INET, socket.AF_INET6):
                        own, peer = handle.getsockname()[:2], handle.getpeername()[:2]
                        if besides not in (own[1], peer[1]):
                            found.append(_Connection(handle.dup(), own, peer))
    return found
