"""Where the processes of a group are on the nodes of a cluster: as tables, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpsearch.executors.processes.rendezvous import LOOPBACK, Rendezvous, join_environment
from hpsearch.executors.ray_executor.group_places import Location, Place, are_on_one_node, places_of


@pytest.mark.parametrize(
    ("locations", "places", "is_one_node"),
    [
        ("a a", [Place(0, 2), Place(1, 2)], True),
        ("a b", [Place(0, 1), Place(0, 1)], False),
        ("a a b", [Place(0, 2), Place(1, 2), Place(0, 1)], False),
        ("a b a", [Place(0, 2), Place(0, 1), Place(1, 2)], False),
        ("a:0 a:1", [Place(0, 2, ("0", "1")), Place(1, 2, ("0", "1"))], True),
        # A process finds its own GPU at its local rank.
        ("a:3 a:1", [Place(0, 2, ("3", "1")), Place(1, 2, ("3", "1"))], True),
        (
            "a:5 b:0 b:7 a:2",
            [Place(0, 2, ("5", "2")), Place(0, 2, ("0", "7")), Place(1, 2, ("0", "7")), Place(1, 2, ("5", "2"))],
            False,
        ),
    ],
)
def test_processes_are_numbered_on_each_node_and_see_the_gpus_of_their_group_there(
    locations: str, places: list[Place], is_one_node: bool
) -> None:
    parts = [each.partition(":") for each in locations.split()]
    given = [Location(node, f"host of {node}", (gpu,) if gpu else ()) for node, _, gpu in parts]
    assert places_of(given) == places
    assert are_on_one_node(given) == is_one_node


def test_a_process_knows_its_number_in_the_group_and_on_its_node() -> None:
    variables = Rendezvous(4, LOOPBACK).variables(3, 1, 2)
    assert {name: variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }


@pytest.mark.process
def test_a_process_knows_its_gpus_before_it_imports_torch_which_may_look_for_them() -> None:
    code = "import sys, hpsearch.executors.ray_executor.group_member; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("GLOO_SOCKET_IFNAME", None)


@pytest.mark.usefixtures("environment")
def test_gloo_uses_the_interface_of_the_address_at_which_the_others_reach_the_process() -> None:
    join_environment({}, 1, is_on_cpu=True, address="192.0.2.1")  # which no interface has
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    join_environment({}, 1, is_on_cpu=True, address=LOOPBACK)
    assert os.environ["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")


@pytest.mark.usefixtures("environment")
def test_the_interface_that_the_user_has_chosen_for_a_network_stays() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "bond0"
    join_environment({}, 1, is_on_cpu=True, address="192.0.2.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "bond0"
    join_environment({}, 1, is_on_cpu=True, address=LOOPBACK)  # a group on one machine never leaves it
    assert os.environ["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")
