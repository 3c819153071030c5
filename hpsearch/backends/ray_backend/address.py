"""Where a Ray cluster is, and whether anything answers there: Ray itself waits for minutes, or for ever."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from ray._private import services
from ray._private.utils import read_ray_address
from ray.util import client

from ...errors import StudyError

AUTO = "auto"
_SECONDS_TO_ANSWER = 4.0
_SECONDS_TO_BE_A_NODE = 4.0
# The start of an HTTP/2 connection with its empty settings. A gRPC server, as Ray's is, answers with its own settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME, _SETTINGS = 9, 4


def is_client_address(address: str | None) -> bool:
    """Tell whether an address is one of Ray Client: ``ray://host:port``, or "auto" if RAY_ADDRESS is such a one."""
    named = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    return isinstance(named, str) and named.startswith("ray://")


def check_address(address: str | None) -> None:
    """Check that a search's argument may be an address, without going there.

    Raises:
        StudyError: it may not.
    """
    is_connected: Callable[[], bool] = client.ray.is_connected
    if is_client_address(address) or (address is None and is_connected()):
        shown = "The connection of this process" if address is None else f"address={address!r}"
        raise StudyError(
            f"{shown} is one of Ray Client, which cannot run a search. Run the script on a node of the cluster, as "
            "`ray job submit` does, and pass address='auto'."
        )
    if address is not None and address != AUTO:
        _host_and_port(address, f"address={address!r}")


def found_address(address: str) -> str:
    """Return host and port of the cluster that an address means, once it has answered and this machine is its node.

    Args:
        address: "auto" or "host:port".

    Raises:
        StudyError: there is no such cluster, or this machine is not a node of it.
    """
    named, origin = address, f"address={address!r}"
    if address == AUTO:
        named, origin = _found()
    _host_and_port(named, origin)
    place = _canonical(named)
    try:
        _check_answers(place)
    except (OSError, EOFError) as error:
        told = getattr(error, "strerror", None) or str(error) or "no answer"
        raise StudyError(
            f"No Ray cluster answers at {place} ({origin}): {told}. {_others(place)}Start one by `ray start --head`, "
            "or leave address out for a local instance."
        ) from error
    _check_is_node(place, origin)
    return place


def is_same(address: str, place: str) -> bool:
    """Tell whether an address means the cluster at a place."""
    return _resolved(_canonical(address)) == _resolved(place)


def _found() -> tuple[str, str]:
    """Return the address that "auto" means, and where it is from."""
    named = os.environ.get("RAY_ADDRESS")
    if named and named != AUTO:
        return named, f"RAY_ADDRESS={named!r}"
    stored = read_ray_address()
    if not stored:
        raise StudyError(
            "address='auto' finds no Ray cluster: RAY_ADDRESS is not set, and `ray start` was not used on this "
            f"machine. {_others('')}Start a cluster by `ray start --head`, pass the address of one as host:port, or "
            "leave address out for a local instance."
        )
    return stored, "address='auto', from the latest `ray start` on this machine"


def _host_and_port(address: str, origin: str) -> tuple[str, int]:
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        parts = urllib.parse.urlsplit(f"//{address}")
        if parts.hostname and parts.port and "/" not in address:
            return parts.hostname, parts.port
    raise StudyError(
        f"{origin} is not the address of a Ray cluster; allowed: host:port (the port of `ray start --head`, 6379 if "
        "none was named), 'auto', or None for a local instance."
    )


def _check_answers(place: str) -> None:
    """Raise an OSError or EOFError unless a gRPC server answers."""
    until = time.monotonic() + _SECONDS_TO_ANSWER
    with socket.create_connection(_host_and_port(place, place), timeout=_SECONDS_TO_ANSWER) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return
        connection.sendall(_HELLO)
        answer = b""
        while len(answer) < _FRAME:
            connection.settimeout(max(until - time.monotonic(), 0.01))
            received = connection.recv(64)
            if not received:
                break
            answer += received
    if len(answer) < _FRAME or answer[3] != _SETTINGS:
        raise EOFError("something else than Ray listens there")


def _check_is_node(place: str, origin: str) -> None:
    """Refuse a cluster of which no node is on this machine: Ray would wait a minute for one."""
    until = time.monotonic() + _SECONDS_TO_BE_A_NODE
    while _resolved(place) not in {_resolved(each) for each in _local_clusters()}:
        if time.monotonic() > until:
            raise StudyError(
                f"This machine is not a node of the Ray cluster at {place} ({origin}). {_others(place)}Run "
                f"`ray start --address={place}` here first, or run the script on one of the nodes. (The address must "
                "have the port of `ray start --head`, 6379 if none was named.)"
            )
        time.sleep(0.5)


def _canonical(address: str) -> str:
    """Return the address as Ray uses it: of a loopback address, that by which other machines reach this one."""
    return str(services.canonicalize_bootstrap_address(address))


def _local_clusters() -> set[str]:
    """Return the addresses of the clusters of which nodes run on this machine, as Ray itself finds them."""
    found: Any = services.find_gcs_addresses
    found.cache_clear()
    return set(found())


def _others(place: str) -> str:
    others = sorted(_local_clusters() - {place})
    return f"(Nodes of {', '.join(others)} run on this machine.) " if others else ""


def _resolved(place: str) -> tuple[str, int]:
    host, port = _host_and_port(place, place)
    with contextlib.suppress(OSError):
        host = socket.gethostbyname(host)
    return host, port
