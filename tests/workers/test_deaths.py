"""Whatever becomes of a worker, or of what hears of a search, costs no trial that had nothing to do with it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
import torch
from transformers import TrainerCallback

from hpsearch import SearchListener
from hpsearch.executors.processes import pool, process_executor
from hpsearch.search.trial_record import TrialRecord
from hpsearch.trial import ending
from tests.support.in_workers import search
from tests.support.searching import Diary, states
from tests.support.small_trainer import CountsModels

pytestmark = pytest.mark.process


class WritesWhereRuns(TrainerCallback):
    """Writes down which process trains which run."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.diary.write((Path(args.output_dir).name, os.getpid()))


class KillsItsWorker(TrainerCallback):
    """Kills its worker after the first epoch of a run, which no other worker can build a model for."""

    def __init__(self, diary: Diary, run: str) -> None:
        self.diary, self.run = diary, run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path(args.output_dir).name == self.run and self.diary.read():
            raise RuntimeError("this run is unlucky")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path(args.output_dir).name == self.run and state.epoch > 1:
            self.diary.write("died")
            os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_trial_has_shown_in_a_worker_that_died_stays_known_if_the_next_one_cannot_go_on(tmp_path: Path) -> None:
    best = search(tmp_path, 3, KillsItsWorker(Diary(tmp_path / "diary"), "run-1"), n_jobs=1, trials_per_worker=9)
    assert states(best) == ["complete", "failed", "complete"]
    failed = best.run_summary.records[1]
    assert [each.epoch for each in failed.reports] == [1.0]
    assert failed.epochs == 1.0
    assert failed.values == (failed.reports[0].value,)
    assert "this run is unlucky" in failed.reason


class KillsTheWorkerOf(SearchListener):
    """Kills the worker of a trial that has just ended, and waits until it is gone."""

    def __init__(self, name: str, diary: Diary) -> None:
        self.name, self.diary = name, diary

    def on_trial_end(self, record: TrialRecord) -> None:
        if record.name == self.name:
            pid = dict(self.diary.read())[self.name]
            os.kill(pid, signal.SIGKILL)
            until = time.monotonic() + 30
            while psutil.pid_exists(pid) and time.monotonic() < until:
                time.sleep(0.01)


def test_a_worker_that_dies_between_two_trials_costs_none(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    killing = KillsTheWorkerOf("run-1", diary)
    best = search(tmp_path, 4, WritesWhereRuns(diary), n_jobs=1, trials_per_worker=9, trial_retries=0, progress=killing)
    assert states(best) == ["complete"] * 4
    pids = [pid for _, pid in diary.read()]
    assert pids[0] == pids[1] != pids[2] == pids[3]


class CannotBeLoadedOnce(CountsModels):
    """A `model_init` that cannot be loaded while a file is there, which it deletes."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.file.exists():
            self.file.unlink()
            raise MemoryError("there is no room just now")


class DiesOnce(TrainerCallback):
    """Ends its process in the second run, the first time, and lets the next one not load the trainer."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        marker = self.file.with_name("has died")
        if Path(args.output_dir).name == "run-1" and not marker.exists():
            marker.touch()
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_cannot_load_what_others_could_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "no room"
    trainer = {"model_init": CannotBeLoadedOnce(file)}
    best = search(tmp_path, 4, DiesOnce(file), trainer=trainer, n_jobs=1, trials_per_worker=9)
    assert states(best) == ["complete"] * 4
    assert (tmp_path / "has died").exists()
    assert not file.exists()


class CannotBeLoaded(CannotBeLoadedOnce):
    """A `model_init` that cannot be loaded while a file is there."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.file.exists():
            raise MemoryError("there is no room any more")


def test_workers_go_on_without_one_that_cannot_be_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "no room"
    slow = IsSlowExceptIn("run-1", Diary(tmp_path / "diary"), together=2)
    best = search(tmp_path, 4, DiesOnce(file), slow, trainer={"model_init": CannotBeLoaded(file)})
    assert states(best) == ["complete"] * 4
    assert "No worker can be started: MemoryError: there is no room any more" in caplog.text
    assert "the other workers continue" in caplog.text


class FailsIn(TrainerCallback):
    def __init__(self, name: str) -> None:
        self.name = name

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path(args.output_dir).name == self.name:
            raise RuntimeError("device-side assert triggered")


@pytest.mark.skipif(torch.cuda.is_available(), reason="it makes one up")
@pytest.mark.parametrize(("gpus", "is_replaced"), [(1, True), (0, False)])
def test_a_worker_with_a_gpu_is_replaced_after_a_trial_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, is_replaced: bool
) -> None:
    monkeypatch.setattr(process_executor, "_gpus", lambda: gpus)  # there is none, so the trainings use the CPU
    diary = Diary(tmp_path / "diary")
    options: dict[str, Any] = {"devices": [0]} if gpus else {"n_jobs": 1, "trials_per_worker": 9}
    best = search(
        tmp_path,
        4,
        WritesWhereRuns(diary),
        FailsIn("run-1"),
        trainer={"use_cpu": not gpus},
        **{"n_jobs": None, **options},
    )
    assert states(best) == ["complete", "failed", "complete", "complete"]
    pids = [pid for _, pid in diary.read()]
    assert pids[0] == pids[1]
    assert (pids[1] != pids[2]) is is_replaced
    assert pids[2] == pids[3]


class LeavesAThread(TrainerCallback):
    """Keeps its process from ending by itself."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        threading.Thread(target=time.sleep, args=(600,)).start()


class LooksForTheFirst(SearchListener):
    """Notes at the end of each trial whether the process of the first one is there."""

    def __init__(self, diary: Diary) -> None:
        self.diary, self.is_there = diary, dict[str, bool]()

    def on_trial_end(self, record: TrialRecord) -> None:
        self.is_there[record.name] = psutil.pid_exists(dict(self.diary.read())["run-0"])


def test_a_worker_that_was_replaced_and_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SECONDS_TO_RETIRE", 0.0)
    diary = Diary(tmp_path / "diary")
    looks = LooksForTheFirst(diary)
    callbacks = WritesWhereRuns(diary), LeavesAThread()
    search(tmp_path, 2, *callbacks, n_jobs=1, trials_per_worker=1, progress=looks)
    assert looks.is_there == {"run-0": True, "run-1": False}


class FailsAtEveryEnd(SearchListener):
    def on_trial_end(self, record: TrialRecord) -> None:
        raise RuntimeError(f"cannot tell of {record.name}")


class IsSlowExceptIn(TrainerCallback):
    """Lets one run end while all others are under way."""

    def __init__(self, name: str, diary: Diary, together: int = 3) -> None:
        self.name, self.diary, self.together = name, diary, together

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.diary.write(Path(args.output_dir).name)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        until = time.monotonic() + 60
        if Path(args.output_dir).name != self.name:
            time.sleep(0.5)
        while len(self.diary.read()) < self.together and time.monotonic() < until:
            time.sleep(0.01)


def test_a_listener_that_fails_again_and_again_leaves_no_trial_running(tmp_path: Path) -> None:
    slow = IsSlowExceptIn("run-0", Diary(tmp_path / "diary"))
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="cannot tell of run-0"):
        search(tmp_path, 9, slow, n_jobs=3, progress=FailsAtEveryEnd())
    found = {each.parent.name: json.loads(each.read_text())["state"] for each in tmp_path.glob("study/*/trial.json")}
    assert found == {"run-0": "complete", "run-1": "interrupted", "run-2": "interrupted"}
    assert time.monotonic() - begun < 60


def broken(*_: Any) -> str:
    raise RuntimeError("CUDA error: device-side assert triggered")


class BreaksWhatComesAfterTheEnd(TrainerCallback):
    """Lets its process fail after each trial, as one does whose GPU is in no good state any more."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ending.whereabouts = broken
        ending.Execution.release = broken


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_error_after_the_end_of_a_trial_does_not_change_how_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_jobs: int, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ending, "whereabouts", ending.whereabouts)  # to be put back
    monkeypatch.setattr(ending.Execution, "release", ending.Execution.release)
    best = search(tmp_path, 3, BreaksWhatComesAfterTheEnd(), n_jobs=n_jobs)
    assert states(best) == ["complete"] * 3
    assert [span.where for each in best.run_summary.records for span in each.spans] == [""] * 3
    said = caplog.text if n_jobs == 1 else (tmp_path / "study" / "run-1" / "output.log").read_text()
    assert "After the end of trial 1" in said


MOMENTS = {"run-0": "on_train_begin", "run-1": "on_evaluate", "run-2": "on_save", "run-3": "on_train_end"}


class DiesWhen(TrainerCallback):
    """Kills its worker, once in each run, at the moment of the run."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary
        for run, event in MOMENTS.items():
            setattr(self, event, partial(self.die, run))

    def die(self, run: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if run == Path(args.output_dir).name and run not in self.diary.read():
            self.diary.write(run)
            os.kill(os.getpid(), signal.SIGKILL)


def test_whenever_a_worker_dies_its_trial_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    died, alone = (
        search(
            tmp_path / name,
            4,
            *callbacks,
            n_jobs=n_jobs,
            trainer={"save_strategy": "epoch"},
            sampler=optuna.samplers.RandomSampler(seed=3),
        ).run_summary.records
        for name, n_jobs, callbacks in (("died", 2, [DiesWhen(diary)]), ("alone", 1, []))
    )
    assert sorted(diary.read()) == sorted(MOMENTS)
    for one, other in zip(died, alone, strict=True):
        assert (one.state, one.params, one.values) == (other.state, other.params, other.values)
        assert [(each.step, each.value) for each in one.reports] == [(each.step, each.value) for each in other.reports]
