"""What docs/feature-table.md says of devices and distribution and no other test shows, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from hpsearch.training.acceleration import make_accelerator
from tests.support.rows import args_of


@pytest.mark.feature(119, "P6")
@pytest.mark.parametrize(
    ("changes", "finds_unused", "bucket"),
    [
        ({}, True, 25),
        ({"activation_checkpointing": True}, False, 25),
        ({"activation_checkpointing": True, "ddp_find_unused_parameters": True}, True, 25),
        ({"ddp_find_unused_parameters": False, "ddp_bucket_cap_mb": 7}, False, 7),
    ],
)
def test_distributed_training_is_told_about_unused_parameters_and_buckets(
    changes: dict[str, Any], finds_unused: bool, bucket: int
) -> None:
    handler = make_accelerator(args_of(**changes)).ddp_handler
    assert (handler.find_unused_parameters, handler.bucket_cap_mb) == (finds_unused, bucket)
