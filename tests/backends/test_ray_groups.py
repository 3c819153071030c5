"""Groups of processes on Ray: the numbers of their trials, and what happens if a process or a node dies or hangs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

pytest.importorskip("ray")

import ray
from ray.tune.schedulers import PopulationBasedTraining
from transformers import TrainerCallback

from hpsearch import (
    BestRun,
    CannotResumeError,
    CommunicationError,
    Float,
    SearchInterrupted,
    StudyError,
    TrainingArguments,
    tune,
)
from hpsearch.backends.ray_backend import RayBackend
from hpsearch.executors.ray_executor.cluster import joined
from hpsearch.executors.ray_executor.group_training import Group, GroupLost, GroupSettings
from tests.support.in_groups import (
    DoesNotWaitLong,
    EvaluatesSlowly,
    IsUnusableInTheSecond,
    Once,
    TakesTime,
    WritesEnvironment,
    WritesSteps,
    assert_same,
    fail,
    kill,
    reports,
    search,
    stop,
)
from tests.support.models import bert_classifier, classification_data
from tests.support.ray_clusters import child_cluster
from tests.support.search_processes import assert_disk_and_storage_agree, wait_until
from tests.support.searching import Diary, Events, HearsNotices, states
from tests.support.small_trainer import TwoLayers, small_trainer
from tests.support.warm_workers import warm_workers

on_ray = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


def marked(test: Any) -> Any:
    """Mark a test that searches on the local instance of all tests."""
    for mark in on_ray:
        test = mark(test)
    return test


def search_on_ray(folder: Path, n_trials: int, *callbacks: Any, **options: Any) -> BestRun:
    return search(folder, n_trials, *callbacks, **{"backend": "ray", "max_concurrent_trials": 1, **options})


def pids_of(diary: Diary, run: str) -> set[int]:
    """Return the processes that have trained a run, as `WritesSteps` has written them down."""
    return {pid for name, *_, pid in diary.read() if name == run}


@marked
def test_a_group_reports_what_one_process_reports_and_stays_warm(tmp_path: Path) -> None:
    events, diary = Events(), Diary(tmp_path / "diary")
    best = search_on_ray(tmp_path / "group", 3, WritesEnvironment(diary), progress=events)
    assert states(best) == ["complete"] * 3
    assert_same(best, reports(search(tmp_path / "alone", 3, processes_per_trial=1)))
    assert {record.processes for record in best.run_summary.records} == {2}
    assert any("1 parallel trial, each with 2 CPUs for 2 processes" in note for note in events.notes)
    assert "effective batch 4: 2 (processes_per_trial) x 2 (per_device_train_batch_size)" in events.notes
    begun = diary.read()
    assert len(begun) == 2 * 3
    assert {(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"], each["MASTER_ADDR"]) for each in begun} == {
        (rank, rank, "2", "127.0.0.1") for rank in ("0", "1")
    }
    assert {each["backend"] for each in begun} == {"gloo"}
    assert len({each["pid"] for each in begun}) == 2  # no process was replaced
    assert len({(each["pid"], each["group"]) for each in begun}) == 2  # and no process group
    assert {address.removeprefix("::ffff:") for each in begun for address in each["listens_on"]} == {"127.0.0.1"}
    wait_until(lambda: not any(map(psutil.pid_exists, {each["pid"] for each in begun})))


@marked
def test_a_group_shards_a_model_as_one_on_this_machine_does(tmp_path: Path) -> None:
    sharded = {
        "model_init": bert_classifier,
        "train_dataset": classification_data(),
        "eval_dataset": classification_data(seed=1),
        "per_device_train_batch_size": 8,
        "save_strategy": "no",
        "fsdp": True,
        "fsdp_config": {"transformer_layer_cls_to_wrap": ["BertLayer"]},
    }
    best = search_on_ray(tmp_path / "on Ray", 1, trainer=sharded)
    assert states(best) == ["complete"]
    assert_same(best, reports(search(tmp_path / "here", 1, trainer=sharded)))
    assert best.load_model() is not None


@marked
@pytest.mark.parametrize("rank", [0, 1])
def test_a_trial_of_which_a_process_dies_resumes_in_a_new_group_and_ends_as_if_nothing_had_happened(
    tmp_path: Path, rank: int
) -> None:
    diary, heard = Diary(tmp_path / "diary"), HearsNotices()
    dies = Once(kill, "run-1", 6, rank, Diary(tmp_path / "once"))
    best = search_on_ray(tmp_path / "died", 3, WritesSteps(diary), dies, progress=heard)
    assert states(best) == ["complete"] * 3
    assert_same(best, reports(search(tmp_path / "alone", 3, processes_per_trial=1)))
    assert any(f"trial 1 has lost its worker (process {rank} of 2: it has died)" in each for each in heard.notices)
    steps = [step for run, step, at, _ in diary.read() if (run, at) == ("run-1", 1 - rank)]
    assert steps in ([1, 2, 3, 4, 5, 6, 5, 6, 7, 8], [1, 2, 3, 4, 5, 5, 6, 7, 8])  # from the checkpoint after step 4
    first, second = pids_of(diary, "run-0"), pids_of(diary, "run-2")
    assert len(first) == len(second) == 2
    assert not first & second
    wait_until(lambda: not any(map(psutil.pid_exists, first)))
    assert_disk_and_storage_agree(tmp_path / "died" / "study")


@marked
@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_of_which_a_process_hangs_is_ended_and_its_trial_resumes(tmp_path: Path, rank: int) -> None:
    diary, heard = Diary(tmp_path / "diary"), HearsNotices()
    hangs = Once(stop, "run-0", 6, rank, Diary(tmp_path / "once"))
    best = search_on_ray(tmp_path / "hung", 2, WritesSteps(diary), hangs, progress=heard, group_timeout=15)
    assert states(best) == ["complete"] * 2
    assert any("trial 0 has lost its worker (no answer for 15 s)" in each for each in heard.notices)
    hung, after = pids_of(diary, "run-0"), pids_of(diary, "run-1")
    assert len(hung) == 4
    assert after < hung
    wait_until(lambda: not any(map(psutil.pid_exists, hung)))  # the stopped one, too


@marked
def test_a_long_evaluation_is_not_taken_for_a_group_that_hangs(tmp_path: Path) -> None:
    heard = HearsNotices()
    slow = {"per_device_eval_batch_size": 1, "num_train_epochs": 1}  # 16 batches, which take 16 seconds
    options: dict[str, Any] = {"preflight": False, "group_timeout": 12, "progress": heard}
    best = search_on_ray(tmp_path, 1, EvaluatesSlowly(1.0), trainer=slow, **options)
    assert states(best) == ["complete"]
    assert not any("lost" in each for each in heard.notices)


@marked
def test_a_process_that_dies_too_often_fails_its_trial_only(tmp_path: Path) -> None:
    dies = Once(kill, "run-0", 2, 1, Diary(tmp_path / "once"))
    best = search_on_ray(tmp_path / "died", 2, dies, trial_retries=0)
    assert states(best) == ["failed", "complete"]
    assert "process 1 of 2: it has died" in str(best.run_summary.records[0].reason)


@marked
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_process_fails_the_trial_and_a_new_group_trains_the_next_one(tmp_path: Path, rank: int) -> None:
    diary = Diary(tmp_path / "diary")
    fails = Once(fail, "run-1", 3, rank, Diary(tmp_path / "once"))
    fails.part = DoesNotWaitLong()  # type: ignore[attr-defined]
    best = search_on_ray(tmp_path / "failed", 3, WritesSteps(diary), fails)
    assert states(best) == ["complete", "failed", "complete"]
    failed = best.run_summary.records[1]
    assert failed.reason == f"RuntimeError: a bad batch{' (in process 1)' if rank else ''}"
    assert "in fail" in str(failed.traceback)
    assert not pids_of(diary, "run-0") & pids_of(diary, "run-2")
    assert_disk_and_storage_agree(tmp_path / "failed" / "study")


@marked
def test_an_error_of_all_processes_fails_the_trial_and_the_group_stays(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    fails = Once(fail, "run-1", 3, None, Diary(tmp_path / "once"))
    best = search_on_ray(tmp_path / "failed", 3, WritesSteps(diary), fails)
    assert states(best) == ["complete", "failed", "complete"]
    assert len({pid for *_, pid in diary.read()}) == 2


@marked
def test_a_trainer_that_one_process_of_a_group_cannot_load_is_refused_with_its_reason(tmp_path: Path) -> None:
    fails = Once(fail, "none", 0, None, Diary(tmp_path / "once"))
    fails.part = IsUnusableInTheSecond()  # type: ignore[attr-defined]
    with pytest.raises(StudyError, match=r"cannot be loaded in a worker: MemoryError: there is no room in process 1"):
        search_on_ray(tmp_path, 2, fails, group_timeout=60)


class DiesOnceInTheSecond(TwoLayers):
    """A part of a trainer: the second process of the first group that loads it dies of that."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def __reduce__(self) -> Any:
        return _die_once_in_the_second, (self.mark,)


def _die_once_in_the_second(mark: Path) -> None:
    if os.environ.get("RANK") == "1" and not mark.exists():
        mark.touch()
        kill()


@marked
def test_a_process_that_dies_while_it_loads_the_trainer_is_replaced_with_its_group(tmp_path: Path) -> None:
    dies, heard = Once(fail, "none", 0, None, Diary(tmp_path / "once")), HearsNotices()
    dies.part = DiesOnceInTheSecond(tmp_path / "mark")  # type: ignore[attr-defined]
    best = search_on_ray(tmp_path / "study", 1, dies, progress=heard)
    assert states(best) == ["complete"]
    assert any("trial 0 has lost its worker (process 1 of 2: it has died)" in each for each in heard.notices)


@ray.remote(num_cpus=0)
class Answers:
    """A process of a group that has lost its connection to another one, or is the one that dies."""

    def lost(self) -> CommunicationError:
        return CommunicationError("connection closed by peer")

    def dies(self) -> None:
        time.sleep(0.5)  # it is heard of after the other process
        os._exit(1)


@marked
def test_a_connection_that_was_lost_by_a_death_is_no_error_of_the_trainer() -> None:
    group = Group(None, None, GroupSettings(2, {}, 60.0, ()))  # type: ignore[arg-type]
    with pytest.raises(GroupLost, match="process 1 of 2: it has died"):
        group._all([Answers.remote().lost.remote(), Answers.remote().dies.remote()])
    with pytest.raises(GroupLost, match="connection closed by peer"):
        group._all([Answers.remote().lost.remote()])


@marked
def test_a_signal_ends_the_trial_in_all_processes_after_the_same_step_and_it_resumes(tmp_path: Path) -> None:
    diary, long = Diary(tmp_path / "diary"), {"num_train_epochs": 12}
    signals = Once(Signals(os.getpid()), "run-0", 5, 0, Diary(tmp_path / "once"))
    with pytest.raises(SearchInterrupted, match="interrupted by SIGUSR1"):
        search_on_ray(tmp_path / "signalled", 1, WritesSteps(diary), signals, TakesTime(0.1), trainer=long)
    last = [max(step for _, step, at, _ in diary.read() if at == rank) for rank in (0, 1)]
    assert 5 <= last[0] == last[1] < 48
    with pytest.raises(CannotResumeError, match=r"Trial 0 is half done: it was trained with 2 processes"):
        search_on_ray(tmp_path / "signalled", 1, trainer=long, processes_per_trial=1)
    best = search_on_ray(tmp_path / "signalled", 1, WritesSteps(diary), trainer=long)
    assert states(best) == ["complete"]
    steps = [step for _, step, at, _ in diary.read() if at == 0]
    assert steps == [*range(1, 49)]  # none twice: it has written a checkpoint


class Signals:
    """Sends SIGUSR1 to a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __call__(self) -> None:
        psutil.Process(self.pid).send_signal(10)


@marked
def test_the_trials_of_a_population_are_trained_by_groups_and_resume_from_each_other(tmp_path: Path) -> None:
    options = {"time_attr": "training_iteration", "perturbation_interval": 2, "quantile_fraction": 0.5}
    scheduler = PopulationBasedTraining(
        **options, resample_probability=1.0, hyperparam_mutations={"learning_rate": [0.1]}, synch=True
    )
    given: dict[str, Any] = {"scheduler": scheduler, "pruner": None, "trainer": {"num_train_epochs": 4}}
    best = search_on_ray(tmp_path, 2, preflight=False, **given)
    records = best.run_summary.records
    assert {record.state.value for record in records} <= {"complete", "pruned", "stopped"}
    assert sum(record.params["learning_rate"] == 0.1 for record in records) == 1
    assert [len(record.reports) for record in records] == [4, 4]


# On several nodes -----------------------------------------------------------------------------------------------------


class WritesNodes(TrainerCallback):
    """Writes down on which node each process of a run makes each step, and how it reaches the others."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME")
        where = {"node": ray.get_runtime_context().get_node_id(), "rank": args.process_index, "pid": os.getpid()}
        where["address"] = ray.util.get_node_ip_address()
        run = {"run": Path(args.output_dir).name, "step": state.global_step}
        self.diary.write({**run, **where, **{name: os.environ[name] for name in names}})


class Holds(TrainerCallback):
    """Holds the first process of a run after a step until a file is there."""

    def __init__(self, run: str, step: int, go: Path) -> None:
        self.run, self.step, self.go = run, step, go

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (Path(args.output_dir).name, state.global_step, args.process_index) == (self.run, self.step, 0):
            wait_until(self.go.exists)


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """Return a cluster of a node with two CPUs, and one with one CPU."""
    with warm_workers(), child_cluster(2, 1) as cluster:
        yield cluster


@pytest.mark.ray
def test_a_group_on_two_nodes_outlives_the_death_of_one_of_them(tmp_path: Path, two_nodes: Any) -> None:
    """It first trains a trial there, which has the numbers of one process; then the node dies in the second one."""
    diary, heard, go = Diary(tmp_path / "diary"), HearsNotices(), tmp_path / "go"
    (second,) = two_nodes.worker_nodes

    def kill_second() -> None:
        wait_until(lambda: any((each["run"], each["step"]) == ("run-1", 6) for each in diary.read()), 150)
        two_nodes.remove_node(second, allow_graceful=False)
        processes = {each["pid"] for each in diary.read() if each["node"] == second.node_id}
        wait_until(lambda: not any(map(psutil.pid_exists, processes)))
        go.touch()

    killer = threading.Thread(target=kill_second)
    killer.start()
    options = {"address": two_nodes.address, "placement": "spread", "progress": heard}
    best = search_on_ray(tmp_path / "nodes", 3, WritesNodes(diary), Holds("run-1", 6, go), **options)
    killer.join()
    assert states(best) == ["complete"] * 3
    assert_same(best, reports(search(tmp_path / "alone", 3, processes_per_trial=1)))
    assert_disk_and_storage_agree(tmp_path / "nodes" / "study")
    seen = diary.read()
    first, last = ([each for each in seen if each["run"] == run] for run in ("run-0", "run-2"))
    assert len({each["node"] for each in first}) == 2
    assert {(each["rank"], each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) for each in first} == {
        (0, "0", "1"),
        (1, "0", "1"),
    }
    assert {each["MASTER_ADDR"] for each in first} == {each["address"] for each in first}  # both are this machine
    assert {each["GLOO_SOCKET_IFNAME"] for each in first}.isdisjoint({"lo", "lo0"})
    assert {each["MASTER_ADDR"] for each in last} == {"127.0.0.1"}
    assert {each["node"] for each in last} == {each["node"] for each in first} - {second.node_id}
    assert {(each["rank"], each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) for each in last} == {
        (0, "0", "2"),
        (1, "1", "2"),
    }
    assert any("trial 1 has lost its worker (" in each for each in heard.notices)
    steps = [each["step"] for each in seen if (each["run"], each["rank"]) == ("run-1", 0)]
    assert steps == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8]


@pytest.mark.ray
def test_a_group_that_the_cluster_can_never_hold_is_refused(two_nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyError) as error:
        search_on_ray(tmp_path, 1, address=two_nodes.address, resources_per_trial={"cpu": 8})
    assert "A trial asks for 8 CPUs for 2 processes, but the Ray cluster at" in str(error.value)
    assert "has room for 0 of its 2 processes, each with 4 CPUs: the largest has 2 CPUs." in str(error.value)
    with pytest.raises(StudyError, match=r"has room for 3 of its 4 processes, each with 1 CPU: .* fewer processes_per"):
        search_on_ray(tmp_path, 1, address=two_nodes.address, processes_per_trial=4)
    assert not (tmp_path / "study").exists()


@pytest.mark.ray
def test_the_processes_of_a_group_see_the_gpus_that_it_has_on_their_node(tmp_path: Path) -> None:
    """Ray has been told of GPUs that are not there, and the trainer trains on the CPU."""
    seen = Diary(tmp_path / "seen")
    with warm_workers():
        ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    try:
        with joined(None) as cluster:
            assert cluster.default_resources(2).as_bundle() == {"CPU": 1.0, "GPU": 1.0}
        best = search_on_ray(tmp_path, 1, WritesGpus(seen), resources_per_trial={"cpu": 2, "gpu": 2})
    finally:
        ray.shutdown()
    assert states(best) == ["complete"]
    first, second = sorted(seen.read())
    assert first == ["0", *second[1:]]
    assert sorted(first[1].split(",")) == ["0", "1"]


class WritesGpus(TrainerCallback):
    """Writes down which GPUs each process sees."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.diary.write([os.environ["LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"]])


# What is refused before any process starts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes_per_trial": 0}, r"processes_per_trial must be a whole number of at least 1, but got 0"),
        ({"processes_per_trial": "2"}, r"processes_per_trial must be .*, but got '2'"),
        ({"placement": "spread"}, r"placement='spread' is about the processes of a trial; pass processes_per_trial=2"),
        ({"processes_per_trial": 2, "placement": "spred"}, r"but got 'spred'. Did you mean 'spread'\?"),
        ({"group_timeout": 60}, r"group_timeout=60 is about groups of processes; pass processes_per_trial=2"),
        ({"processes_per_trial": 2, "group_timeout": -1}, r"group_timeout must be None or a number of seconds above"),
        ({"processes_per_trial": 2, "resources_per_trial": {"cpu": 3}}, r"cannot be divided among 2 processes"),
        ({"processes_per_trial": 2, "storage_path": "/shared"}, r"storage_path='/shared' contradict each other: .*"),
    ],
)
def test_options_that_cannot_be_are_refused_without_a_cluster(options: Any, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        RayBackend(**options)


@pytest.mark.parametrize(
    ("trainer", "options", "message"),
    [
        ({"fsdp": True}, {"processes_per_trial": 1}, r"shards the model of a trial over several processes, but each"),
        ({}, {"placemnt": "pack"}, r"Did you mean 'placement'\?"),
    ],
)
def test_searches_that_cannot_be_are_refused_before_ray_starts(
    tmp_path: Path, trainer: Any, options: Any, message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        search_on_ray(tmp_path, 1, trainer=trainer, **options)
    assert not ray.is_initialized()
    assert not (tmp_path / "study").exists()


def test_a_launcher_and_groups_are_refused_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    recipe: Any = small_trainer(tmp_path)
    study: Any = None
    with (
        pytest.raises(StudyError, match=r"processes_per_trial=2 starts processes .* was started in 2 processes"),
        RayBackend(processes_per_trial=2).connected(study, recipe),
    ):
        pass


@marked
@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_nccl_without_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"ddp_backend='nccl' needs GPUs, and these trials train on the CPU"):
        search_on_ray(tmp_path, 1, trainer={"ddp_backend": "nccl"}, resources_per_trial={"cpu": 2})
    assert not (tmp_path / "study").exists()


def test_the_processes_of_a_local_search_are_not_placed(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"placement='pack' is not taken: the processes of a trial are on this machi"):
        search(tmp_path, 1, placement="pack")


def test_groups_of_a_plain_function_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        StudyError, match=r"processes_per_trial=2: on Ray, each trial of a plain function has one process"
    ):
        tune(
            lambda trial: trial.params["x"],
            {"x": Float(0.0, 1.0)},
            direction="minimize",
            n_trials=2,
            backend="ray",
            processes_per_trial=2,
            progress=False,
        )
