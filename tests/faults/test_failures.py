"""Whatever goes wrong inside a trial is in its record, costs that trial only, and leaves nothing behind."""

from __future__ import annotations

import json
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch import BestRun, SearchInterrupted, TooManyFailuresError, TrialRecord
from tests.backends.contract import AtStep, interrupt, scripted, states
from tests.faults.searching import (
    RATE,
    Hold,
    Searches,
    assert_disk_and_storage_agree,
    assert_nothing_is_left_over,
    load,
    records_on_disk,
)
from tests.models import accuracy
from tests.search.small_trainer import CountsModels, TwoLayers, points, small_trainer

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 20.00 MiB."


def search(folder: Path, n_trials: int, *callbacks: Any, trainer: dict[str, Any] | None = None, **options: Any) -> Any:
    """Search for a learning rate with a small trainer."""
    arguments = {"compute_objective": "loss", "pruner": "none", "progress": False, **options}
    return small_trainer(folder, *callbacks, **(trainer or {})).hyperparameter_search(
        RATE, n_trials=n_trials, **arguments
    )


def records_of(best: BestRun) -> list[TrialRecord]:
    return list(best.run_summary.records)


# What can go wrong: in trial 1 of three.


class Present:
    """Knows which trial runs, and whether the models of the trials before it are gone."""

    def __init__(self) -> None:
        self.trial = -1
        self.models: list[weakref.ref[torch.nn.Module]] = []
        self.alive: list[int] = []
        self.fail_in_model_init: Callable[[], None] = lambda: None
        self.fail_in_forward: Callable[[], None] = lambda: None

    def model_init(self, trial: Any) -> torch.nn.Module:
        self.trial = trial.number
        self.alive.append(sum(each() is not None for each in self.models))
        model = BreaksDown(lambda: self.fail_in_forward() if self.trial == 1 else None)
        self.models.append(weakref.ref(model))
        if self.trial == 1:
            self.fail_in_model_init()
        return model


class BreaksDown(TwoLayers):
    def __init__(self, fail: Callable[[], None]) -> None:
        super().__init__()
        self.fail = fail

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        outputs = super().forward(x, labels)
        self.fail()
        return outputs


class BrokenAt(torch.utils.data.Dataset):
    """Samples of which number 137 cannot be read in trial 1."""

    def __init__(self, present: Present) -> None:
        self._samples, self._present = points(160, seed=0), present

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 137 and self._present.trial == 1:
            raise OSError(f"sample {index} cannot be read")
        return self._samples[index]


def raises(error: BaseException) -> Callable[[], None]:
    def fail_on_purpose() -> None:
        raise error

    return fail_on_purpose


def in_model_init(present: Present) -> dict[str, Any]:
    present.fail_in_model_init = raises(ValueError("no such model"))
    return {}


def in_compute_metrics(present: Present) -> dict[str, Any]:
    def metrics(prediction: Any) -> dict[str, float]:
        if present.trial == 1:
            raise ZeroDivisionError("no positives")
        return accuracy(prediction)

    return {"compute_metrics": metrics}


def in_the_data(present: Present) -> dict[str, Any]:
    return {"train_dataset": BrokenAt(present), "per_device_train_batch_size": 32}


def in_forward(error: BaseException) -> Callable[[Present], dict[str, Any]]:
    def prepare(present: Present) -> dict[str, Any]:
        present.fail_in_forward = raises(error)
        return {}

    return prepare


@pytest.mark.parametrize(
    ("prepare", "reason", "place"),
    [
        (in_model_init, "ValueError: no such model", "in model_init"),
        (in_compute_metrics, "ZeroDivisionError: no positives", "in metrics"),
        (in_the_data, "OSError: sample 137 cannot be read", "in __getitem__"),
        (in_forward(MemoryError("80 GB are not enough")), "MemoryError: 80 GB are not enough", "in forward"),
        (in_forward(MemoryError()), "MemoryError: ", "in forward"),
        (in_forward(RuntimeError(OUT_OF_MEMORY)), f"RuntimeError: {OUT_OF_MEMORY}", "in forward"),
        (
            in_forward(torch.cuda.OutOfMemoryError("CUDA out of memory.")),
            "OutOfMemoryError: CUDA out of memory.",
            "in forward",
        ),
    ],
    ids=[
        "model_init",
        "compute_metrics",
        "sample 137",
        "MemoryError",
        "silent MemoryError",
        "CUDA",
        "OutOfMemoryError",
    ],
)
def test_an_error_in_a_trial_is_recorded_and_the_study_goes_on(
    tmp_path: Path, prepare: Callable[[Present], dict[str, Any]], reason: str, place: str
) -> None:
    present = Present()
    best = search(tmp_path, 3, trainer={"model_init": present.model_init, **prepare(present)})
    assert states(best) == ["complete", "failed", "complete"]
    failed = records_of(best)[1]
    assert failed.reason == reason
    assert place in failed.traceback
    assert (failed.values, failed.checkpoint) == ((), None)
    on_disk = assert_disk_and_storage_agree(tmp_path / "study")[1]
    assert (on_disk["reason"], on_disk["traceback"]) == (failed.reason, failed.traceback)
    assert load(tmp_path / "study").trials[1].user_attrs["hpsearch:reason"] == reason
    assert_nothing_is_left_over(tmp_path / "study")
    assert present.alive == [0, 0, 0], "the next model is built when the last one is gone"
    assert [each() for each in present.models] == [None] * 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_objective_that_is_never_finite_fails_the_trial(tmp_path: Path, value: float) -> None:
    present = Present()
    objective = scripted([0.5, 0.5], [value, value], [0.4, 0.4])
    options = {"compute_objective": objective, "direction": "minimize"}
    best = search(tmp_path, 3, trainer={"model_init": present.model_init}, **options)
    assert states(best) == ["complete", "failed", "complete"]
    failed = records_of(best)[1]
    assert failed.reason == f"the objective was never finite (last reports: {value}, {value})"
    assert len(failed.reports) == 2
    assert (best.run_id, best.objective) == ("2", 0.4)
    assert_disk_and_storage_agree(tmp_path / "study")
    assert_nothing_is_left_over(tmp_path / "study")
    assert present.alive == [0, 0, 0]


def test_a_trial_that_exits_ends_the_search_and_goes_on_with_the_same_command(tmp_path: Path) -> None:
    present = Present()
    present.fail_in_forward = lambda: sys.exit(3)
    with pytest.raises(SystemExit) as caught:
        search(tmp_path, 3, trainer={"model_init": present.model_init})
    assert caught.value.code == 3
    del caught
    left = records_on_disk(tmp_path / "study")
    assert [record["state"] for record in left] == ["complete", "interrupted"]
    assert left[1]["reason"] == "ended by SystemExit(3)"
    stored = load(tmp_path / "study").trials[1]
    assert stored.state.name == "RUNNING"
    assert stored.user_attrs["hpsearch:reason"] == "ended by SystemExit(3)"
    assert [each() for each in present.models] == [None] * 2
    best = search(tmp_path, 3)
    assert states(best) == ["complete"] * 3
    assert records_of(best)[1].params == left[1]["params"]
    assert_disk_and_storage_agree(tmp_path / "study")


# Too many of them.


def fails_in(*numbers: int, count: Callable[[], None] = lambda: None) -> CountsModels:
    def fail(trial: Any) -> None:
        if not numbers or trial.number in numbers:
            raise RuntimeError(f"out of luck in trial {trial.number}")

    return CountsModels(fail)


def test_five_failures_one_after_the_other_end_the_search_with_the_first_reason(tmp_path: Path) -> None:
    init = fails_in(*range(1, 20))
    with pytest.raises(TooManyFailuresError) as caught:
        search(tmp_path, 8, trainer={"model_init": init})
    assert len(init.trials) == 6
    message = str(caught.value)
    assert "The last 5 trials failed" in message
    assert "max_failures" in message
    assert "trial 1: RuntimeError: out of luck in trial 1" in message
    assert "in fail" in message, "the traceback of the first one"
    assert "trial 2" not in message
    assert (caught.value.best_run.run_id, states(caught.value.best_run)) == ("0", ["complete", *["failed"] * 5])
    assert caught.value.best_run.load_model() is not None
    assert_nothing_is_left_over(tmp_path / "study")

    best = search(tmp_path, 8)
    assert states(best) == ["complete", *["failed"] * 5, "complete", "complete"]
    assert_disk_and_storage_agree(tmp_path / "study")


def test_the_next_session_counts_its_own_failures(tmp_path: Path) -> None:
    for already in (2, 4):
        with pytest.raises(TooManyFailuresError, match=rf"trial {already - 2}: .*out of luck in trial {already - 2}"):
            search(tmp_path, 8, trainer={"model_init": fails_in()}, max_failures=2)
        assert len(records_on_disk(tmp_path / "study")) == already


def test_a_search_whose_last_trials_all_failed_says_so_too(tmp_path: Path) -> None:
    with pytest.raises(TooManyFailuresError) as caught:
        search(tmp_path, 5, trainer={"model_init": fails_in()})
    assert caught.value.best_run.run_id is None
    assert states(caught.value.best_run) == ["failed"] * 5


def test_objectives_that_are_never_finite_count_as_failures(tmp_path: Path) -> None:
    objective = scripted(*[[float("nan")] * 2] * 3)
    with pytest.raises(TooManyFailuresError, match="trial 0: the objective was never finite"):
        search(tmp_path, 8, compute_objective=objective, direction="minimize", max_failures=3)
    assert len(records_on_disk(tmp_path / "study")) == 3


def test_failures_with_a_success_between_them_do_not_end_the_search(tmp_path: Path) -> None:
    best = search(tmp_path, 12, trainer={"model_init": fails_in(0, 1, 2, 3, 5, 6, 7, 8, 10, 11)})
    expected = ["failed"] * 4 + ["complete"] + ["failed"] * 4 + ["complete"] + ["failed"] * 2
    assert states(best) == expected


def test_without_a_limit_every_trial_may_fail(tmp_path: Path) -> None:
    best = search(tmp_path, 7, trainer={"model_init": fails_in()}, max_failures=None)
    assert states(best) == ["failed"] * 7
    assert best.run_id is None
    assert "out of luck in trial 0" in best.run_summary.explain_absence()


# Out of memory: the same trial again in smaller batches.


@dataclass
class Memory:
    """What fits: so many samples at once, while training and while evaluating; counts what was tried."""

    training: int = 1000
    evaluation: int = 1000
    tried: list[tuple[str, int]] = field(default_factory=list)
    error: type[Exception] = RuntimeError

    def need(self, samples: int, is_training: bool) -> None:
        self.tried.append(("train" if is_training else "eval", samples))
        if samples > (self.training if is_training else self.evaluation):
            raise self.error(OUT_OF_MEMORY)

    def trained(self) -> list[int]:
        return [samples for kind, samples in self.tried if kind == "train"]


class NeedsMemory(TwoLayers):
    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.memory.need(len(x), self.training)
        return super().forward(x, labels)


@dataclass
class MakesModels:
    """A `model_init` whose models need memory; it can be sent to another process."""

    memory: Memory

    def __call__(self, trial: Any) -> NeedsMemory:
        return NeedsMemory(self.memory)


BATCH = {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 16}


def with_memory(memory: Memory, **changes: Any) -> dict[str, Any]:
    return {**BATCH, "model_init": MakesModels(memory), **changes}


class Steps(AtStep):
    """Remembers the updates made, and in which micro-batches."""

    def __init__(self, act: Callable[[], None] = lambda: None, run: int = -1, step: int = -1) -> None:
        super().__init__(act, run, step)
        self.batches: list[tuple[int, int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.batches.append((args.per_device_train_batch_size, args.gradient_accumulation_steps))
        super().on_step_end(args, state, control, **kwargs)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, torch.cuda.OutOfMemoryError])
def test_a_trial_out_of_memory_runs_again_with_half_the_batch_and_twice_the_accumulation(
    tmp_path: Path, error: type[Exception]
) -> None:
    expected = search(tmp_path / "roomy", 2, trainer=with_memory(Memory()))
    memory, steps = Memory(training=2, error=error), Steps()
    best = search(tmp_path / "tight", 2, steps, trainer=with_memory(memory), oom_fallback=True)
    assert states(best) == ["complete", "complete"]
    assert memory.trained()[:2] == [8, 4]
    assert set(steps.batches) == {(2, 4)}, "the same effective batch"
    for record, other in zip(records_of(best), records_of(expected), strict=True):
        assert record.params == other.params
        assert [report.step for report in record.reports] == [report.step for report in other.reports] == [2, 4]
        assert record.value == pytest.approx(other.value, rel=1e-5)
        assert [each["arguments"] for each in record.fallbacks] == [
            {
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 2,
                "per_device_eval_batch_size": 8,
            },
            {
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 4,
                "per_device_eval_batch_size": 4,
            },
        ]
        assert all(OUT_OF_MEMORY in each["reason"] for each in record.fallbacks)
    on_disk = assert_disk_and_storage_agree(tmp_path / "tight" / "study")
    assert [tuple(record["fallbacks"]) for record in on_disk] == [record.fallbacks for record in records_of(best)]
    assert best.load_model() is not None


def test_a_batch_is_divided_only_as_often_as_it_can_be(tmp_path: Path) -> None:
    memory = Memory(training=0)
    changes = with_memory(memory, per_device_eval_batch_size=8)
    best = search(tmp_path, 1, trainer=changes, oom_fallback=True)
    assert memory.trained() == [8, 4, 2, 1]
    assert states(best) == ["failed"]
    (record,) = records_of(best)
    assert record.reason == f"RuntimeError: {OUT_OF_MEMORY}"
    assert "in need" in record.traceback
    assert len(record.fallbacks) == 3
    assert len(assert_disk_and_storage_agree(tmp_path / "study")[0]["fallbacks"]) == 3


def test_a_batch_of_an_odd_size_is_divided_evenly(tmp_path: Path) -> None:
    memory, steps = Memory(training=1), Steps()
    changes = with_memory(memory, per_device_train_batch_size=6, train_dataset=points(18, seed=0))
    best = search(tmp_path, 1, steps, trainer=changes, oom_fallback=True)
    assert memory.trained()[:2] == [6, 3]
    assert set(steps.batches) == {(1, 6)}
    assert [report.step for report in records_of(best)[0].reports] == [3, 6]


def test_without_being_asked_a_trial_out_of_memory_fails(tmp_path: Path) -> None:
    memory = Memory(training=4)
    best = search(tmp_path, 2, trainer=with_memory(memory))
    assert memory.trained() == [8, 8]
    assert states(best) == ["failed", "failed"]
    assert [record.fallbacks for record in records_of(best)] == [(), ()]


def test_other_errors_do_not_make_smaller_batches(tmp_path: Path) -> None:
    init = fails_in()
    best = search(tmp_path, 2, trainer={"model_init": init}, oom_fallback=True)
    assert len(init.trials) == 2
    assert [record.fallbacks for record in records_of(best)] == [(), ()]


def test_an_evaluation_out_of_memory_is_made_in_smaller_batches_too(tmp_path: Path) -> None:
    expected = search(tmp_path / "roomy", 1, trainer=with_memory(Memory()))
    best = search(tmp_path / "tight", 1, trainer=with_memory(Memory(evaluation=8)), oom_fallback=True)
    assert states(best) == ["complete"]
    assert best.objective == pytest.approx(expected.objective, rel=1e-5)
    assert len(records_of(best)[0].fallbacks) == 1


def test_an_evaluation_is_made_smaller_also_where_training_is_one_sample_at_a_time(
    tmp_path: Path,
) -> None:
    changes = with_memory(Memory(evaluation=2), per_device_train_batch_size=1, per_device_eval_batch_size=8)
    best = search(tmp_path, 1, trainer=changes, oom_fallback=True)
    assert states(best) == ["complete"]
    (record,) = records_of(best)
    assert [each["arguments"]["per_device_eval_batch_size"] for each in record.fallbacks] == [4, 2]
    assert [each["arguments"]["per_device_train_batch_size"] for each in record.fallbacks] == [1, 1]
    assert [report.step for report in record.reports] == [16, 32]


def test_the_model_that_did_not_fit_is_gone_before_the_next_one_is_built(tmp_path: Path) -> None:
    memory = Memory(training=2)
    built: list[weakref.ref[torch.nn.Module]] = []
    alive: list[int] = []

    def model_init(trial: Any) -> torch.nn.Module:
        alive.append(sum(each() is not None for each in built))
        model = NeedsMemory(memory)
        built.append(weakref.ref(model))
        return model

    search(tmp_path, 1, trainer={**BATCH, "model_init": model_init}, oom_fallback=True)
    assert alive == [0, 0, 0]


def test_smaller_batches_go_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    """16 samples in batches of 8 make two updates an epoch; the memory gets short in the second one."""
    expected = search(tmp_path / "roomy", 1, trainer=with_memory(Memory(), save_strategy="epoch"))
    memory = Memory()
    steps = Steps(lambda: setattr(memory, "training", 4), run=0, step=3)
    changes = with_memory(memory, save_strategy="epoch")
    best = search(tmp_path / "tight", 1, steps, trainer=changes, oom_fallback=True)
    assert [step for _, step in steps.steps] == [1, 2, 3, 3, 4]
    assert steps.batches == [(8, 1)] * 3 + [(4, 2)] * 2
    (record,), (other,) = records_of(best), records_of(expected)
    assert [report.step for report in record.reports] == [2, 4]
    assert record.value == pytest.approx(other.value, rel=1e-5)
    assert len(record.fallbacks) == 1
    assert_disk_and_storage_agree(tmp_path / "tight" / "study")
    assert_nothing_is_left_over(tmp_path / "tight" / "study")


def test_an_interrupted_trial_keeps_its_smaller_batches(tmp_path: Path) -> None:
    memory = Memory(training=4)
    changes = with_memory(memory, save_strategy="epoch")
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, AtStep(interrupt, run=1, step=3), trainer=changes, oom_fallback=True)
    memory.tried.clear()
    best = search(tmp_path, 1, trainer=changes, oom_fallback=True)
    assert set(memory.trained()) == {4}
    assert len(memory.trained()) == 2 * 2, "two updates, from the checkpoint"
    assert states(best) == ["complete"]
    assert len(records_of(best)[0].fallbacks) == 1


def test_a_killed_trial_keeps_its_smaller_batches(tmp_path: Path) -> None:
    changes = with_memory(Memory(training=4))
    with Searches(tmp_path) as searches:
        killed = searches.start(n_trials=1, trainer=changes, oom_fallback=True, hold=Hold(trial=0, step=3))
        killed.wait_until_held()
        killed.kill()
        (left,) = records_on_disk(tmp_path / "study")
        assert (left["state"], len(left["fallbacks"])) == ("running", 1)
        memory, steps = Memory(training=4), Steps()
        best = search(tmp_path, 1, steps, trainer=with_memory(memory, save_strategy="epoch"), oom_fallback=True)
    assert set(memory.trained()) == {4}
    assert [step for _, step in steps.steps] == [3, 4]
    assert records_of(best)[0].fallbacks == tuple(left["fallbacks"])


# Budgets: 16 samples in batches of 4 make four updates an epoch.


def test_a_trial_stops_at_the_update_that_uses_up_its_epochs(tmp_path: Path) -> None:
    steps = Steps()
    changes = {"num_train_epochs": 3, "save_strategy": "epoch"}
    best = search(tmp_path, 2, steps, trainer=changes, trial_max_epochs=1.25)
    assert [step for _, step in steps.steps] == [1, 2, 3, 4, 5] * 2
    assert states(best) == ["stopped", "stopped"]
    for record in records_of(best):
        assert record.reason == "the trial's 1.25 epochs are used up"
        assert [report.step for report in record.reports] == [4]
        assert record.epochs == 1.25
        assert record.value == record.reports[0].value
    assert best.checkpoint.name == "checkpoint-4"
    measured = small_trainer(tmp_path / "again", model=best.load_model()).evaluate()["eval_loss"]
    assert measured == pytest.approx(best.objective, rel=1e-6)
    assert_stopped_on_disk_and_in_storage(tmp_path / "study", "the trial's 1.25 epochs are used up")
    assert_nothing_is_left_over(tmp_path / "study")


def assert_stopped_on_disk_and_in_storage(study: Path, reason: str) -> None:
    records = assert_disk_and_storage_agree(study)
    for record, trial in zip(records, load(study).trials, strict=True):
        assert (record["state"], record["reason"]) == ("stopped", reason)
        assert trial.user_attrs["hpsearch:state"] == "stopped"
        assert trial.user_attrs["hpsearch:reason"] == reason


def test_a_schedule_is_that_of_the_epochs_asked_for(tmp_path: Path) -> None:
    rates: list[float] = []

    class Watches(AtStep):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rates.append(kwargs["lr_scheduler"].get_last_lr()[0] / args.learning_rate)

    search(tmp_path, 1, Watches(interrupt, -1, -1), trainer={"num_train_epochs": 4}, trial_max_epochs=1)
    assert rates == pytest.approx([1 - step / 16 for step in (1, 2, 3, 4)])


def test_the_study_stops_at_the_update_that_uses_up_its_epochs(tmp_path: Path) -> None:
    steps = Steps()
    best = search(tmp_path, 9, steps, max_epochs=5.5)
    assert states(best) == ["complete", "complete", "stopped"]
    assert len(steps.steps) == 8 + 8 + 6
    record = records_of(best)[2]
    assert record.reason == "the study's 5.5 epochs are used up"
    assert [report.step for report in record.reports] == [4]
    assert states(search(tmp_path, 9, steps, max_epochs=5.5)) == states(best)
    assert len(steps.steps) == 8 + 8 + 6

    more = search(tmp_path, 9, steps, max_epochs=7.5)
    assert states(more) == ["complete", "complete", "stopped", "complete"]
    assert_disk_and_storage_agree(tmp_path / "study")


def test_the_epochs_of_failed_trials_are_used_up_too(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("out of luck")

    best = search(tmp_path, 9, Steps(fail, run=0, step=6), max_epochs=3.25)
    assert states(best) == ["failed", "complete"]
    assert records_of(best)[0].epochs in (1.25, 1.5), "with or without the update that it failed in"


@pytest.mark.parametrize(
    ("budget", "save_strategy", "eval_strategy"),
    [
        ("max_epochs", "epoch", "epoch"),
        ("max_epochs", "epoch", "no"),
        ("max_epochs", "no", "epoch"),
        ("max_epochs", "no", "no"),
        ("timeout", "epoch", "epoch"),
    ],
)
def test_a_trial_that_the_study_s_budget_stopped_before_its_first_evaluation_goes_on_from_there(
    tmp_path: Path, budget: str, save_strategy: str, eval_strategy: str
) -> None:
    changes = {"eval_strategy": eval_strategy, "save_strategy": save_strategy}
    expected = search(tmp_path / "undisturbed", 3, trainer=changes)
    slow = Steps(lambda: time.sleep(4.0) if budget == "timeout" else None, run=1, step=2)
    limit = {"timeout": 4.0} if budget == "timeout" else {"max_epochs": 2.5}
    stopped = search(tmp_path / "stopped", 3, slow, trainer=changes, **limit)
    assert slow.steps[-1] == (1, 2)
    assert states(stopped) == ["complete", "interrupted"]
    record = records_of(stopped)[1]
    words = "the study's timeout of 4.0 s is over" if budget == "timeout" else "the study's 2.5 epochs are used up"
    assert record.reason == f"{words}, before its first evaluation"
    assert record.reports == ()
    assert stopped.run_id == "0"

    steps = Steps()
    best = search(tmp_path / "stopped", 3, steps, trainer=changes)
    assert [step for run, step in steps.steps if run == 0] == [3, 4, 5, 6, 7, 8]
    assert states(best) == ["complete"] * 3
    for mine, other in zip(records_of(best), records_of(expected), strict=True):
        assert (mine.params, mine.values) == (other.params, other.values)
        assert [report.step for report in mine.reports] == [report.step for report in other.reports]
    assert_disk_and_storage_agree(tmp_path / "stopped" / "study")
    assert_nothing_is_left_over(tmp_path / "stopped" / "study")


def test_time_is_checked_after_every_update(tmp_path: Path) -> None:
    """Each update takes 0.1 s; the epoch's end is far away."""

    class Slow(Steps):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_step_end(args, state, control, **kwargs)
            time.sleep(0.1)

    steps = Slow()
    changes = {"train_dataset": points(400, seed=0), "num_train_epochs": 1}
    best = search(tmp_path, 1, steps, trainer=changes, trial_timeout=0.75)
    assert 4 <= len(steps.steps) <= 8
    (record,) = records_of(best)
    assert (record.state.value, record.reason) == ("stopped", "the trial's timeout of 0.75 s is over")
    assert 0.75 <= record.seconds < 5.0
    assert [report.step for report in record.reports] == [len(steps.steps)], "evaluated where it stopped"
    assert best.checkpoint.name == f"checkpoint-{len(steps.steps)}"
    assert_stopped_on_disk_and_in_storage(tmp_path / "study", "the trial's timeout of 0.75 s is over")


def test_a_trial_s_time_counts_over_all_sessions(tmp_path: Path) -> None:
    def rest_and_interrupt() -> None:
        time.sleep(0.6)
        raise KeyboardInterrupt

    class RestsBeforeSaving(AtStep):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            time.sleep(0.8)

    changes = {"num_train_epochs": 9, "save_strategy": "epoch"}
    with pytest.raises(SearchInterrupted):
        search(tmp_path, 1, RestsBeforeSaving(interrupt, 0, 5), trainer=changes, trial_timeout=1.4)
    steps = Steps(lambda: time.sleep(0.8), run=0, step=6)
    best = search(tmp_path, 1, steps, trainer=changes, trial_timeout=1.4)
    assert [step for _, step in steps.steps] == [5, 6]
    assert states(best) == ["stopped"]
    assert records_of(best)[0].seconds >= 1.4


def test_the_best_of_a_stopped_trial_may_win(tmp_path: Path) -> None:
    objective = scripted([0.5, 0.6], [0.2, 0.7, 0.8], [0.3, 0.3])
    steps = Steps(lambda: time.sleep(1.1), run=1, step=6)
    options = {"compute_objective": objective, "direction": "minimize", "scope": "all", "trial_timeout": 1.0}
    best = search(tmp_path, 3, steps, **options)
    assert states(best) == ["complete", "stopped", "complete"]
    assert (best.run_id, best.objective) == ("1", 0.2)
    assert best.checkpoint.name == "checkpoint-4"
    told = json.loads((tmp_path / "study" / "best.json").read_text())
    assert (told["trial"], told["value"], told["checkpoint"]) == (1, 0.2, "run-1/checkpoint-4")
