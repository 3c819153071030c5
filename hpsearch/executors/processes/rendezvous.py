"""Where the processes of a group meet: a store in the searching process, on the loopback address."""

from __future__ import annotations

import os
import socket

from torch.distributed import DistError, TCPStore

_ADDRESS = "127.0.0.1"
# What a launcher, or a scheduler, may have set for the searching process, and would lead a group elsewhere.
_OF_LAUNCHERS = ("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "NODE_RANK")


class Rendezvous:
    """The store of a group of processes, which lives as long as this object.

    The searching process keeps it, so that the death of none of the processes ends it: what one of them has reported
    there before it died can be read by the others.

    Args:
        processes: the size of the group.

    Raises:
        OSError: no port is free.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        # The store would listen on all addresses of the machine; so it is given a socket that does not.
        with socket.create_server((_ADDRESS, 0)) as server:
            port = server.getsockname()[1]
            try:
                self._store = TCPStore(
                    _ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=server.fileno()
                )
            except DistError as error:
                raise OSError(f"no store for a group of processes can be opened: {error}") from error
            server.detach()  # the store closes it

    def variables(self, rank: int) -> dict[str, str]:
        """Return the variables of the environment by which torch and accelerate join a process to the group."""
        size = str(self._processes)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": _ADDRESS,
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": str(True),  # process 0 keeps no store: it joins this one too
        }


def join_environment(variables: dict[str, str], threads: int, is_on_cpu: bool) -> None:
    """Set the variables of a group in a process that belongs to it; before anything asks for the process group.

    Args:
        variables: see `Rendezvous.variables`.
        threads: of torch in this process; accelerate would choose another number on a CPU.
        is_on_cpu: whether the group trains on the CPU.
    """
    for name in _OF_LAUNCHERS:
        os.environ.pop(name, None)
    os.environ.update(variables)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is not None:  # gloo would look for the address of the machine's name
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    if is_on_cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"


def is_in_group() -> bool:
    """Return whether this process belongs to a group: its environment says so."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
