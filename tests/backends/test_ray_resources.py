"""What one trial asks of a Ray cluster: as given, refused, and counted; without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

from ray import tune

from hpsearch.errors import StudyError
from hpsearch.executors.ray_executor.cluster import Resources, as_resources, checked_placement


@pytest.mark.feature(8)
@pytest.mark.parametrize(
    ("given", "bundle"),
    [
        ({"cpu": 2}, {"CPU": 2.0}),
        ({"CPU": 1, "GPU": 0.5, "my_resource": 1}, {"CPU": 1.0, "GPU": 0.5, "my_resource": 1.0}),
        ({"cpu": 0, "gpu": 1}, {"GPU": 1.0}),
        (tune.PlacementGroupFactory([{"CPU": 1, "GPU": 0.25}]), {"CPU": 1.0, "GPU": 0.25}),
    ],
)
def test_resources_are_asked_of_tune_as_they_were_given(given: Any, bundle: dict[str, float]) -> None:
    resources = as_resources(given)
    assert resources is not None
    assert resources.as_request() == tune.PlacementGroupFactory([bundle])


def test_no_resources_mean_the_default() -> None:
    assert as_resources(None) is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (2, "must be a dict, such as"),
        ({"gpus": 1}, "'gpus': 1. Did you mean 'gpu'"),
        ({"cpu": 1, "CPU": 2}, "both 'cpu' and 'CPU'"),
        ({"cpu": "2"}, r"\['cpu'\] must be a number of at least 0, but got '2'"),
        ({"cpu": True}, "but got True"),
        ({"cpu": -1}, "but got -1"),
        ({"cpu": float("nan")}, "but got nan"),
        ({"my_resource": float("inf")}, r"\['my_resource'\] must be a number"),
        ({"cpu": 1, "gpu": 0.00001}, "steps of 0.0001"),
        ({"cpu": 1, 2: 1}, "names a resource 2"),
        ({}, "resources_per_trial is empty"),
        ({"cpu": 0}, "resources_per_trial is empty"),
        ({"cpu": 1, "gpu": 2}, r"2 GPUs for a trial of one process, .* one GPU: pass processes_per_trial=2 with them"),
        ({"cpu": 1, "gpu": 1.5}, r"1.5 GPUs for a trial of one process, which trains on one GPU: ask for at most 1"),
        (tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}]), "2 bundles.* pass one bundle, which processes_per"),
        (tune.PlacementGroupFactory([{}, {"CPU": 1}]), "2 bundles"),
        (tune.PlacementGroupFactory([{"CPU": 1}], name="mine"), "would be ignored"),
    ],
)
def test_resources_that_cannot_be_had_are_refused_without_a_cluster(given: Any, told: str) -> None:
    with pytest.raises(StudyError, match=told):
        as_resources(given)


@pytest.mark.parametrize(
    ("resources", "node", "trials"),
    [
        (Resources(cpu=1), {"CPU": 3.0}, 3),
        (Resources(cpu=2), {"CPU": 3.0}, 1),
        (Resources(cpu=0.1), {"CPU": 2.0}, 20),
        (Resources(cpu=1, gpu=0.5), {"CPU": 8.0, "GPU": 2.0}, 4),
        (Resources(cpu=1, gpu=1 / 3), {"CPU": 8.0, "GPU": 1.0}, 3),
        # A trial does not use 0.4 of one GPU and 0.2 of another one.
        (Resources(cpu=1, gpu=0.6), {"CPU": 8.0, "GPU": 2.0}, 2),
        (Resources(cpu=1, others={"my_resource": 1}), {"CPU": 8.0}, 0),
    ],
)
def test_as_many_trials_fit_on_a_node_as_it_has_room_for(
    resources: Resources, node: dict[str, float], trials: int
) -> None:
    assert resources.fit_on(node) == trials


@pytest.mark.parametrize(
    ("given", "processes", "bundle"),
    [
        ({"cpu": 4}, 2, {"CPU": 2.0}),
        ({"cpu": 2, "gpu": 2, "my_resource": 4}, 2, {"CPU": 1.0, "GPU": 1.0, "my_resource": 2.0}),
        ({"cpu": 1}, 2, {"CPU": 0.5}),  # the processes share a CPU, as trials with less than one do
        ({"cpu": 1}, 3, {"CPU": 0.3333}),  # Ray counts so
        ({"cpu": 0.3}, 3, {"CPU": 0.1}),
        ({"gpu": 3}, 3, {"GPU": 1.0}),
        (tune.PlacementGroupFactory([{"CPU": 2, "memory": 2**31}]), 2, {"CPU": 1.0, "memory": 2.0**30}),
    ],
)
def test_the_resources_of_a_trial_are_divided_among_its_processes(
    given: Any, processes: int, bundle: dict[str, float]
) -> None:
    resources = as_resources(given, processes, "spread")
    assert resources is not None
    assert resources.as_bundle() == pytest.approx(bundle)
    request = resources.as_request()
    assert (request.bundles, request.strategy) == ([resources.as_bundle()] * processes, "SPREAD")
    assert request.head_bundle_is_empty  # Tune's actor takes nothing from the first process


@pytest.mark.parametrize(
    ("given", "processes", "told"),
    [
        ({"cpu": 3}, 2, r"\['cpu'\]=3 cannot be divided among 2 processes .*: ask for 2 or 4"),
        ({"cpu": 2.5}, 2, r"\['cpu'\]=2.5 cannot be divided among 2 processes .*: ask for 2 or 4"),
        ({"cpu": 2, "my_resource": 3}, 2, r"\['my_resource'\]=3 cannot be divided"),
        ({"cpu": 2, "gpu": 1}, 2, r"asks for 1 GPU for the 2 processes of a trial .*: ask for 2 GPUs, or for none"),
        ({"cpu": 2, "gpu": 0.5}, 2, r"asks for 0.5 GPUs for the 2 processes of a trial"),
        ({"cpu": 2, "gpu": 4}, 2, r"asks for 4 GPUs for the 2 processes of a trial .* a GPU of its own"),
        ({"cpu": 2, "gpu": 2}, 4, r"asks for 2 GPUs for the 4 processes of a trial"),
        ({"cpu": 0.0001}, 2, r"is too little for 2 processes"),
    ],
)
def test_resources_that_cannot_be_divided_are_refused(given: Any, processes: int, told: str) -> None:
    with pytest.raises(StudyError, match=told):
        as_resources(given, processes)


CPUS = {"one": {"CPU": 1.0}, "three": {"CPU": 3.0}, "with a GPU": {"CPU": 4.0, "GPU": 1.0}, "other": {"odd": 1.0}}


@pytest.mark.parametrize(
    ("resources", "nodes", "trials"),
    [
        (Resources(cpu=1), ["one", "three"], 4),
        (Resources(cpu=2, processes=2), ["one"], 0),
        (Resources(cpu=2, processes=2), ["one", "one"], 1),  # it spans them
        (Resources(cpu=2, processes=2), ["three"], 1),
        (Resources(cpu=2, processes=2), ["three", "three"], 3),  # one of which spans them
        (Resources(cpu=4, processes=2), ["three", "one", "one"], 0),  # no process of two CPUs spans nodes
        (Resources(cpu=4, processes=2), ["three", "three"], 1),
        (Resources(cpu=2, processes=2, placement="spread"), ["three", "one"], 2),
        (Resources(cpu=2, gpu=2, processes=2), ["with a GPU", "three"], 0),
        (Resources(cpu=2, gpu=2, processes=2), ["with a GPU", "with a GPU"], 1),
        (Resources(cpu=1, processes=2), ["one", "other"], 1),
        (Resources(cpu=8, processes=8), [], 0),
    ],
)
def test_as_many_trials_fit_on_the_nodes_as_their_processes_have_room(
    resources: Resources, nodes: list[str], trials: int
) -> None:
    assert resources.fit(CPUS[each] for each in nodes) == trials


def test_resources_of_several_processes_are_described() -> None:
    assert str(Resources(cpu=4, gpu=2, processes=2)) == "4 CPUs, 2 GPUs for 2 processes"


@pytest.mark.parametrize(
    ("placement", "processes", "told"),
    [
        ("spraed", 2, r"placement must be 'pack' or 'spread', but got 'spraed'. Did you mean 'spread'\?"),
        ("STRICT_PACK", 2, r"placement must be 'pack' or 'spread', but got 'STRICT_PACK'."),
        (True, 2, r"placement must be 'pack' or 'spread', but got True."),
        ("spread", 1, r"placement='spread' is about the processes of a trial; pass processes_per_trial=2 or more"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(placement: Any, processes: int, told: str) -> None:
    with pytest.raises(StudyError, match=told):
        checked_placement(placement, processes)


def test_processes_are_packed_unless_they_are_to_be_spread() -> None:
    assert (checked_placement(None, 1), checked_placement("spread", 2)) == ("pack", "spread")
