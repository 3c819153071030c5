"""Check the address of a Ray cluster before `ray.init`, which would wait for a minute where there is none."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.parse
from typing import Any

import psutil
from ray.util import client, get_node_ip_address

from ...errors import StudyError

AUTO = "auto"
_NODES = ("raylet", "raylet.exe")
_SUBMIT = "`ray job submit --address http://HEAD:8265 --working-dir . -- python script.py`"


def check_address(address: str | None) -> None:
    """Check the `address` argument of a search without connecting.

    Raises:
        StudyError: it is not an address, or one of Ray Client.
    """
    named, origin = _named(address)
    is_connected: bool = client.ray.is_connected()  # type: ignore[no-untyped-call]
    if is_connected or str(named).startswith("ray://"):
        shown = "The connection of this process to Ray" if is_connected else origin
        raise StudyError(
            f"{shown} uses Ray Client (ray://), which hpsearch does not support. Run the script on the cluster: "
            f"{_SUBMIT}, with address='auto' in the script. See docs/cluster.md."
        )
    if named not in (None, AUTO):
        _host_and_port(named, origin)


def check_is_node(address: str) -> None:
    """Check that this machine is a node of the cluster at an address.

    Args:
        address: "auto" or "host:port".

    Raises:
        StudyError: no such node runs on this machine.
    """
    named, origin = _named(address)
    running = _clusters_of_this_machine()
    if named == AUTO:
        if running:
            return  # `ray.init` chooses among them
        raise StudyError(
            "address='auto' finds no Ray cluster: RAY_ADDRESS is not set, and no Ray node runs on this machine. "
            f"{how_to_join('HEAD:6379')}"
        )
    # A node whose address is not known may be one of this cluster.
    if "" in running or any(is_same(named, each) for each in running):
        return
    others = f"(Nodes of {', '.join(sorted(running))} run here.) " if running else ""
    raise StudyError(
        f"{origin}: no node of a Ray cluster at {named} runs on this machine. {others}{how_to_join(named)} The port is "
        "the one of `ray start --head`, 6379 by default."
    )


def how_to_join(address: str) -> str:
    """Return advice for a process that cannot join a cluster."""
    return (
        f"Start a cluster here with `ray start --head`, make this machine a node with `ray start --address={address}`, "
        f"run the script on a node with {_SUBMIT}, or leave address out for a local Ray instance."
    )


def is_same(address: str, other: str) -> bool:
    """Return whether two addresses are those of the same cluster."""
    return _resolved(address) == _resolved(other)


def _named(address: object) -> tuple[Any, str]:
    """Return the address that an argument means, and where it comes from."""
    variable = os.environ.get("RAY_ADDRESS")
    if address == AUTO and variable:
        return variable, f"RAY_ADDRESS={variable!r}"
    return address, f"address={address!r}"


def _host_and_port(address: object, origin: str) -> tuple[str, int]:
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        parts = urllib.parse.urlsplit(f"//{address}")
        if isinstance(address, str) and parts.hostname and parts.port and "/" not in address:
            return parts.hostname, parts.port
    raise StudyError(
        f"{origin} is not the address of a Ray cluster; allowed: host:port (the port of `ray start --head`, 6379 by "
        "default), 'auto', or None for a local Ray instance."
    )


def _clusters_of_this_machine() -> set[str]:
    """Return the addresses of the clusters with nodes on this machine; "" for a node that does not show its own.

    `ray.init` looks for the same processes, without which a driver cannot connect.
    """
    processes = [each.info for each in psutil.process_iter(["name", "cmdline"])]
    # A node that has just died has no command line.
    nodes = [each["cmdline"] for each in processes if each["name"] in _NODES and each["cmdline"]]
    return {_option("--gcs-address=", line) for line in nodes}


def _option(name: str, line: list[str]) -> str:
    return next((each.removeprefix(name) for each in line if each.startswith(name)), "")


def _resolved(address: str) -> tuple[str, int]:
    host, port = _host_and_port(address, address)
    with contextlib.suppress(OSError):
        host = socket.gethostbyname(host)
    if host.startswith("127."):  # Ray replaces it with the machine's address, too
        host = get_node_ip_address()  # type: ignore[no-untyped-call]
    return host, port
