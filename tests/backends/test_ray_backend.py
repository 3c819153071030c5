"""The Ray backend holds the contract: its trials are those of the embedded backend, in workers of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpsearch import BestRun
from tests.backends.contract import BackendContract, Mixed

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


class TestRay(BackendContract):
    options = {"backend": "ray", "max_concurrent_trials": 1, "resources_per_trial": {"cpu": 1}, "pruner": "none"}
    budget_seconds = 8.0
    is_in_this_process = False
    has_ray = True


class TestRayGroups(BackendContract):
    """With two processes per trial, whose batches together are those of one."""

    options = {"backend": "ray", "max_concurrent_trials": 1, "processes_per_trial": 2, "pruner": "none"}
    budget_seconds = 10.0
    is_in_this_process = False
    has_ray = True
    tolerance = 1e-5

    def search(self, folder: Path, space: Any = None, n_trials: int = 3, **changes: Any) -> BestRun:
        return super().search(folder, space, n_trials, **{"per_device_train_batch_size": 2, **changes})

    def test_trials_complete_fail_and_are_pruned_and_a_failure_says_why(self, mixed: Mixed) -> None:
        """Not in `make test`, where a trial of one process on Ray and a group in workers are."""
        super().test_trials_complete_fail_and_are_pruned_and_a_failure_says_why(mixed)
