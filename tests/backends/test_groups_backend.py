"""The embedded backend holds the contract with two processes per trial, whose batches together are those of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpsearch import BestRun
from tests.backends.contract import BackendContract

pytestmark = pytest.mark.process


class TestGroups(BackendContract):
    options = {"processes_per_trial": 2, "pruner": "none"}
    budget_seconds = 6.0
    is_in_this_process = False
    tolerance = 1e-5

    def search(self, folder: Path, space: Any = None, n_trials: int = 3, **changes: Any) -> BestRun:
        return super().search(folder, space, n_trials, **{"per_device_train_batch_size": 2, **changes})
