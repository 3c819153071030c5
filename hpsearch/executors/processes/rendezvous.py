"""Where the processes of a group meet: a store in the process that has started them.

It listens on the loopback address; for a group on several nodes of a cluster, on the address of its node.
"""

from __future__ import annotations

import os
import socket

import psutil
from torch.distributed import DistError, TCPStore

LOOPBACK = "127.0.0.1"
# What a launcher, or a scheduler, may have set for the searching process, and would lead a group elsewhere.
_OF_LAUNCHERS = ("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "NODE_RANK")


class Rendezvous:
    """The store of a group of processes, which lives as long as this object.

    None of the processes keeps it, so that the death of none of them ends it: what one of them has reported there
    before it died can be read by the others.

    Args:
        processes: the size of the group.
        address: of this machine, where the processes reach the store.

    Raises:
        OSError: no port is free.
    """

    def __init__(self, processes: int, address: str = LOOPBACK) -> None:
        self._processes, self._address = processes, address
        # The store would listen on all addresses of the machine; so it is given a socket that does not.
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
            try:
                self._store = TCPStore(
                    address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.fileno()
                )
            except DistError as error:
                raise OSError(f"no store for a group of processes can be opened: {error}") from error
            server.detach()  # the store closes it

    def variables(self, rank: int, local_rank: int | None = None, local_size: int | None = None) -> dict[str, str]:
        """Return the variables of the environment by which torch and accelerate join a process to the group.

        Args:
            rank: the number of the process.
            local_rank: its number among those on its node; None: all of them are on one.
            local_size: the number of processes on its node; None: all of them.
        """
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank if local_rank is None else local_rank),
            "WORLD_SIZE": str(self._processes),
            "LOCAL_WORLD_SIZE": str(self._processes if local_size is None else local_size),
            "MASTER_ADDR": self._address,
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": str(True),  # process 0 keeps no store: it joins this one too
        }


def join_environment(variables: dict[str, str], threads: int, is_on_cpu: bool, address: str = LOOPBACK) -> None:
    """Set the variables of a group in a process that belongs to it; before anything asks for the process group.

    Args:
        variables: see `Rendezvous.variables`.
        threads: of torch in this process; accelerate would choose another number on a CPU.
        is_on_cpu: whether the group trains on the CPU.
        address: of this machine, at which the other processes reach this one.
    """
    for name in _OF_LAUNCHERS:
        os.environ.pop(name, None)
    os.environ.update(variables)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    interface = _interface_with(address)
    if interface is not None and (address == LOOPBACK or "GLOO_SOCKET_IFNAME" not in os.environ):
        os.environ["GLOO_SOCKET_IFNAME"] = interface  # gloo would look for the address of the machine's name
    if is_on_cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"


def _interface_with(address: str) -> str | None:
    """Return the name of the network interface of this machine that has an address; None if none has."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(each.address == address for each in found)), None)


def is_in_group() -> bool:
    """Return whether this process belongs to a group: its environment says so."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
