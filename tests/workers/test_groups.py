"""Trials that groups of processes train: the numbers of one process, and what happens if a process fails or dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers

from hpsearch import CannotResumeError, SearchInterrupted, StudyError, TrainingArguments, tune
from hpsearch.executors.processes import process_executor
from hpsearch.executors.processes.group_checks import effective_batch
from hpsearch.executors.processes.rendezvous import Rendezvous
from hpsearch.search.metrics.objective import resolve_objectives
from hpsearch.search.study import Study, as_space
from hpsearch.trainer.searchable_trainer import SearchableTrainer
from tests.support import in_groups, in_workers
from tests.support.in_groups import (
    SPACE,
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
    listening_addresses,
    reports,
    search,
    stop,
)
from tests.support.launch import start
from tests.support.models import bert_classifier, classification_data
from tests.support.search_processes import assert_disk_and_storage_agree, wait_until
from tests.support.searching import Diary, Events, HearsNotices, states
from tests.support.small_trainer import TwoLayers, points, small_trainer, transformers_trainer

process = pytest.mark.process


def under_torchrun(folder: Path, name: str) -> list[list[list[float]]]:
    """Return the reports of a scenario of `distributed_search`, trained by two processes of torchrun."""
    start("torchrun", "tests.support.distributed_search", [str(folder), name])
    records = json.loads((folder / f"{name}-0.json").read_text())["records"]
    return [[[each["step"], *each["values"]] for each in record["reports"]] for record in records]


@process
def test_two_groups_of_two_report_what_one_process_reports_and_stay_warm(tmp_path: Path) -> None:
    events, diary = Events(), Diary(tmp_path / "diary")
    best = search(tmp_path / "groups", 4, WritesEnvironment(diary), n_jobs=2, progress=events)
    assert states(best) == ["complete"] * 4
    assert_same(best, reports(search(tmp_path / "alone", 4, processes_per_trial=1)))
    assert any("2 groups of 2 processes on the CPU, each process with" in note for note in events.notes)
    assert "effective batch 4: 2 (processes_per_trial) x 2 (per_device_train_batch_size)" in events.notes
    assert {record.processes for record in best.run_summary.records} == {2}
    begun = diary.read()
    assert len(begun) == 2 * 4
    assert {(each["RANK"], each["LOCAL_RANK"], each["WORLD_SIZE"], each["MASTER_ADDR"]) for each in begun} == {
        (rank, rank, "2", "127.0.0.1") for rank in ("0", "1")
    }
    assert {each["backend"] for each in begun} == {"gloo"}
    assert len({each["pid"] for each in begun}) == 4  # no process was replaced
    assert len({(each["pid"], each["group"]) for each in begun}) == 4  # and no process group
    assert len({each["MASTER_PORT"] for each in begun}) == 2  # one for each group of processes
    assert {address for each in begun for address in each["listens_on"]} == {"127.0.0.1"}


@process
@pytest.mark.parametrize("several", [{"repeats": 2}, {"folds": 3}], ids=["repeats", "folds"])
def test_groups_train_the_further_runs_of_trials_as_one_process_does(tmp_path: Path, several: dict[str, Any]) -> None:
    data = {"eval_dataset": None, "eval_strategy": "no", "train_dataset": points(18, 0)} if "folds" in several else {}
    options = {"hp_space": {"learning_rate": SPACE["learning_rate"]}, "trainer": data, **several}
    best = search(tmp_path / "groups", 3, n_jobs=1, **options)
    alone = search(tmp_path / "alone", 3, processes_per_trial=1, **options)
    assert_same(best, reports(alone))
    assert [each.replica for each in best.run_summary.records] == [each.replica for each in alone.run_summary.records]
    assert list(best.values or {}) == list(range(3)) if "folds" in several else [42, 43]
    assert any(each.replica is not None for each in best.run_summary.records)


def test_the_processes_of_a_group_meet_on_the_loopback_address_only() -> None:
    before = listening_addresses(os.getpid())
    rendezvous = Rendezvous(2)
    port = int(rendezvous.variables(1)["MASTER_PORT"])
    other = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    other.set("key", "value")
    assert listening_addresses(os.getpid()) - before <= {"127.0.0.1"}
    assert other.get("key") == b"value"


@process
def test_the_trials_of_groups_are_those_of_torchrun(tmp_path: Path) -> None:
    best = search(tmp_path / "groups", 4, n_jobs=2)
    assert_same(best, under_torchrun(tmp_path, "drawn"))


@process
def test_groups_shard_a_model_as_torchrun_does(tmp_path: Path) -> None:
    of_trainer = {
        "model_init": bert_classifier,
        "train_dataset": classification_data(),
        "eval_dataset": classification_data(seed=1),
        "per_device_train_batch_size": 8,
        "save_strategy": "no",
        "fsdp": True,
        "fsdp_config": {"transformer_layer_cls_to_wrap": ["BertLayer"]},
    }
    trainer = small_trainer(tmp_path / "groups", **of_trainer)
    best = trainer.hyperparameter_search(
        {"learning_rate": SPACE["learning_rate"]},
        "loss",
        n_trials=2,
        pruner="none",
        processes_per_trial=2,
        progress=False,
    )
    assert states(best) == ["complete"] * 2
    assert_same(best, under_torchrun(tmp_path, "sharded"))
    assert best.load_model() is not None


@process
@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_arguments_that_do_not_ask_for_the_cpu_train_in_groups_where_there_is_no_gpu(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    best = search(tmp_path / "groups", 1, WritesEnvironment(diary), trainer={"use_cpu": False})
    assert states(best) == ["complete"]
    assert {each["backend"] for each in diary.read()} == {"gloo"}
    assert_same(best, reports(search(tmp_path / "alone", 1, processes_per_trial=1)))


@process
@pytest.mark.parametrize("rank", [0, 1])
def test_a_trial_of_which_a_process_dies_resumes_in_a_new_group_and_ends_as_if_nothing_had_happened(
    tmp_path: Path, rank: int
) -> None:
    once, diary, heard = Diary(tmp_path / "once"), Diary(tmp_path / "diary"), HearsNotices()
    dies = Once(kill, "run-1", 6, rank, once)
    best = search(tmp_path / "died", 3, WritesSteps(diary), dies, progress=heard)
    assert states(best) == ["complete"] * 3
    assert_same(best, reports(search(tmp_path / "alone", 3, processes_per_trial=1)))
    assert any(f"trial 1 has lost its worker (process {rank} of 2: SIGKILL" in each for each in heard.notices)
    steps = [step for run, step, at, _ in diary.read() if (run, at) == ("run-1", 1 - rank)]
    assert steps in ([1, 2, 3, 4, 5, 6, 5, 6, 7, 8], [1, 2, 3, 4, 5, 5, 6, 7, 8])  # from the checkpoint after step 4
    first, second = ({pid for run, *_, pid in diary.read() if run == name} for name in ("run-0", "run-2"))
    assert len(first) == len(second) == 2
    assert not first & second
    assert not any(map(psutil.pid_exists, first))
    assert_disk_and_storage_agree(tmp_path / "died" / "study")


@process
@pytest.mark.parametrize("rank", [0, 1])
def test_a_group_of_which_a_process_hangs_is_ended_and_its_trial_resumes(tmp_path: Path, rank: int) -> None:
    once, diary, heard = Diary(tmp_path / "once"), Diary(tmp_path / "diary"), HearsNotices()
    hangs = Once(stop, "run-0", 6, rank, once)
    best = search(tmp_path / "hung", 2, WritesSteps(diary), hangs, progress=heard, group_timeout=8)
    assert states(best) == ["complete"] * 2
    assert any("trial 0 has lost its worker (no answer for 8 s)" in each for each in heard.notices)
    hung, after = ({pid for run, *_, pid in diary.read() if run == name} for name in ("run-0", "run-1"))
    assert len(hung) == 4
    assert after < hung
    assert not any(map(psutil.pid_exists, hung))


@process
def test_a_long_evaluation_is_not_taken_for_a_group_that_hangs(tmp_path: Path) -> None:
    heard = HearsNotices()
    slow = {"per_device_eval_batch_size": 1, "num_train_epochs": 1}  # 16 batches, which take 8 seconds
    options: dict[str, Any] = {"preflight": False, "group_timeout": 6, "progress": heard}
    best = search(tmp_path, 1, EvaluatesSlowly(0.5), trainer=slow, **options)
    assert states(best) == ["complete"]
    assert not any("lost" in each for each in heard.notices)


@process
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_process_fails_the_trial_and_a_new_group_trains_the_next_one(tmp_path: Path, rank: int) -> None:
    once, diary = Diary(tmp_path / "once"), Diary(tmp_path / "diary")
    fails = Once(fail, "run-1", 3, rank, once)
    fails.part = DoesNotWaitLong()  # type: ignore[attr-defined]
    best = search(tmp_path / "failed", 3, WritesSteps(diary), fails)
    assert states(best) == ["complete", "failed", "complete"]
    failed = best.run_summary.records[1]
    assert failed.reason == f"RuntimeError: a bad batch{' (in process 1)' if rank else ''}"
    assert "in fail" in str(failed.traceback)
    first, second = ({pid for run, *_, pid in diary.read() if run == name} for name in ("run-0", "run-2"))
    assert not first & second
    assert_disk_and_storage_agree(tmp_path / "failed" / "study")


@process
def test_an_error_of_all_processes_fails_the_trial_and_the_group_stays(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    best = search(tmp_path / "failed", 3, WritesSteps(diary), Once(fail, "run-1", 3, None, Diary(tmp_path / "once")))
    assert states(best) == ["complete", "failed", "complete"]
    assert "RuntimeError: a bad batch" in str(best.run_summary.records[1].reason)
    assert len({pid for *_, pid in diary.read()}) == 2


@process
def test_a_group_is_replaced_after_its_number_of_trials_and_none_of_its_processes_stays(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    best = search(tmp_path / "study", 3, WritesSteps(diary), trials_per_worker=1)
    assert states(best) == ["complete"] * 3
    pids = {pid for *_, pid in diary.read()}
    assert len(pids) == 6
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))


@process
def test_a_trainer_that_one_process_of_a_group_cannot_load_is_refused_with_its_reason(tmp_path: Path) -> None:
    begun = time.monotonic()
    fails = Once(fail, "none", 0, None, Diary(tmp_path / "once"))
    fails.part = IsUnusableInTheSecond()  # type: ignore[attr-defined]
    with pytest.raises(StudyError, match=r"cannot be loaded in a worker: MemoryError: there is no room in process 1"):
        search(tmp_path, 2, fails)
    assert time.monotonic() - begun < 60


@process
def test_trials_of_tune_are_trained_by_groups_too(tmp_path: Path) -> None:
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True)  # made here, and sent to the groups
    sizes = Diary(tmp_path / "sizes")

    def make_trainer(trial: Any) -> transformers.Trainer:
        sizes.write(args.world_size)
        return transformers_trainer(tmp_path, TwoLayers(), per_device_train_batch_size=2, **trial.params)

    options: dict[str, Any] = {"n_trials": 2, "compute_objective": "loss", "sampler": "random", "pruner": "none"}
    best = tune(make_trainer, SPACE, output_dir=tmp_path, processes_per_trial=2, progress=False, **options)
    assert states(best) == ["complete"] * 2
    assert set(sizes.read()) == {1, 2}
    assert sizes.read().count(1) == 1  # a group makes the first call, and then this process, to inspect the trainer
    alone = in_workers.search(tmp_path / "alone", 2, hp_space=SPACE, n_jobs=1, sampler="random")
    for ours, theirs in zip(reports(best), reports(alone), strict=True):
        assert [each[0] for each in ours] == [each[0] for each in theirs]


@process
def test_the_processes_of_a_group_end_with_the_search_that_is_killed(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    code = (
        "from functools import partial; from pathlib import Path; import sys, time\n"
        "from tests.support.in_groups import Once, WritesSteps, search\n"
        "from tests.support.searching import Diary\n"
        "folder = Path(sys.argv[1])\n"
        "wait = Once(partial(time.sleep, 600), 'run-0', 2, None, Diary(folder / 'once'))\n"
        "search(folder, 2, WritesSteps(Diary(folder / 'diary')), wait, n_jobs=2)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=in_workers.__file__.partition("/tests/")[0]
    )
    try:
        wait_until(lambda: len({pid for *_, pid in diary.read()}) == 4 or driver.poll() is not None)
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.wait()
    pids = {pid for *_, pid in diary.read()}
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))


@process
def test_a_signal_ends_the_trial_in_all_processes_after_the_same_step_and_it_resumes(tmp_path: Path) -> None:
    diary, long = Diary(tmp_path / "diary"), {"num_train_epochs": 12}
    signals = Once(partial(os.kill, os.getpid(), signal.SIGUSR1), "run-1", 5, 0, Diary(tmp_path / "once"))
    with pytest.raises(SearchInterrupted, match="interrupted by SIGUSR1"):
        search(tmp_path / "signalled", 2, WritesSteps(diary), signals, TakesTime(0.1), trainer=long)
    last = [max(step for run, step, at, _ in diary.read() if (run, at) == ("run-1", rank)) for rank in (0, 1)]
    assert 5 <= last[0] == last[1] < 48
    best = search(tmp_path / "signalled", 2, WritesSteps(diary), trainer=long)
    assert states(best) == ["complete"] * 2
    steps = [step for run, step, at, _ in diary.read() if (run, at) == ("run-1", 0)]
    assert steps == [*range(1, 49)]  # none twice: it has written a checkpoint
    assert_same(best, reports(search(tmp_path / "alone", 2, trainer=long, processes_per_trial=1)))


@process
def test_a_half_done_trial_does_not_resume_with_another_number_of_processes(tmp_path: Path) -> None:
    interrupts = Once(interrupt, "run-1", 6, None, Diary(tmp_path / "once"))
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, 3, interrupts)
    message = (
        r"Trial 1 is half done: it was trained with 2 processes, and this search trains each trial with 1 process,"
    )
    with pytest.raises(CannotResumeError, match=message):
        search(tmp_path, 3, processes_per_trial=1)
    best = search(tmp_path, 2)
    assert states(best) == ["complete"] * 2
    events = Events()
    best = search(tmp_path, 3, processes_per_trial=1, progress=events)  # a trial of its own
    assert [record.processes for record in best.run_summary.records] == [2, 2, 1]
    assert any("processes_per_trial 2 -> 1" in note for note in events.notes)


def interrupt() -> None:
    raise KeyboardInterrupt


# What is refused, before any process starts.


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"processes_per_trial": 0}, {}, r"processes_per_trial must be a whole number of at least 1, but got 0"),
        ({"processes_per_trial": "2"}, {}, r"processes_per_trial must be a whole number of at least 1, but got '2'"),
        ({"processes_per_trial": 2, "n_jobs": 0}, {}, r"n_jobs must be -1 or a whole number of at least 1, but got 0"),
        ({"processes_per_trial": 2, "devices": [0]}, {}, r"GPU 0 does not exist"),
        ({"processes_per_trial": 2, "trials_per_device": 2}, {}, r"trials_per_device=2 and processes_per_trial=2 con"),
        (
            {"processes_per_trial": 2, "group_timeout": 0},
            {},
            r"group_timeout must be None or a number of seconds above",
        ),
        ({"processes_per_trial": 2, "group_timeout": True}, {}, r"group_timeout must be .* but got True"),
        ({"group_timeout": 60}, {}, r"group_timeout=60 is about groups of processes; pass processes_per_trial=2"),
        ({"processes_per_trial": 2}, {"ddp_backend": "nccl"}, r"ddp_backend='nccl' needs GPUs, and these trials train"),
        ({"n_jobs": 2}, {"fsdp": True}, r"shards the model of a trial over several processes, but each trial has one"),
        ({}, {"fsdp": True}, r"pass processes_per_trial=2 or more, or start the program with torchrun"),
        ({"processes_per_trail": 2}, {}, r"Did you mean 'processes_per_trial'\?"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_what_cannot_be_is_refused_before_any_work(tmp_path: Path, options: Any, arguments: Any, message: str) -> None:
    trainer = small_trainer(tmp_path, **arguments)
    with pytest.raises(StudyError, match=message):
        trainer.hyperparameter_search(SPACE, "loss", n_trials=2, progress=False, **options)
    assert not (tmp_path / "study").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="it makes two up")
def test_more_processes_than_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_executor, "_gpus", lambda: 2)
    trainer = small_trainer(tmp_path, use_cpu=False)
    with pytest.raises(StudyError, match=r"processes_per_trial=4 needs 4 GPUs, .* has 2 \(0, 1\)"):
        trainer.hyperparameter_search(SPACE, "loss", n_trials=2, progress=False, processes_per_trial=4)


def test_a_launcher_and_groups_are_refused_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    executor = process_executor.ProcessExecutor(None, None, None, 2, None, None, 3, None)
    recipe: Any = small_trainer(tmp_path)
    with pytest.raises(StudyError, match=r"processes_per_trial=2 starts workers .* was started in 2 processes"):
        executor._check_process(recipe)


@pytest.mark.parametrize(
    ("arguments", "space", "said"),
    [
        ({}, SPACE, "effective batch 8: 2 (processes_per_trial) x 4 (per_device_train_batch_size)"),
        (
            {"gradient_accumulation_steps": 3},
            SPACE,
            "effective batch 24: 2 (processes_per_trial) x 4 (per_device_train_batch_size) x 3 "
            "(gradient_accumulation_steps)",
        ),
        (
            {"gradient_accumulation_steps": 3},
            {"per_device_train_batch_size": in_groups.Int(1, 4)},
            "effective batch: 2 (processes_per_trial) x per_device_train_batch_size x 3 (gradient_accumulation_steps)",
        ),
        (
            {},
            lambda trial: None,
            "effective batch: 2 (processes_per_trial) x per_device_train_batch_size x gradient_accumulation_steps",
        ),
    ],
)
def test_the_effective_batch_is_said_as_far_as_it_is_known(
    tmp_path: Path, arguments: Any, space: Any, said: str
) -> None:
    study = Study("study", tmp_path, as_space(space), resolve_objectives("loss", None, True, 1), 2)
    recipe: Any = SearchableTrainer(small_trainer(tmp_path, **arguments))
    assert effective_batch(recipe, study, 2) == said


@process
def test_the_best_trial_of_a_group_is_evaluated_on_a_test_set_and_the_defaults_are_not(tmp_path: Path) -> None:
    listener = HearsNotices()
    best = search(tmp_path, 1, test_dataset=points(32, seed=2), progress=listener)
    assert best.test_metrics is not None
    assert best.run_summary.held_out.defaults is None
    assert listener.notices[0] == (
        "the defaults are not evaluated on the test set: they would be trained in one process, and the trials in 2"
    )
