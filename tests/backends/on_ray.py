"""What the tests of searches on Ray share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import default_data_collator

from hpsearch.backends.ray_backend.cluster import joined
from tests.backends.contract import HearsNotices as HearsNotices
from tests.search.small_trainer import points

ON_RAY = {"backend": "ray", "resources_per_trial": {"cpu": 1}, "max_concurrent_trials": 2, "progress": False}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One local instance for all tests of a file, which is much faster than one for each search."""
    with joined(None):
        yield


def loss_of(model: torch.nn.Module) -> float:
    """The loss of the evaluation data of `small_trainer`."""
    batch = default_data_collator(points(32, seed=1))
    with torch.no_grad():
        return float(model(**batch)["loss"])
