"""What one trial asks of a Ray cluster: as given, refused, and counted; without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

from ray import tune

from hpsearch.errors import StudyError
from hpsearch.executors.ray_executor.cluster import Resources, as_resources


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
        ({"cpu": 1, "gpu": 2}, r"2 GPUs for one trial, but .* at most one GPU\. .*`torchrun`.*docs/distributed.md"),
        (tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}]), "2 bundles.* pass one bundle"),
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
