"""A full or read-only disk on which nothing of the study lies is an error of the trial that meets it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_search import records_of, search
from tests.support.small_trainer import CountsModels

ERRORS = [
    RuntimeError("unable to write to file </torch_12_34>: No space left on device (28)"),
    OSError(errno.EROFS, "Read-only file system", "/data/cache/x.lock"),
]


@pytest.mark.parametrize("error", ERRORS, ids=["shared memory", "cache"])
def test_a_trial_that_meets_another_disk_that_is_full_fails_and_the_search_continues(
    tmp_path: Path, error: Exception
) -> None:
    def fail(trial: Any) -> None:
        if trial.number == 0:
            raise error

    records = records_of(search(tmp_path, 2, trainer={"model_init": CountsModels(fail)}))
    assert [each.state.value for each in records] == ["failed", "complete"]
