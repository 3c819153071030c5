"""What becomes of a trial whose worker has died on Ray, and that is not resumed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

from hpsearch.coordinator.coordinator import RunningTrial
from hpsearch.errors import StorageError
from hpsearch.executors.ray_executor.tune_dispatch import interrupted_by_the_disk
from hpsearch.search.trial_record import TrialRecord, TrialState


def trial() -> RunningTrial:
    unused: Any = None
    return RunningTrial(unused, unused, TrialRecord(1, "run-1", TrialState.RUNNING, {}))


@pytest.mark.parametrize("problem", ["No space left on device", "Read-only file system"])
def test_a_worker_that_a_full_disk_has_ended_is_no_fault_of_the_trial_also_when_there_is_room_again(
    problem: str,
) -> None:
    reason = f"OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] {problem}"
    ended = interrupted_by_the_disk(trial(), reason)
    assert ended is not None
    assert ended.record.state is TrialState.INTERRUPTED
    assert isinstance(ended.cause, StorageError)
    assert "Tune's files of run-1 cannot be written" in str(ended.cause)
    assert problem in str(ended.cause)


def test_a_worker_that_died_for_another_reason_is_not_the_disks_fault() -> None:
    assert interrupted_by_the_disk(trial(), "The actor died unexpectedly before finishing this task.") is None
