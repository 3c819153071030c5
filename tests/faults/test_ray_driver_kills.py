"""A search on Ray whose driver is killed, again and again, loses, doubles and fails no trial."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray

from tests.support.driver_kills import KILLS, kill_drivers

pytestmark = [pytest.mark.fault, pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


@pytest.mark.timeout(max(900, 60 * KILLS))
def test_a_search_on_ray_whose_driver_is_killed_loses_doubles_and_fails_no_trial(tmp_path: Path) -> None:
    kill_drivers(tmp_path, KILLS // 4, way="ray", address=ray.get_runtime_context().gcs_address)
