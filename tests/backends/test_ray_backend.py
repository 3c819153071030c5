"""The Ray backend holds the contract: its trials are those of the embedded backend, in workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.backends.contract import BackendContract
from tests.support.searching import StoredTrial, storage_in_memory, stored_trials

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


class TestRay(BackendContract):
    budget_seconds = 16.0

    def options(self) -> dict[str, Any]:
        return {"backend": "ray", "max_concurrent_trials": 1, "resources_per_trial": {"cpu": 1}, "pruner": "none"}

    def pruning_options(self) -> dict[str, Any]:
        return {"pruner": optuna.pruners.PercentilePruner(0.0, n_startup_trials=1)}

    def forgetful_options(self) -> Callable[[], dict[str, Any]]:
        return storage_in_memory

    def stored(self, study: Path) -> list[StoredTrial]:
        return stored_trials(study)
