"""Optuna's own tests of storages hold for the journal, as every storage of Optuna must pass them."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.testing.pytest_storages import StorageTestCase

from hpsearch.ledger.storage import open_storage


class TestJournal(StorageTestCase):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> optuna.storages.BaseStorage:
        return open_storage("journal", tmp_path)
