"""Processes that train a trial together: what they do about errors of one of them, and of their communication."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from transformers import TrainerCallback

from hpsearch import CommunicationError, Float, ProcessFailedError, SpaceError, StorageError
from hpsearch.system.communication import is_of_communication, naming_lost_processes
from hpsearch.trial.distributed_ranks import DistributedRanks
from tests.support.search_processes import records_on_disk, wait_until
from tests.support.small_trainer import small_trainer

PAIR = "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"
CLOSED = f"[{PAIR}:553] Connection closed by peer [127.0.0.1]:15751. This is typically caused by a remote worker"
NCCL = "NCCL error in: ProcessGroupNCCL.cpp:1333, {}, NCCL version 2.21.5\n{}"
OF_COMMUNICATION = [
    RuntimeError(CLOSED),
    RuntimeError(f"[{PAIR}:589] Read error [192.168.70.92]:25266: Connection reset by peer"),
    RuntimeError(f"[{PAIR}:402] writev [10.0.0.2]:4711: Broken pipe"),
    RuntimeError("[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"),
    RuntimeError(f"Gloo connectFullMesh failed with [{PAIR}:152] timed out connecting: Connection refused"),
    distributed.DistNetworkError("Broken pipe"),
    distributed.DistStoreError("wait timeout after 300000ms, keys: /default_pg/0//1"),
    distributed.DistBackendError(
        NCCL.format("remote process exited or there was a network error", "ncclRemoteError: A call failed possibly")
    ),
    distributed.DistBackendError(NCCL.format("internal error", "Net : Connection closed by remote peer user<50260>")),
    CommunicationError("lost"),
]
NOT_OF_COMMUNICATION = [
    RuntimeError("a bad batch"),
    RuntimeError(f"Caught RuntimeError in DataLoader worker process 0.\n{CLOSED}"),
    RuntimeError(f"[enforce fail at {PAIR}:456] op.preamble.length <= op.nbytes. 8 vs 4"),
    RuntimeError("Broken pipe"),
    ConnectionResetError(104, "Connection reset by peer"),
    BrokenPipeError(32, "Broken pipe"),
    TimeoutError("Timed out waiting for the dataset"),
    distributed.DistBackendError(
        NCCL.format("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "Cuda failure 'out of memory'")
    ),
    distributed.DistBackendError(NCCL.format("invalid usage", "ncclInvalidUsage: Duplicate GPU detected")),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", OF_COMMUNICATION, ids=str)
def test_an_error_of_the_communication_gets_its_own_kind_and_says_what_to_do(error: Exception) -> None:
    assert is_of_communication(error)
    with pytest.raises(CommunicationError) as named, naming_lost_processes():
        raise error
    assert str(error).partition("\n")[0] in str(named.value)
    assert named.value is error or "run the same command again" in str(named.value)


@pytest.mark.parametrize("error", NOT_OF_COMMUNICATION, ids=str)
def test_an_error_of_anything_else_stays_as_it_is(error: BaseException) -> None:
    assert not is_of_communication(error)
    with pytest.raises(type(error)) as named, naming_lost_processes():
        raise error
    assert named.value is error


class Group:
    """A process group of this process alone, and the server of its store, which can die."""

    def __init__(self) -> None:
        self._server: Any = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store = distributed.TCPStore("127.0.0.1", self._server.port, is_master=False)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.ranks = DistributedRanks(torch.device("cpu"), seconds_to_arrive=0.2)

    def lose_store(self) -> None:
        self._server = None


@pytest.fixture
def make_group() -> Iterator[Callable[[], Group]]:
    yield Group
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.slow
def test_a_lost_store_is_noticed_while_a_trial_runs(make_group: Callable[[], Group]) -> None:
    group = make_group()
    group.ranks.check_connected()
    noticed: list[CommunicationError] = []

    def is_noticed() -> bool:
        try:
            group.ranks.check_connected()
        except CommunicationError as error:
            noticed.append(error)
        return bool(noticed)

    def train() -> None:
        group.lose_store()
        wait_until(is_noticed)
        raise noticed[0]

    with pytest.raises(CommunicationError, match="DistNetworkError"):
        group.ranks.together(train)
    assert noticed


def fail() -> None:
    raise ValueError("a bad batch")


def test_an_error_of_all_processes_is_raised_as_it_is_and_they_work_together_again(
    make_group: Callable[[], Group],
) -> None:
    group = make_group()
    with pytest.raises(ValueError, match="a bad batch"):
        group.ranks.together(fail)
    assert group.ranks.together(lambda: group.ranks.decide(lambda: 7)) == 7


def test_a_search_finds_nothing_of_one_before_it_in_a_store_that_torchrun_has_kept(
    make_group: Callable[[], Group],
) -> None:
    group = make_group()
    assert group.ranks.together(lambda: 7) == 7
    restarted = DistributedRanks(torch.device("cpu"))
    with pytest.raises(ValueError, match="a bad batch"):
        restarted.together(fail)


def test_an_error_of_the_group_is_named_and_the_group_is_not_used_again(make_group: Callable[[], Group]) -> None:
    group = make_group()

    def train() -> None:
        raise RuntimeError(CLOSED)

    with pytest.raises(CommunicationError, match="Connection closed by peer"):
        group.ranks.together(train)
    assert_not_used_again(group.ranks, "Connection closed by peer")


def test_a_process_that_fails_waits_a_limited_time_for_one_that_does_not_come(make_group: Callable[[], Group]) -> None:
    group = make_group()
    group.ranks.size = 2  # the other one is in a collective
    began = time.monotonic()
    with pytest.raises(ProcessFailedError, match="Process 0 failed with ValueError: a bad batch") as raised:
        group.ranks.together(fail)
    assert isinstance(raised.value.error, ValueError)
    assert time.monotonic() - began < 20
    assert_not_used_again(group.ranks, "a bad batch")


def test_a_process_that_is_interrupted_waits_for_no_other(make_group: Callable[[], Group]) -> None:
    group = make_group()
    group.ranks.size = 2

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DistributedRanks(torch.device("cpu"), seconds_to_arrive=600).together(interrupt)
    assert_not_used_again(group.ranks, "KeyboardInterrupt")


def test_ctrl_c_while_the_processes_meet_ends_the_use_of_the_group(
    make_group: Callable[[], Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group()

    def press(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(distributed, "barrier", press)
    with pytest.raises(KeyboardInterrupt):
        group.ranks.together(lambda: 7)
    monkeypatch.undo()
    assert_not_used_again(group.ranks, "interrupted")


def assert_not_used_again(ranks: DistributedRanks, reason: str) -> None:
    """Check that no collective is begun, by this search or by the next one of this process."""
    for use in (
        lambda: ranks.decide(lambda: 7),
        lambda: ranks.agree(lambda: True),
        lambda: ranks.largest(7),
        lambda: ranks.together(lambda: 7),
        lambda: DistributedRanks(torch.device("cpu")),
    ):
        with pytest.raises(CommunicationError, match=reason):
            use()


class Raises(TrainerCallback):
    """Raises an error after a step of a trial, once; a signal may come before."""

    def __init__(self, error: Exception, trial: int, step: int, number: int = 0) -> None:
        self._error, self._signal = error, number
        self._where: tuple[int, int] | None = (trial, step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (int(Path(args.output_dir).name.split("-")[1]), state.global_step) == self._where:
            self._where = None
            if self._signal:
                signal.raise_signal(self._signal)
            raise self._error


SPACE = {"learning_rate": Float(1e-3, 1e-1, log=True)}
SEARCH: dict[str, Any] = {"n_trials": 3, "compute_objective": "loss", "pruner": "none", "max_failures": 1}


def test_a_trial_that_loses_a_process_is_interrupted_and_resumed_by_the_same_call(tmp_path: Path) -> None:
    lost = CommunicationError("one of them has died")
    trainer = small_trainer(tmp_path, Raises(lost, 1, 6), save_strategy="epoch")
    with pytest.raises(CommunicationError, match="one of them has died"):
        trainer.hyperparameter_search(SPACE, **SEARCH)
    best = trainer.hyperparameter_search(SPACE, **SEARCH)
    records = best.run_summary.records
    assert [record.state.value for record in records] == ["complete"] * 3
    assert [len(record.spans) for record in records] == [1, 2, 1]
    assert [len(record.reports) for record in records] == [2, 2, 2]


@pytest.mark.parametrize("number", [0, signal.SIGTERM])
def test_a_trial_of_which_one_process_fails_is_failed_also_if_the_launcher_ends_the_others_and_is_not_trained_again(
    tmp_path: Path, number: int
) -> None:
    failed = ProcessFailedError(1, RuntimeError("a bad batch"))
    trainer = small_trainer(tmp_path, Raises(failed, 1, 6, number), save_strategy="epoch")
    with pytest.raises(ProcessFailedError, match="Process 1 failed with RuntimeError: a bad batch"):
        trainer.hyperparameter_search(SPACE, **SEARCH)
    records = trainer.hyperparameter_search(SPACE, **SEARCH).run_summary.records
    assert [record.state.value for record in records] == ["complete", "failed", "complete"]
    assert records[1].reason == "RuntimeError: a bad batch"


@pytest.mark.parametrize(
    ("error", "state"), [(StorageError("the storage cannot be reached"), "interrupted"), (SpaceError("no"), "refused")]
)
def test_an_error_of_one_process_that_is_no_failure_of_the_trial_ends_the_search_as_in_one_process(
    tmp_path: Path, error: Exception, state: str
) -> None:
    trainer = small_trainer(tmp_path, Raises(ProcessFailedError(1, error), 1, 6))
    with pytest.raises(type(error)) as raised:
        trainer.hyperparameter_search(SPACE, **SEARCH)
    assert raised.value is error
    assert [record["state"] for record in records_on_disk(tmp_path / "study")] == ["complete", state]
