"""Trials at once on a cluster keep to what is said of all of them: how many, budgets, failures; and lose nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import ray
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining
from transformers import TrainerCallback

from hpsearch import Constraint, Float, TooManyFailuresError
from hpsearch.executors.ray_executor import tune_dispatch as dispatch
from tests.support.on_ray import search
from tests.support.scarce_memory import BATCH, Memory, NeedsMemory
from tests.support.search_processes import wait_until
from tests.support.searching import RATE, Diary, Events, FailsBesideASlowOne, HearsNotices, states, without_result
from tests.support.small_trainer import TwoLayers, small_trainer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


class Spans(TrainerCallback):
    """Writes down when each step of a run begins and ends; the first ends when `together` runs have begun."""

    def __init__(self, diary: Diary, together: int) -> None:
        self._diary, self._together = diary, together

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write((Path(args.output_dir).name, time.time(), state.global_step))
        wait_until(lambda: len({run for run, _, _ in self._diary.read()}) >= self._together)
        time.sleep(0.02)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write((Path(args.output_dir).name, time.time(), state.global_step))


def most_at_once(diary: Diary) -> int:
    """Return how many runs made an update at the same time."""
    begins: dict[tuple[str, int], float] = {}
    spans = []
    for run, moment, step in diary.read():
        if (run, step - 1) in begins:
            spans.append((begins.pop((run, step - 1)), moment))
        else:
            begins[run, step] = moment
    return max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans)


@pytest.mark.parametrize(
    ("scheduler", "limit", "most"),
    [
        (None, 2, 2),
        (None, 1, 1),
        (
            PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=2,
                hyperparam_mutations={"learning_rate": [0.1]},
            ),
            1,
            1,
        ),
        (HyperBandScheduler(time_attr="training_iteration", max_t=4, reduction_factor=2), 1, 1),
    ],
    ids=["two", "one", "population", "hyperband"],
)
def test_no_more_trials_run_at_once_than_the_limit_says_although_there_is_room(
    tmp_path: Path, scheduler: Any, limit: int, most: int
) -> None:
    diary, options = Diary(tmp_path / "diary"), {} if scheduler is None else {"scheduler": scheduler}
    best = search(tmp_path, 4, [Spans(diary, most)], {"num_train_epochs": 4}, max_concurrent_trials=limit, **options)
    assert len(best.run_summary.records) == 4
    assert all(record.state.is_counted for record in best.run_summary.records)
    assert most_at_once(diary) == most


def test_too_many_failures_are_an_error_although_a_trial_beside_them_goes_well(tmp_path: Path) -> None:
    with pytest.raises(TooManyFailuresError, match=r"last 2 trials failed.*out of luck") as caught:
        search(tmp_path, 8, [FailsBesideASlowOne()], max_failures=2)
    assert states(caught.value.best_run)[:3] == ["complete", "failed", "failed"]
    assert caught.value.best_run.run_id == "0"


def test_trials_at_once_share_the_epochs_of_the_study(tmp_path: Path) -> None:
    best = search(tmp_path, 8, trainer={"num_train_epochs": 50}, max_epochs=20)
    records = best.run_summary.records
    assert len(records) == 2
    assert set(states(best)) == {"stopped"}
    assert all("the study's 20 epochs are exhausted" in record.reason for record in records)
    # Each may be an evaluation further than it should be, since the other one trains in the meantime.
    assert 20 <= sum(record.epochs for record in records) <= 23


def test_a_search_ends_in_time_although_others_leave_it_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_SECONDS_OF_SILENCE", 3.0)

    @ray.remote
    class Other:
        def is_there(self) -> bool:
            return True

    other = Other.options(num_cpus=ray.cluster_resources()["CPU"]).remote()
    assert ray.get(other.is_there.remote())
    events = HearsNotices()
    begin = time.monotonic()
    try:
        error = without_result(search, tmp_path, 2, timeout=5.0, progress=events)
    finally:
        ray.kill(other)
    assert time.monotonic() - begin < 30
    assert set(states(error)) == {"interrupted"}
    assert any("no worker is free for the paused trials" in notice for notice in events.notices)
    again = search(tmp_path, 2)
    assert states(again) == ["complete"] * 2


def test_several_objectives_with_constraint_and_pruning_go_on_from_an_embedded_search(tmp_path: Path) -> None:
    def build(trial: Any) -> TwoLayers:
        return TwoLayers(trial.suggest_int("hidden", 2, 30))

    options: dict[str, Any] = {
        "compute_objective": ["eval_loss", "num_parameters"],
        "direction": ["minimize", "minimize"],
        "constraints": Constraint("num_parameters", at_most=120),
        "pruning_metric": "eval_loss",
        "pruner": optuna.pruners.PercentilePruner(50.0, n_startup_trials=1),
        "sampler": optuna.samplers.NSGAIISampler(seed=3),
    }
    trainer = {"model_init": build, "num_train_epochs": 4}
    small_trainer(tmp_path, **trainer).hyperparameter_search(RATE, n_trials=3, progress=False, **options)
    front = search(tmp_path, 12, trainer=trainer, **options)
    records = front[0].run_summary.records
    assert len(records) == 12
    assert {record.state.value for record in records} == {"complete", "pruned"}
    eligible = [record for record in records if record.is_eligible]
    assert any(value > 0 for record in records for value in record.violations.values())
    best = {
        record.number
        for record in eligible
        if not any(
            other.values != record.values and all(a <= b for a, b in zip(other.values, record.values, strict=True))
            for other in eligible
        )
    }
    assert {int(each.run_id) for each in front} == best
    engine = front[0].run_summary.engine_study
    stored = {trial.number: trial.state.name.lower() for trial in engine.trials}
    assert stored == {record.number: record.state.value for record in records}


class RunsOutOnce:
    """A `model_init` whose models, in whichever process, need too much memory for batches of more than two."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def __call__(self, trial: Any) -> NeedsMemory:
        self._diary.write("built")
        return NeedsMemory(Memory(training=2))


class Dies(TrainerCallback):
    """Ends its process once, at the fifth update."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 5 and not self._diary.read():
            self._diary.write("died")
            os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_trial_learned_of_its_memory_outlives_its_worker(tmp_path: Path) -> None:
    built, died = Diary(tmp_path / "built"), Diary(tmp_path / "died")
    trainer = {**BATCH, "model_init": RunsOutOnce(built), "num_train_epochs": 4, "save_strategy": "epoch"}
    best = search(tmp_path, 1, [Dies(died)], trainer, oom_fallback=True, preflight=False)
    [record] = best.run_summary.records
    assert states(best) == ["complete"]
    assert died.read() == ["died"]
    # With batches of eight, of four and of two; then in the next worker, at once with those of two.
    assert [each["arguments"]["per_device_train_batch_size"] for each in record.fallbacks] == [4, 2]
    assert len(built.read()) == 3 + 1


class KillsTheIdleWorker(Events):
    """Kills the worker of the first trial as soon as that has ended, when the next one is about to get it."""

    def __init__(self, diary: Diary) -> None:
        super().__init__()
        self._diary = diary

    def on_trial_end(self, record: Any) -> None:
        super().on_trial_end(record)
        if record.number == 0:
            os.kill(self._diary.read()[-1], signal.SIGKILL)
            time.sleep(1.0)


class WritesProcess(TrainerCallback):
    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._diary.write(os.getpid())


@pytest.mark.parametrize("retries", [0, 3])
def test_a_worker_that_dies_between_two_trials_costs_neither(tmp_path: Path, retries: int) -> None:
    diary = Diary(tmp_path / "diary")
    options = {"max_concurrent_trials": 1, "trial_retries": retries, "progress": KillsTheIdleWorker(diary)}
    best = search(tmp_path, 3, [WritesProcess(diary)], **options)
    assert states(best) == ["complete"] * 3
    first, second, third = diary.read()
    assert first != second == third


def test_a_budget_that_is_used_up_ends_trials_that_wait_for_their_turn(tmp_path: Path) -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"learning_rate": [0.1]}
    )
    options = {"scheduler": scheduler, "max_concurrent_trials": 1, "max_epochs": 7}
    best = search(tmp_path, 3, trainer={"num_train_epochs": 10, "save_strategy": "epoch"}, **options)
    records = best.run_summary.records
    assert {record.state.value for record in records} <= {"stopped", "interrupted"}
    assert "stopped" in states(best)
    assert 7 <= sum(record.epochs for record in records) <= 8
    assert best.load_model() is not None


class DiesInTheFirstRun(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if Path(args.output_dir).name == "run-0" and state.global_step == 6:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_population_goes_on_being_perturbed_after_one_of_it_was_given_up(tmp_path: Path) -> None:
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        quantile_fraction=0.5,
        resample_probability=1.0,
        hyperparam_mutations={"learning_rate": [0.1]},
        synch=True,
    )
    events = HearsNotices()
    options = {"scheduler": scheduler, "trial_retries": 0, "progress": events, "hp_space": {"learning_rate": SMALL}}
    best = search(tmp_path, 3, [DiesInTheFirstRun()], {"num_train_epochs": 6}, **options)
    assert states(best) == ["failed", "complete", "complete"]
    assert best.run_summary.records[0].reason.startswith("its worker died: ")
    assert any("with learning_rate=0.1" in notice for notice in events.notices)


SMALL = Float(1e-9, 1e-8)
