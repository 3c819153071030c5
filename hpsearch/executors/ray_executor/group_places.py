"""Where the processes of a group are on the nodes of a cluster, and what each of them must know of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Location:
    """Where a process is.

    Attributes:
        node: the id of its node.
        address: of the node.
        gpus: what Ray calls the GPUs that the process was given, as CUDA_VISIBLE_DEVICES does.
    """

    node: str
    address: str
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """The place of a process among those of its group.

    Attributes:
        local_rank: its number among the processes on its node.
        local_size: the number of processes on its node.
        gpus: those of all processes on its node; its own one is at its local rank, where accelerate looks for it.
    """

    local_rank: int
    local_size: int
    gpus: tuple[str, ...] = ()


def places_of(locations: Sequence[Location]) -> list[Place]:
    """Return the place of each process of a group, in the order of their ranks.

    >>> [each.local_rank for each in places_of([Location("a", "h1"), Location("b", "h2"), Location("a", "h1")])]
    [0, 0, 1]
    """
    places = []
    for rank, location in enumerate(locations):
        beside = [each for each in range(len(locations)) if locations[each].node == location.node]
        gpus = tuple(gpu for each in beside for gpu in locations[each].gpus)
        places.append(Place(beside.index(rank), len(beside), gpus))
    return places


def are_on_one_node(locations: Sequence[Location]) -> bool:
    """Return whether all processes of a group are on one node."""
    return len({each.node for each in locations}) == 1
