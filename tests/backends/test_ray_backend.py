"""The Ray backend holds the contract: its trials are those of the embedded backend, in workers of a cluster."""

from __future__ import annotations

import pytest

from tests.backends.contract import BackendContract

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


class TestRay(BackendContract):
    options = {"backend": "ray", "max_concurrent_trials": 1, "resources_per_trial": {"cpu": 1}, "pruner": "none"}
    budget_seconds = 8.0
    is_in_this_process = False
    has_ray = True
