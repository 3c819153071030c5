"""How many workers there are, and which GPU and how many threads each of them has."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpsearch import StudyError
from hpsearch.executors.processes import device_slots, worker
from hpsearch.executors.processes.device_slots import Slot, slots_for
from hpsearch.executors.processes.worker import Job, _nth_visible


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_slots, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("wanted", "gpus", "devices"),
    [
        ({}, 0, []),
        ({}, 4, []),
        ({"n_jobs": 1}, 4, []),
        ({"n_jobs": 3}, 0, [()] * 3),
        ({"n_jobs": -1}, 0, [()] * 8),
        ({"n_jobs": -1}, 2, [(0,), (1,)]),
        ({"n_jobs": 3}, 2, [(0,), (1,), (0,)]),
        ({"n_jobs": 1, "devices": [0, 1]}, 2, [(0,)]),
        ({"devices": [2, 0]}, 3, [(2,), (0,)]),
        ({"devices": [1]}, 2, [(1,)]),
        ({"devices": [0, 1], "trials_per_device": 2}, 2, [(0,), (1,), (0,), (1,)]),
        ({"trials_per_device": 4}, 1, [(0,)] * 4),
        ({"n_jobs": 4, "devices": [0, 1]}, 2, [(0,), (1,), (0,), (1,)]),
        ({"n_jobs": 4, "trials_per_device": 2}, 2, [(0,), (1,), (0,), (1,)]),
        ({"n_jobs": -1, "trials_per_device": 2}, 2, [(0,), (1,), (0,), (1,)]),
        ({"trials_per_device": "auto"}, 2, [(0,), (1,)]),
        ({"trials_per_device": "auto", "devices": [2, 0]}, 3, [(2,), (0,)]),
        ({"trials_per_device": "auto", "n_jobs": 1}, 2, [(0,)]),
        ({"trials_per_device": "auto", "n_jobs": 5}, 2, [(0,), (1,)]),
        ({"least": 1}, 0, [()]),
        ({"least": 1, "n_jobs": 1}, 1, [(0,)]),
        ({"least": 1}, 2, [(0,)]),
        ({"processes": 2}, 0, [()]),
        ({"processes": 2, "n_jobs": 1}, 0, [()]),
        ({"processes": 2, "n_jobs": 3}, 0, [()] * 3),
        ({"processes": 2, "n_jobs": -1}, 0, [()] * 4),
        ({"processes": 16, "n_jobs": -1}, 0, [()]),
        ({"processes": 2, "devices": [*range(8)]}, 8, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ({"processes": 2}, 4, [(0, 1), (2, 3)]),
        ({"processes": 2, "n_jobs": -1}, 4, [(0, 1), (2, 3)]),
        ({"processes": 2, "n_jobs": 1}, 4, [(0, 1)]),
        ({"processes": 2, "devices": [3, 1, 0]}, 4, [(3, 1)]),
        ({"processes": 4, "trials_per_device": 1}, 4, [(0, 1, 2, 3)]),
    ],
)
def test_each_process_of_a_worker_has_a_device(
    wanted: dict[str, Any], gpus: int, devices: list[tuple[int, ...]]
) -> None:
    slots = slots_for(**{"n_jobs": None, "devices": None, "trials_per_device": None, **wanted}, gpus=gpus)
    assert [slot.devices for slot in slots] == devices
    assert {slot.processes for slot in slots} <= {wanted.get("processes", 1)}


@pytest.mark.parametrize(("groups", "processes", "threads"), [(1, 2, 4), (2, 2, 2), (4, 2, 1), (4, 4, 1)])
def test_all_processes_share_the_cores(groups: int, processes: int, threads: int) -> None:
    assert {slot.threads for slot in slots_for(groups, None, None, 0, processes=processes)} == {threads}


@pytest.mark.parametrize(("workers", "threads"), [(2, 4), (3, 2), (8, 1), (9, 1)])
def test_workers_share_the_cores(workers: int, threads: int) -> None:
    assert {slot.threads for slot in slots_for(workers, None, None, 0)} == {threads}


def test_omp_num_threads_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert {slot.threads for slot in slots_for(2, None, None, 0)} == {3}


@pytest.mark.parametrize(
    ("wanted", "gpus", "message"),
    [
        ({"n_jobs": 0}, 0, r"n_jobs must be -1 or a whole number of at least 1, but got 0"),
        ({"n_jobs": True}, 0, r"n_jobs must be .* but got True"),
        ({"n_jobs": 2.0}, 0, r"n_jobs must be .* but got 2.0"),
        ({"trials_per_device": 0}, 1, r"trials_per_device must be None, 'auto' or a whole number of at least 1"),
        ({"trials_per_device": 2}, 0, r"this process has no GPU; n_jobs sets"),
        ({"devices": [0]}, 0, r"GPU 0 does not exist; this process has none \(n_jobs= runs trials on the CPU\)"),
        ({"devices": [0, 2]}, 2, r"GPU 2 does not exist; this process has 0, 1"),
        ({"devices": [-1]}, 2, r"GPU -1 does not exist"),
        ({"devices": [0, 0]}, 2, r"names a GPU twice; to share GPUs between trials, use trials_per_device"),
        ({"devices": []}, 2, r"devices must be a list of numbers of GPUs"),
        ({"devices": "01"}, 2, r"devices must be a list of numbers of GPUs"),
        ({"devices": 1}, 2, r"devices must be a list of numbers of GPUs"),
        ({"n_jobs": 3, "trials_per_device": 2}, 2, r"n_jobs=3 contradicts trials_per_device=2 on 2 devices"),
        ({"processes": 0}, 0, r"processes_per_trial must be a whole number of at least 1, but got 0"),
        ({"processes": 1.5}, 0, r"processes_per_trial must be a whole number of at least 1, but got 1.5"),
        ({"processes": 4}, 2, r"processes_per_trial=4 needs 4 GPUs, one for each process, but .* has 2 \(0, 1\)"),
        ({"processes": 2, "devices": [1]}, 2, r"processes_per_trial=2 needs 2 GPUs.* but the search has 1 \(1\)"),
        ({"processes": 2, "n_jobs": 2}, 3, r"processes_per_trial=2 with n_jobs=2 needs 4 GPUs.* but .* has 3"),
        ({"processes": 2, "trials_per_device": 2}, 2, r"trials_per_device=2 and processes_per_trial=2 contradict"),
        ({"processes": 2, "n_jobs": 0}, 0, r"n_jobs must be -1 or a whole number of at least 1, but got 0"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(wanted: dict[str, Any], gpus: int, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        slots_for(**{"n_jobs": None, "devices": None, "trials_per_device": None, **wanted}, gpus=gpus)


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["0", "1"]), ("2,3", ["2", "3"]), ("GPU-8932f937, GPU-1c4b8a1e", ["GPU-8932f937", "GPU-1c4b8a1e"])],
)
def test_a_worker_sees_the_gpu_that_the_search_knows_by_this_number(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [_nth_visible(number) for number in (0, 1)] == names


def test_each_process_of_a_group_sees_its_gpus_and_knows_which_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "name", "MainProcess")  # to be put back
    monkeypatch.setattr(worker, "keep_sockets_in", lambda folder: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "NODE_RANK": "3"})
    settings: Any = SimpleNamespace(apply=lambda: None)
    payload: Any = SimpleNamespace(file=tmp_path / "data")
    variables = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    worker._prepare(Job("worker 0, process 1", Slot((2, 3), 5, 2), payload, settings, 1, variables))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert os.environ["LOCAL_RANK"] == "1"
    assert os.environ["OMP_NUM_THREADS"] == "5"
    assert "NODE_RANK" not in os.environ
    assert "ACCELERATE_USE_CPU" not in os.environ


def test_a_worker_sees_no_other_gpu_than_that_of_its_slot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "name", "MainProcess")  # to be put back
    monkeypatch.setattr(worker, "keep_sockets_in", lambda folder: None)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    settings: Any = SimpleNamespace(apply=lambda: None)
    payload: Any = SimpleNamespace(file=tmp_path / "data")
    for slot, seen in ((Slot((1,), 2), "GPU-1c4b8a1e"), (Slot((), 3), "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937,GPU-1c4b8a1e")
        worker._prepare(Job("worker 0", slot, payload, settings))
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert threads == [2, 3]
