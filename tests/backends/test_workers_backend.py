"""The embedded backend holds the contract with a worker, too: its trials are those of a search in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.backends.contract import BackendContract
from tests.support.searching import StoredTrial, storage_in_memory, stored_trials

pytestmark = pytest.mark.process


class TestWorkers(BackendContract):
    budget_seconds = 14.0

    def options(self) -> dict[str, Any]:
        return {"trials_per_worker": 1000, "pruner": "none"}

    def pruning_options(self) -> dict[str, Any]:
        return {"pruner": optuna.pruners.PercentilePruner(0.0, n_startup_trials=1)}

    def forgetful_options(self) -> Callable[[], dict[str, Any]]:
        return storage_in_memory

    def stored(self, study: Path) -> list[StoredTrial]:
        return stored_trials(study)
