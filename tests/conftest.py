"""Settings for all tests."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("CI", None)  # searches say less there; the tests look at what they say elsewhere


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Small models run faster on one thread, and many times faster beside another process."""
    import torch

    torch.set_num_threads(1)
