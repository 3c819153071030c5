"""The Ray cluster that a search runs on: what it has room for, and whether its nodes can run the trials."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from ...errors import StudyError
from ...system.spelling import nearest_name
from .address import AUTO, check_address, is_same
from .connection import existing_cluster, own_instance
from .driver_process import quiet_tune
from .nodes import check_nodes
from .resources import PACK, Resources, as_resources, checked_placement, described

__all__ = ["Cluster", "Resources", "as_resources", "check_address", "checked_placement", "joined", "quiet_tune"]

# How long what is known of the nodes may be old: they come and go.
_SECONDS_KNOWN = 3.0
_SHOWN_NODES = 4


class Cluster:
    """The cluster that this process has joined.

    Attributes:
        address: of the cluster, as host:port.
        is_own: whether it is a local instance that was started for this search.
    """

    def __init__(self, is_own: bool) -> None:
        self.address = str(ray.get_runtime_context().gcs_address)
        self.is_own = is_own
        self._nodes: list[dict[str, Any]] = []
        self._known_at = -_SECONDS_KNOWN

    @property
    def description(self) -> str:
        """The cluster in words, such as "a local Ray instance with 2 CPUs"."""
        nodes = self._alive()
        total = {name: sum(node["Resources"].get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
        amounts = described({name: amount for name, amount in total.items() if amount or name == "CPU"})
        if not self.is_own:
            count = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
            return f"the Ray cluster at {self.address} with {count}, {amounts}"
        other = " (RAY_ADDRESS names a cluster: address='auto' joins it)" if os.environ.get("RAY_ADDRESS") else ""
        return f"a local Ray instance with {amounts}{other}"

    def default_resources(self, processes: int = 1, placement: str = PACK) -> Resources:
        """Return the default resources of a trial: 1 CPU for each process, and 1 GPU if the cluster has any."""
        has_gpu = any(node["Resources"].get("GPU", 0.0) >= 1 for node in self._alive())
        gpus = processes if has_gpu else 0
        return Resources(cpu=processes, gpu=gpus, processes=processes, placement=placement)

    def check_fits(self, resources: Resources, autoscaling: bool = False) -> str | None:
        """Check that the nodes have what one trial asks for; Ray itself would wait forever.

        Args:
            resources: of one trial.
            autoscaling: the cluster will get further nodes.

        Returns:
            None; with `autoscaling`, and if the nodes are not large enough yet, a note about it.

        Raises:
            StudyError: they are not large enough.
        """
        nodes = [node["Resources"] for node in self._alive()]
        if resources.fit(nodes):
            return None
        if autoscaling:
            who = "no node has" if resources.processes == 1 else "the nodes do not have"
            return f"{who} {resources} yet: the first trials wait until the cluster has grown"
        raise StudyError(_too_large(resources, nodes, self.description))

    def slots(self, resources: Resources) -> int:
        """Return the number of parallel trials that fit on the live nodes, ignoring other load."""
        return resources.fit(node["Resources"] for node in self._alive())

    def check_nodes(self, folder: Path | None, seconds: float = 20.0) -> None:
        """Check that all nodes share the study's folder, and have the versions of the packages that this process has.

        There is nothing to check of an instance of our own, which is on this machine and of this Python.

        Args:
            folder: of the study; it is made, if need be.
            seconds: to wait for all nodes together.

        Raises:
            StudyError: a node does not answer, does not share the folder, or has other versions.
        """
        if not self.is_own:
            nodes = {node["NodeID"]: self._name(node) for node in self._alive()}
            check_nodes(nodes, None if folder is None else folder.absolute(), seconds)

    def _alive(self) -> list[dict[str, Any]]:
        if time.monotonic() - self._known_at > _SECONDS_KNOWN:
            self._nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            self._known_at = time.monotonic()
        return self._nodes

    def _name(self, node: Mapping[str, Any]) -> str:
        """Return the name of a node for users: its address, with a suffix if several nodes share the address."""
        address, name = node["NodeManagerAddress"], node["NodeName"]
        if name != address:
            return f"{address} ({name})"
        are_several = sum(each["NodeManagerAddress"] == address for each in self._alive()) > 1
        return f"{address} ({node['NodeID'][:8]})" if are_several else str(address)


@contextlib.contextmanager
def joined(address: str | None) -> Iterator[Cluster]:
    """Join a cluster, and leave it unchanged afterwards.

    Args:
        address: as `check_address` allows. None: the cluster that this process has joined already, which stays joined;
            else a local Ray instance, which listens on the loopback address only and ends with the block. ``"auto"``:
            the cluster of RAY_ADDRESS, else the one that `ray start` started on this machine. ``"host:port"``: that
            cluster, of which this machine must be a node.

    Raises:
        StudyError: there is no such cluster, or it cannot be joined.
    """
    if ray.is_initialized():
        cluster = Cluster(is_own=False)
        _check_same(cluster.address, address)
        yield cluster
        return
    with own_instance() if address is None else existing_cluster(address):
        yield Cluster(is_own=address is None)


def _check_same(place: str, address: str | None) -> None:
    if address not in (None, AUTO) and not is_same(address, place):
        raise StudyError(
            f"address={address!r} is not the Ray cluster that this process has joined, at {place}. Leave address "
            "out to use that one, or call ray.shutdown() first."
        )


def _too_large(resources: Resources, nodes: list[dict[str, float]], cluster: str) -> str:
    """Return in words that no trial can run on a cluster with these nodes."""
    if resources.processes == 1:
        lacks, less = f"no node of {cluster} has enough", "Request less in resources_per_trial"
    else:
        room, count = sum(map(resources.fit_on, nodes)), resources.processes
        each = described(resources.as_bundle())
        lacks = f"{cluster} has room for {room} of its {count} processes, each with {each}"
        less = "Request less in resources_per_trial, or fewer processes_per_trial"
    return (
        f"A trial asks for {resources}, but {lacks}: {_largest(resources, nodes)}.{_misspelled(resources, nodes)} "
        f"{less}, or start a larger node; if the cluster grows on demand, pass autoscaling=True."
    )


def _largest(resources: Resources, nodes: list[dict[str, float]]) -> str:
    """Return in words what the largest nodes have of what is asked for."""
    shapes = sorted({tuple(node.get(name, 0.0) for name in resources.as_bundle()) for node in nodes}, reverse=True)
    # One that has no more of anything than another one is not the largest.
    largest = [
        shape
        for shape in shapes
        if not any(shape != other and all(a <= b for a, b in zip(shape, other, strict=True)) for other in shapes)
    ]
    shown = [described(dict(zip(resources.as_bundle(), shape, strict=True))) for shape in largest[:_SHOWN_NODES]]
    return f"the largest has {' and another one '.join(shown)}" if shown else "it has no node"


def _misspelled(resources: Resources, nodes: list[dict[str, float]]) -> str:
    known = {name for node in nodes for name in node}
    return "".join(nearest_name(name, known) for name in resources.others if name not in known)
