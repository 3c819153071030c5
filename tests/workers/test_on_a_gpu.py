"""Trials on a GPU, alone and sharing it: their numbers, their memory, and what happens when that runs out."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from hpsearch import BestRun, Float
from tests.support import in_workers
from tests.support.models import bert_classifier, classification_data
from tests.support.searching import Diary, HearsNotices, states
from tests.support.small_trainer import small_trainer

pytestmark = [pytest.mark.process, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
SPACE = {"learning_rate": Float(1e-4, 1e-2, log=True)}
OF_TRAINER = {"use_cpu": False, "save_strategy": "epoch"}


def search(folder: Path, n_trials: int, *callbacks: Any, **options: Any) -> BestRun:
    given = {"n_jobs": None, "hp_space": SPACE, "sampler": "random", "trainer": OF_TRAINER, **options}
    return in_workers.search(folder, n_trials, *callbacks, **given)


def with_a_bert() -> dict[str, Any]:
    data = {"train_dataset": classification_data(), "eval_dataset": classification_data(seed=1)}
    return {**OF_TRAINER, "model_init": bert_classifier, "per_device_train_batch_size": 8, **data}


def reports(best: BestRun) -> list[list[float]]:
    return [[value for each in record.reports for value in each.values] for record in best.run_summary.records]


class WritesMemory(TrainerCallback):
    """Writes down what torch has allocated and reserved on the GPU at the first step of each run, and in whose."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.diary.write((os.getpid(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))


class MeetsAnother(TrainerCallback):
    """The runs 1 and 2 begin together."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = int(Path(args.output_dir).name.split("-")[1])
        self.diary.write(number)
        until = time.monotonic() + 60
        while number in (1, 2) and not {1, 2} <= set(self.diary.read()) and time.monotonic() < until:
            time.sleep(0.01)


class Holds(MeetsAnother):
    """Holds two fifths of the memory of the GPU while a run trains, the run 2 two thirds of it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        number = int(Path(args.output_dir).name.split("-")[1])
        if number != 2:
            self.hold(0.4)
        super().on_train_begin(args, state, control, **kwargs)
        if number == 1:  # until the other one has run out of memory
            until = time.monotonic() + 60
            while self.diary.read().count(-2) == 0 and time.monotonic() < until:
                time.sleep(0.01)
        if number == 2:
            try:
                self.hold(0.67)
            except torch.OutOfMemoryError:
                self.diary.write(-2)
                raise

    def hold(self, share: float) -> None:
        _, total = torch.cuda.mem_get_info()
        self.held = torch.empty(int(share * total), dtype=torch.uint8, device="cuda")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del self.held


def test_trials_that_share_a_gpu_have_the_numbers_of_trials_alone(tmp_path: Path) -> None:
    shared = HearsNotices()
    meets = MeetsAnother(Diary(tmp_path / "diary"))
    best = search(
        tmp_path / "shared", 6, meets, trials_per_device="auto", n_jobs=3, progress=shared, trainer=with_a_bert()
    )
    assert states(best) == ["complete"] * 6
    assert any("GPU 0: 3 trials in parallel (its memory has room for" in each for each in shared.notices)
    alone = small_trainer(tmp_path / "alone", **with_a_bert())
    expected = alone.hyperparameter_search(SPACE, "loss", n_trials=6, sampler="random", pruner="none", progress=False)
    for ours, theirs in zip(reports(best), reports(expected), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_a_trial_that_runs_out_of_memory_beside_another_runs_again_alone(tmp_path: Path) -> None:
    heard = HearsNotices()
    best = search(tmp_path, 4, Holds(Diary(tmp_path / "diary")), trials_per_device="auto", n_jobs=4, progress=heard)
    assert states(best) == ["complete"] * 4
    assert any("GPU 0: 2 trials in parallel, as the largest so far takes" in each for each in heard.notices)
    assert any("trial 2 has run out of memory on a shared GPU: it runs again alone" in each for each in heard.notices)
    assert any("GPU 0: 1 trial at a time" in each for each in heard.notices)  # since the trial that was alone


def test_a_trial_leaves_nothing_on_the_gpu(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    search(tmp_path / "study", 12, WritesMemory(diary), devices=[0], trainer=with_a_bert())
    seen = diary.read()
    assert len({pid for pid, _, _ in seen}) == 1
    assert len({allocated for _, allocated, _ in seen}) == 1
    assert max(reserved for _, _, reserved in seen[1:]) <= seen[1][2]


def test_a_trial_whose_worker_was_killed_resumes_on_the_gpu_with_the_same_numbers(tmp_path: Path) -> None:
    class Dies(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            mark = tmp_path / "died"
            if args.output_dir.endswith("run-1") and state.epoch > 1 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    best = search(tmp_path / "killed", 3, Dies(), devices=[0], trainer=with_a_bert())
    assert states(best) == ["complete"] * 3
    assert (tmp_path / "died").exists()
    expected = search(tmp_path / "undisturbed", 3, devices=[0], trainer=with_a_bert())
    for ours, theirs in zip(reports(best), reports(expected), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_a_trial_can_be_repeated_on_a_gpu(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, **with_a_bert())
    trainer.hyperparameter_search(SPACE, "loss", n_trials=3, sampler="random", pruner="none", progress=False)
    again = trainer.replay("study", 2)
    assert again.record.reports
    assert again.is_equal, again.first_difference
