"""Stores of MLflow for tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

# A variable under which a run of MLflow ends when its numbers are written; without it a run takes up to a second more.
ENDS_AT_ONCE = ("MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS", "1")


def new_store(folder: Path) -> str:
    """Write an empty store of MLflow into a folder, and return its URL.

    MLflow makes the tables of a new store by all its migrations, which takes seconds, so all stores are copies of one.
    """
    file = folder / "mlflow.db"
    file.write_bytes(_empty_store())
    return f"sqlite:///{file}"


@functools.cache
def _empty_store() -> bytes:
    import mlflow

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mlflow.db")
        mlflow.MlflowClient(f"sqlite:///{file}").search_experiments()
        return file.read_bytes()
