"""A search in workers loses nothing, however many of them are killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from transformers import TrainerCallback

from hpsearch.search.trial_record import TrialState
from tests.support.search_processes import (
    RATE,
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    comparable,
    records_on_disk,
)
from tests.support.searching import Diary
from tests.support.small_trainer import small_trainer

pytestmark = pytest.mark.fault

TRIALS, KILLS = 100, 50


class WritesSteps(TrainerCallback):
    """Writes down the updates and who makes them; each takes so many seconds more."""

    def __init__(self, diary: Diary, seconds: float = 0.02) -> None:
        self._diary, self._seconds = diary, seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write((Path(args.output_dir).name, state.global_step, os.getpid()))
        time.sleep(self._seconds)


class Killer(threading.Thread):
    """Kills a process that has written into a diary lately, again and again."""

    def __init__(self, diary: Diary, seed: int, kills: int = KILLS) -> None:
        super().__init__(daemon=True)
        self._diary, self._draw, self._kills = diary, random.Random(seed), kills
        self.killed: list[int] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while len(self.killed) < self._kills and not self.is_over.wait(self._draw.uniform(0.1, 0.6)):
            latest = {pid for *_, pid in self._diary.read()[-6:]} - set(self.killed)
            if latest:
                pid = self._draw.choice(sorted(latest))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)


def search(folder: Path, diary: Diary, n_jobs: int) -> Any:
    seconds = 0.05 if n_jobs > 1 else 0.0  # there is time for all kills
    trainer = small_trainer(folder, WritesSteps(diary, seconds), save_strategy="epoch")
    return trainer.hyperparameter_search(
        RATE,
        "loss",
        n_trials=TRIALS,
        n_jobs=n_jobs,
        sampler=optuna.samplers.RandomSampler(seed=1),
        pruner="none",
        storage="journal",
        progress=False,
        **({"trial_retries": KILLS} if n_jobs > 1 else {}),
    )


def without_checkpoint(record: dict[str, Any]) -> dict[str, Any]:
    """Whether a trial kept its weights depends on those that had ended before it."""
    return {**comparable(record), "checkpoint": None}


@pytest.mark.timeout(400)
def test_fifty_killed_workers_cost_a_study_of_a_hundred_trials_nothing_but_time(tmp_path: Path) -> None:
    diary, alone = Diary(tmp_path / "diary"), Diary(tmp_path / "alone diary")
    killer = Killer(diary, seed=1)
    killer.start()
    try:
        search(tmp_path / "killed", diary, n_jobs=2)
    finally:
        killer.is_over.set()
        killer.join()
    assert len(killer.killed) == KILLS
    search(tmp_path / "alone", alone, n_jobs=1)
    records = assert_disk_and_storage_agree(tmp_path / "killed" / "study", "journal")
    others = records_on_disk(tmp_path / "alone" / "study")
    assert [without_checkpoint(each) for each in records] == [without_checkpoint(each) for each in others]
    assert {record["state"] for record in records} == {"complete"}
    assert_nothing_is_left_over(tmp_path / "killed" / "study")
    steps: dict[str, list[int]] = {}
    for run, step, _ in diary.read():
        steps.setdefault(run, []).append(step)
    for made in steps.values():
        assert made[-1] == 8
        # Whoever goes on begins after the last checkpoint: with the first update, or the fifth.
        assert all(now == before + 1 or now in (1, 5) for before, now in itertools.pairwise(made))


@pytest.mark.timeout(400)
def test_killed_workers_cost_a_search_with_rungs_no_trial(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    killer = Killer(diary, seed=2, kills=15)
    killer.start()
    trainer = small_trainer(tmp_path, WritesSteps(diary), num_train_epochs=6)
    try:
        best = trainer.hyperparameter_search(
            RATE,
            "loss",
            n_trials=40,
            n_jobs=2,
            storage="journal",
            trial_retries=15,
            progress=False,
        )
    finally:
        killer.is_over.set()
        killer.join()
    assert len(killer.killed) >= 10
    records = assert_disk_and_storage_agree(tmp_path / "study", "journal")
    assert [record["number"] for record in records] == list(range(40))
    assert {record["state"] for record in records} == {"complete", "pruned"}
    assert_nothing_is_left_over(tmp_path / "study")
    assert best.load_model() is not None
    for record in best.run_summary.records:
        if record.state is TrialState.COMPLETE:
            assert small_trainer(tmp_path, num_train_epochs=6).replay(number=record.number, progress=False).is_equal
