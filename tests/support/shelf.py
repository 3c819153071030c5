"""A file system that fsspec knows and pyarrow does not."""

from __future__ import annotations

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem


class Shelf(LocalFileSystem):
    """The disk, by another name."""

    protocol = "shelf"


@pytest.fixture(autouse=True)
def shelf() -> None:
    """Let fsspec know it."""
    fsspec.register_implementation("shelf", Shelf, clobber=True)
