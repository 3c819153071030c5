"""The embedded backend holds the contract with a worker, too: its trials are those of a search in one process."""

from __future__ import annotations

import pytest

from tests.backends.contract import BackendContract

pytestmark = pytest.mark.process


class TestWorkers(BackendContract):
    options = {"trials_per_worker": 1000, "pruner": "none"}
    budget_seconds = 6.0
    is_in_this_process = False
